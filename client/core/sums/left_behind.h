// How much of a rank's gradients pruning has kept from leaving: nobody gets it unless it leaves
// with a later step, so who ends should know. Not what rounding keeps, which is never nothing; not
// late gradients (late.h). Pure; on whatever thread reads the residuals.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice::client {

struct LeftBehind {
  std::uint64_t elem_count = 0;  // that are not zero
  double squares = 0;            // their sum

  // Of a residual, all of it or a part.
  void add(std::span<const float> residual) noexcept;
  double norm() const noexcept;
  // What a rank that ends should be told; empty: nothing.
  std::string describe() const;
};

}  // namespace sluice::client

#include "client/core/sums/left_behind.h"

#include <cmath>
#include <cstdio>

namespace sluice::client {

void LeftBehind::add(std::span<const float> residual) noexcept {
  for (const float value : residual) {
    elem_count += value != 0;
    squares += static_cast<double>(value) * value;
  }
}

double LeftBehind::norm() const noexcept { return std::sqrt(squares); }

std::string LeftBehind::describe() const {
  if (elem_count == 0) return {};
  char norm_text[32];
  std::snprintf(norm_text, sizeof norm_text, "%.4g", norm());
  return "ends, and " + std::to_string(elem_count) + " elements of its gradients (norm " +
         norm_text + ", " + std::to_string(elem_count * sizeof(float)) +
         " bytes) were never delivered, which pruning left behind: call sluice_flush_residuals() "
         "before the last step's submissions, or save what sluice_get_residual() tells for a run "
         "that goes on from here";
}

}  // namespace sluice::client

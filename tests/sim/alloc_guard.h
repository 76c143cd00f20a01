// Counts calls of operator new on this thread, to show that the packet path makes none.
//
// Linking the simulator replaces the global operators by ones that count and call malloc.
#pragma once

#include <cstdint>

namespace sluice::sim {

std::uint64_t allocation_count() noexcept;

class AllocationWatch {
 public:
  std::uint64_t count() const noexcept { return allocation_count() - start_; }

 private:
  std::uint64_t start_ = allocation_count();
};

}  // namespace sluice::sim

// Counts calls of operator new on this thread, to show that the packet path makes none, and the
// bytes in use, to compare them with what a plan says.
//
// Linking the simulator replaces the global operators by ones that count and call malloc.
#pragma once

#include <cstdint>

namespace sluice::sim {

std::uint64_t allocation_count() noexcept;
// By operator new and not deleted, of all threads; what malloc rounds up to is counted.
std::uint64_t bytes_in_use() noexcept;

class AllocationWatch {
 public:
  std::uint64_t count() const noexcept { return allocation_count() - start_; }

 private:
  std::uint64_t start_ = allocation_count();
};

}  // namespace sluice::sim

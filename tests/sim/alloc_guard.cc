#include "tests/sim/alloc_guard.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t allocations = 0;
std::atomic<std::uint64_t> in_use{0};

void* counted_or_null(std::size_t bytes) noexcept {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  in_use.fetch_add(malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}

void* counted(std::size_t bytes) {
  void* memory = counted_or_null(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give_back(void* memory) noexcept {
  in_use.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes);
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give_back(memory); }

namespace sluice::sim {
std::uint64_t allocation_count() noexcept { return allocations; }
std::uint64_t bytes_in_use() noexcept { return in_use.load(std::memory_order_relaxed); }
}  // namespace sluice::sim

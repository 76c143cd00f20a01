// Memory that is touched when it is allocated, not by the first packet, and the progress of its
// allocation.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace sluice {

// The progress of allocating a job's memory. Shared by the thread that allocates it and the thread
// that ordered it.
struct BuildProgress {
  // Allocated, of about Job::memory_bytes(). Written by the allocating thread.
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> unwanted{false};  // the allocation may stop; written by any thread
};

// Adds to the progress. Throws std::bad_alloc if the memory is not wanted any more. `progress` may
// be null.
inline void note_made(BuildProgress* progress, std::size_t made_bytes) {
  if (progress == nullptr) return;
  progress->bytes.store(progress->bytes.load(std::memory_order_relaxed) + made_bytes,
                        std::memory_order_relaxed);
  if (progress->unwanted.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

using FloatArray = std::unique_ptr<float[], decltype(&std::free)>;

// Allocates zeros, aligned to a cache line. It works in pieces, so that progress can be read and a
// job that is not wanted any more costs little. Throws std::bad_alloc.
inline FloatArray allocate_prefaulted(std::size_t floats, BuildProgress* progress) {
  constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
  constexpr std::size_t kLineBytes = 64;
  if (floats == 0) return {nullptr, std::free};
  const std::size_t bytes = floats * sizeof(float);
  const std::size_t whole_lines = (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  FloatArray memory{static_cast<float*>(std::aligned_alloc(kLineBytes, whole_lines)), std::free};
  if (memory == nullptr) throw std::bad_alloc();
  for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
    const std::size_t piece_bytes = std::min(kPieceBytes, bytes - at);
    std::memset(reinterpret_cast<unsigned char*>(memory.get()) + at, 0, piece_bytes);
    note_made(progress, piece_bytes);
  }
  return memory;
}

}  // namespace sluice

// Late gradients: the account of every chunk that was submitted with data (invariant I8), and in
// mode `requeue` the copies of those that missed their own step, until a later step has counted
// them.
//
// A chunk of a gradient is contributed once: to its own step, or to the one that is open when it is
// ready. So each chunk ends as delivered, requeued, kept in its residual or discarded, and this is
// the only code that counts them. The memory for the copies, one step's worth, is allocated at the
// join. It decides nothing about when to send. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/types.h"
#include "client/core/calls/counters.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/residuals.h"

namespace sluice::client {

class LateChunks {
 public:
  // A late chunk of the gradient that was computed on `base`.
  struct Entry {
    Step base = 0;  // 0: none waits
    std::uint32_t weight = 0;
    std::uint16_t bytes = 0;
  };

  // `counters`: counted there. `residuals`: what is given up goes back there.
  LateChunks(Counters& counters, const Layout& layout, Residuals& residuals) noexcept
      : counters_(counters), layout_(layout), residuals_(residuals) {}
  void join(const PolicyOptions& policy, ChunkIndex chunk_count, std::size_t chunk_bytes);

  // ---- what became of a chunk of this worker's gradient for its own step ----
  void delivered() noexcept { ++counters_.delivered_chunks; }
  // The result lacks it. `data` is still the caller's input; it is copied when it can be requeued.
  void missed(ChunkIndex chunk, Step base, std::uint32_t weight,
              std::span<const std::uint8_t> data) noexcept;
  // The result lacks it, and it cannot be requeued, but its residual has it.
  void kept() noexcept {
    DCHECK(!requeues());
    ++counters_.late_chunks;
    ++counters_.kept_chunks;
  }
  // Whether it was counted will never be known.
  void unknown(std::uint64_t chunks) noexcept { counters_.discarded_chunks += chunks; }

  // ---- what waits ----
  bool requeues() const noexcept { return data_ != nullptr; }
  bool waiting() const noexcept { return waiting_count_ != 0; }
  std::uint32_t waiting_count() const noexcept { return waiting_count_; }
  bool waiting(ChunkIndex chunk) const noexcept {
    return waiting_count_ != 0 && entries_[chunk].base != 0;
  }
  const Entry& entry(ChunkIndex chunk) const noexcept { return entries_[chunk]; }
  std::span<const std::uint8_t> data(ChunkIndex chunk) const noexcept {
    DCHECK(waiting(chunk));
    return {&data_[chunk * chunk_bytes_], entries_[chunk].bytes};
  }
  // The gradient that became late last: what a contribution without data stands for.
  Step newest_base() const noexcept { return newest_base_; }
  // A later step has counted it.
  void requeued(ChunkIndex chunk) noexcept;
  // Gives up what is too stale for `step`, the next that it could go into. Nothing is on its way.
  void expire(Step step) noexcept;
  // Gives up all; nobody knows what of it was on its way.
  void discard_all() noexcept;

 private:
  void drop(ChunkIndex chunk) noexcept;
  void forget(Entry& entry) noexcept;
  void check() const noexcept;

  Counters& counters_;
  const Layout& layout_;
  Residuals& residuals_;
  std::uint32_t max_staleness_ = 0;
  std::size_t chunk_bytes_ = 0;
  std::uint32_t waiting_count_ = 0;
  Step oldest_base_ = 0;  // no waiting chunk is older
  Step newest_base_ = 0;
  std::vector<Entry> entries_;
  std::unique_ptr<std::uint8_t[]> data_;
};

}  // namespace sluice::client

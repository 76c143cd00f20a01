#include "client/core/sums/late.h"

#include <algorithm>
#include <cstring>

namespace sluice::client {

// The invariants between any two calls.
void LateChunks::check() const noexcept {
  DCHECK(waiting_count_ <= entries_.size());
  DCHECK(requeues() || waiting_count_ == 0);
  DCHECK(waiting_count_ == 0 || oldest_base_ <= newest_base_);
}

void LateChunks::join(const PolicyOptions& policy, ChunkIndex chunk_count,
                      std::size_t chunk_bytes) {
  if (!policy.tolerates_stragglers() || policy.late != LateMode::kRequeue) return;
  CHECK(!requeues() && chunk_bytes != 0);  // once
  max_staleness_ = policy.max_staleness;
  chunk_bytes_ = chunk_bytes;
  entries_.resize(chunk_count);
  data_ = std::make_unique<std::uint8_t[]>(chunk_count * chunk_bytes);
}

void LateChunks::missed(ChunkIndex chunk, Step base, std::uint32_t weight,
                        std::span<const std::uint8_t> data) noexcept {
  ++counters_.late_chunks;
  if (!requeues()) {
    ++counters_.discarded_chunks;
    return;
  }
  CHECK(base != 0 && chunk < entries_.size() && data.size() <= chunk_bytes_);
  DCHECK(base >= newest_base_);
  Entry& entry = entries_[chunk];
  if (entry.base != 0) drop(chunk);  // two gradients late: the newer one is worth more
  entry = {.base = base, .weight = weight, .bytes = static_cast<std::uint16_t>(data.size())};
  std::memcpy(&data_[chunk * chunk_bytes_], data.data(), data.size());
  oldest_base_ = waiting_count_ == 0 ? base : std::min(oldest_base_, base);
  newest_base_ = base;
  ++waiting_count_;
  check();
}

void LateChunks::requeued(ChunkIndex chunk) noexcept {
  CHECK(waiting(chunk));
  forget(entries_[chunk]);
  ++counters_.requeued_chunks;
  check();
}

// The chunk is not on its way: where there is a residual, nothing is lost.
void LateChunks::drop(ChunkIndex chunk) noexcept {
  DCHECK(waiting(chunk) && entries_[chunk].base >= oldest_base_);
  const ChunkSpan span = layout_.chunk(chunk);
  const bool keeps = residuals_.covers(span.tensor);
  if (keeps) residuals_.give_back(span, data(chunk));
  forget(entries_[chunk]);
  ++(keeps ? counters_.kept_chunks : counters_.discarded_chunks);
}

void LateChunks::forget(Entry& entry) noexcept {
  CHECK(entry.base != 0 && waiting_count_ != 0);
  entry = {};
  --waiting_count_;
}

void LateChunks::expire(Step step) noexcept {
  if (max_staleness_ == 0 || waiting_count_ == 0 || step - oldest_base_ <= max_staleness_) return;
  Step oldest = step;
  for (ChunkIndex chunk = 0; chunk < entries_.size(); ++chunk) {
    const Entry& entry = entries_[chunk];
    if (entry.base == 0) continue;
    if (step - entry.base > max_staleness_)
      drop(chunk);
    else
      oldest = std::min(oldest, entry.base);
  }
  oldest_base_ = oldest;
  DCHECK(std::ranges::count_if(entries_, [](const Entry& entry) { return entry.base != 0; }) ==
         std::ptrdiff_t{waiting_count_});
  check();
}

void LateChunks::discard_all() noexcept {
  if (waiting_count_ == 0) return;
  for (Entry& entry : entries_) {
    if (entry.base == 0) continue;
    forget(entry);
    ++counters_.discarded_chunks;
  }
  CHECK(waiting_count_ == 0);
}

}  // namespace sluice::client

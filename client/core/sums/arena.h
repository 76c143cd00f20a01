// The receive arena: the results of the step under way that arrived before their tensor was
// submitted, in a job that tolerates stragglers; in another one the newest result of each chunk,
// for ranks that lack it when the appliance is lost. One step's worth of memory, allocated at the
// join.
//
// Results of later steps are not kept: they are pulled when their step is applied, so a straggler
// does not need as many models of memory as the window has steps. It knows chunks, no tensors.
// Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/types.h"
#include "client/core/sums/average.h"

namespace sluice::client {

// A chunk's result. Its mask and k concern others: they are kept for jobs with k < n that may lose
// their appliance.
struct ChunkResult {
  // As it came: dense, or the entry of a sparse packet, which is shorter.
  std::span<const std::uint8_t> payload;
  bool is_entry = false;  // of no bytes: all is zero
  bool absent = false;    // nobody contributed data
  Summed summed;
  std::span<const std::uint64_t> mask;
  Step step = 0;
  std::uint16_t k = 0;
  bool non_finite = false;
  bool counted = false;  // this rank is in its mask
};

class ReceiveArena {
 public:
  // `mask_word_count`: of the masks that it keeps as well.
  ReceiveArena(ChunkIndex chunk_count, std::size_t chunk_bytes, std::size_t mask_word_count = 0)
      : chunk_bytes_(chunk_bytes),
        mask_word_count_(mask_word_count),
        entries_(chunk_count),
        masks_(chunk_count * mask_word_count),
        data_(std::make_unique<std::uint8_t[]>(chunk_count * chunk_bytes)) {}

  void clear() noexcept { std::fill(entries_.begin(), entries_.end(), Entry{}); }
  bool has(ChunkIndex chunk) const noexcept { return entries_[chunk].present; }
  // Nobody contributed data to the chunk; kept for all chunks of the step, stored here or not.
  void note_absent(ChunkIndex chunk) noexcept { entries_[chunk].absent = true; }
  bool absent(ChunkIndex chunk) const noexcept { return entries_[chunk].absent; }
  // False: it is here already.
  bool store(ChunkIndex chunk, const ChunkResult& result) noexcept {
    if (entries_[chunk].present) return false;
    replace(chunk, result);
    return true;
  }
  // As store(), in the place of the one that is here.
  void replace(ChunkIndex chunk, const ChunkResult& result) noexcept {
    CHECK(chunk < entries_.size() && result.payload.size() <= chunk_bytes_);
    Entry& entry = entries_[chunk];
    entry = {.summed = result.summed,
             .step = result.step,
             .k = result.k,
             .bytes = static_cast<std::uint16_t>(result.payload.size()),
             .non_finite = result.non_finite,
             .counted = result.counted,
             .present = true,
             .absent = result.absent,
             .is_entry = result.is_entry};
    CHECK(mask_word_count_ == 0 || result.mask.size() <= mask_word_count_);
    std::copy_n(result.mask.begin(), mask_word_count_ == 0 ? 0 : result.mask.size(),
                masks_.begin() + static_cast<std::ptrdiff_t>(chunk * mask_word_count_));
    if (!result.payload.empty())
      std::memcpy(&data_[chunk * chunk_bytes_], result.payload.data(), result.payload.size());
  }
  // Precondition: has(chunk).
  ChunkResult get(ChunkIndex chunk) const noexcept {
    DCHECK(has(chunk));
    const Entry& entry = entries_[chunk];
    return {.payload = {&data_[chunk * chunk_bytes_], entry.bytes},
            .is_entry = entry.is_entry,
            .absent = entry.absent,
            .summed = entry.summed,
            .mask = std::span(masks_).subspan(chunk * mask_word_count_, mask_word_count_),
            .step = entry.step,
            .k = entry.k,
            .non_finite = entry.non_finite,
            .counted = entry.counted};
  }

 private:
  struct Entry {
    Summed summed;
    Step step = 0;
    std::uint16_t k = 0;
    std::uint16_t bytes = 0;
    bool non_finite = false;
    bool counted = false;
    bool present = false;
    bool absent = false;
    bool is_entry = false;
  };
  static_assert(sizeof(Entry) == 32, "`plan` and docs/sizing.md count it for each chunk");
  const std::size_t chunk_bytes_;
  const std::size_t mask_word_count_;
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> masks_;
  std::unique_ptr<std::uint8_t[]> data_;
};

}  // namespace sluice::client

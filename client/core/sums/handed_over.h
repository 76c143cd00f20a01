// The part of a worker in the step that its appliance was lost in, chunk by chunk, at the next one:
// which of its results it gives to others, takes, or has.
//
// handover/resumption.h decides; gradients_resume.cc notes it here and sends. Pure; the session's
// thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/base/types.h"

namespace sluice::client {

class HandedOver {
 public:
  HandedOver() = default;  // no step is handed over
  HandedOver(Step step, ChunkIndex chunk_count) : step_(step) {
    CHECK(step != 0);
    const std::size_t words = (chunk_count + kChunksPerBlock - 1) / kChunksPerBlock;
    for (auto* const chunks : {&held_, &here_, &given_}) chunks->resize(words);
  }

  bool any() const noexcept { return step_ != 0; }
  Step step() const noexcept { return step_; }

  // Some rank has the chunk's result. `here`: this worker has, and the chunk is closed by
  // close_one(). `gives`: it is the one that gives it.
  void add(ChunkIndex chunk, bool here, bool gives) noexcept {
    CHECK(any() && !holds(chunk) && (here || !gives));
    held_[word_of(chunk)] |= chunk_bit(chunk);
    if (here) here_[word_of(chunk)] |= chunk_bit(chunk);
    if (gives) given_[word_of(chunk)] |= chunk_bit(chunk);
    here_left_ += here;
  }
  bool holds(ChunkIndex chunk) const noexcept { return any() && has(held_, chunk); }
  bool is_here(ChunkIndex chunk) const noexcept { return any() && has(here_, chunk); }
  bool gives(ChunkIndex chunk) const noexcept { return any() && has(given_, chunk); }

  // The appliance has closed a chunk whose result this worker has.
  void close_one() noexcept {
    CHECK(here_left_ != 0);
    --here_left_;
  }
  // No other rank needs this worker's part any more.
  bool is_over() const noexcept { return here_left_ == 0; }

 private:
  static std::size_t word_of(ChunkIndex chunk) noexcept { return chunk / kChunksPerBlock; }
  static bool has(const std::vector<std::uint64_t>& words, ChunkIndex chunk) noexcept {
    return has_chunk(words[word_of(chunk)], chunk);
  }

  Step step_ = 0;                    // 0: none
  std::vector<std::uint64_t> held_;  // by some rank: given, taken or neither
  std::vector<std::uint64_t> here_;
  std::vector<std::uint64_t> given_;
  std::uint32_t here_left_ = 0;  // of those here, those that are not closed
};

}  // namespace sluice::client

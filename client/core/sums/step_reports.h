// What the results of the step under way have said of the ranks in them, and of the last steps.
//
// Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/types.h"

namespace sluice::client {

class StepReports {
 public:
  explicit StepReports(std::uint16_t world_size) noexcept
      : mask_words_(static_cast<std::uint16_t>(mask_words(world_size))) {}

  // A packet of results of the step under way, the first of which is of `chunk`, has come.
  // `members`: the ranks in its mask.
  void add(const wire::Packet& packet, ChunkIndex chunk, std::uint16_t members) noexcept {
    const auto& body = packet.body<wire::ResultHeader>();
    DCHECK(open_.step == 0 || open_.step == body.step);
    if (members != 0 && chunk < open_.first_chunk) {
      open_.first_chunk = chunk;
      open_.first_members = members;
      open_.first_may_count = body.may_count;
    }
    const bool first = open_.step == 0;
    open_.step = body.step;
    open_.k = first ? body.k : std::min(open_.k, std::uint16_t{body.k});
    open_.weight = first ? body.weight : std::min(open_.weight, std::uint64_t{body.weight});
    open_.mask_words = mask_words_;
    for (std::size_t word = 0; word < mask_words_; ++word) {
      const std::uint64_t ranks = word < packet.mask_word_count() ? packet.mask_word(word) : 0;
      open_.in_every[word] = first ? ranks : open_.in_every[word] & ranks;
      open_.in_any[word] |= ranks;
      DCHECK((open_.in_every[word] & ~open_.in_any[word]) == 0);
    }
  }
  // Of the step under way; its step is 0 while no result has come.
  const StepReport& open() const noexcept { return open_; }
  void close(Step step) noexcept { closed_[step % kReportedSteps] = std::exchange(open_, {}); }
  void abandon() noexcept { open_ = {}; }

  // Null: it is none of the last, or no result of it was wanted.
  const StepReport* of(Step step) const noexcept {
    const StepReport& report = closed_[step % kReportedSteps];
    return step != 0 && report.step == step ? &report : nullptr;
  }
  // Its step is 0 while there is none.
  const StepReport* last() const noexcept {
    return &*std::ranges::max_element(closed_, {}, &StepReport::step);
  }

 private:
  const std::uint16_t mask_words_;
  StepReport open_;
  std::array<StepReport, kReportedSteps> closed_{};
};

}  // namespace sluice::client

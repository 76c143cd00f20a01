// What a member's sequence does with results and answers.
#include <algorithm>
#include <bit>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "client/core/operations/sequence.h"

namespace sluice::client {

Verdict Sequence::handle_result(const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::PartResult>();
  const std::uint64_t chunk = wire::unwrap(body.chunk, group_floor_);
  if (chunk < group_floor_) {
    ++link_.counters.duplicate_results;
    return Verdict::kTooOld;
  }
  if (chunk >= admitted_) {  // it is not called, or the floor is not known yet: pulled later
    if (chunk < group_floor_ + 2 * capacity_) passed_ = std::max(passed_, chunk + 1);
    return Verdict::kTooNew;
  }
  OpenCall* const call = find(chunk);
  if (call != nullptr && was_over_.has(chunk))
    over(*call, chunk, now);  // it need not be given any more
  if (call == nullptr || !call->wants(group_, chunk) || !recovery_->lacks(place_of(chunk))) {
    ++link_.counters.duplicate_results;
    return Verdict::kDuplicate;
  }
  if (body.hash != call->hash) {
    // Whoever gave it has called something else: nothing more is to be had of this chunk, and shard
    // 0 ends the call.
    doubtful_ = call->number;
    call->differs_from = std::min(call->differs_from, chunk);
    if (group_.survives) foreign_.push_back(chunk);
    recovery_->result(place_of(chunk), now, link_.flows[shard_of(chunk)]);
    return Verdict::kCollectiveMismatch;
  }
  if (body.payload_bytes != call->cut.bytes_of(chunk - call->first)) return Verdict::kShapeMismatch;
  if (body.feedback.flags & wire::kFlagNonFinite) {
    call->non_finite = true;
    ++link_.counters.non_finite_results;
  }
  call->read_result(group_, chunk, packet.payload(), body.feedback.flags & wire::kFlagMean);
  over(*call, chunk, now);
  return call->left == 0 ? Verdict::kCompleted : Verdict::kFolded;
}

Verdict Sequence::handle_answer(const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::PartAnswer>();
  if (!in_use()) return Verdict::kNotStarted;
  const std::uint64_t first = wire::unwrap(body.first, group_floor_);
  const std::uint32_t block = place_of(first) / kChunksPerBlock;
  if (first % kChunksPerBlock != 0) return Verdict::kBadChunk;
  if (rounds_[block] != first / capacity_) return Verdict::kProbe;  // of what is over
  const std::uint16_t shard = shard_of(first);
  const wire::Answer answer{.block = block,
                            .counted = body.counted,
                            .complete = body.complete,
                            .probe_number = body.probe_number};
  const std::uint64_t lost = recovery_->answer(answer, now, link_.flows[shard]);
  for (std::uint64_t rest = recovery_->unwanted(block, body.counted | body.complete); rest != 0;
       rest &= rest - 1) {
    const std::uint64_t chunk = first + static_cast<std::uint64_t>(std::countr_zero(rest));
    OpenCall* const call = find(chunk);
    CHECK(call != nullptr);
    over(*call, chunk, now);
  }
  send_again(block, lost);
  return Verdict::kProbe;
}

void Sequence::lose(std::uint16_t shard, std::uint32_t number) noexcept {
  if (!in_use()) return;
  const Recovery::Lost lost = recovery_->lose(shard, number, link_.flows[shard]);
  if (lost.chunks != 0) send_again(lost.block, lost.chunks);
}

void Sequence::send_again(std::uint32_t block, std::uint64_t chunks) noexcept {
  const std::uint64_t first = rounds_[block] * capacity_ + std::uint64_t{block} * kChunksPerBlock;
  for (; chunks != 0; chunks &= chunks - 1)
    again_[shard_of(first)].push_back(first + static_cast<std::uint64_t>(std::countr_zero(chunks)));
}

// A part whose result is not wanted has arrived, as far as feedback can tell: an answer decides.
void Sequence::confirm_arrived(std::uint16_t shard) noexcept {
  std::deque<Departure>& departures = departures_[shard];
  while (!departures.empty() && link_.flows[shard].all_arrived_up_to(departures.front().number)) {
    recovery_->confirm(departures.front().block);
    departures.pop_front();
  }
}

}  // namespace sluice::client

// Results of an appliance that is lost, in a job with k < n: which bind, and how they are given.
#include <utility>

#include "tests/sim/oracle.h"

namespace sluice::sim {

std::uint64_t Oracle::Run::take_back(const Summed& result, const Place& place) {
  std::uint64_t late = 0;
  step_k.erase(place.step);
  result.mask.without(result.users).for_each([&](Rank rank) {
    const auto found = sent.find(contribution_key(place.stream, place.step, place.chunk, rank));
    if (found == sent.end() || found->second.nil) return;
    const Sent& one = found->second;
    const auto counted =
        counted_in.find(contribution_key(place.stream, one.base_step, place.chunk, rank));
    // Another process of the rank may have sent something there since.
    if (counted == counted_in.end() || counted->second.process != one.process) return;
    counted_in.erase(counted);
    Books& own = books[one.process];
    const client::ChunkSpan span = layout->chunk(place.chunk);
    for (std::size_t i = 0; i < one.values.size() && one.base_step > own.given_up_to; ++i)
      own.undelivered[span.tensor][span.first_elem + i] += one.values[i];
    const bool is_late = one.base_step != place.step;
    --(is_late ? own.sums.requeued : own.sums.delivered);
    late += is_late;
  });
  return late;
}

void Oracle::on_result_used(const Party& party, const wire::Packet& packet) {
  const auto& body = packet.body<wire::ResultHeader>();
  const ChunkIndex block = body.chunk - body.chunk % kChunksPerBlock;
  for (std::uint64_t rest = packet.chunks(); rest != 0; rest &= rest - 1) {
    const ChunkIndex chunk = block + static_cast<ChunkIndex>(std::countr_zero(rest));
    const auto found =
        runs_[party.run]->summed.find(slot_key(StreamId::kGradients, body.step, chunk));
    if (found != runs_[party.run]->summed.end()) found->second.users.add(party.rank);
  }
}

// A rank gives a result as a lost appliance has sent it.
void Oracle::check_held(Run& run, const Party& from, const wire::Packet& packet) {
  const auto& body = packet.body<wire::Held>();
  if (body.chunk == wire::kNoChunk) return;
  const auto found = run.summed.find(slot_key(StreamId::kGradients, body.step, body.chunk));
  RankSet mask;
  for (std::size_t i = 0; i < packet.mask_word_count(); ++i) mask.set_word(i, packet.mask_word(i));
  const std::uint64_t payload_hash = hash_values(packet.payload(), body.dtype, body.elem_count);
  if (found == run.summed.end() || !(found->second.mask == mask) ||
      found->second.weight != body.weight || found->second.k != body.k ||
      found->second.may_count != body.may_count || found->second.payload_hash != payload_hash)
    return violation("I2: rank " + std::to_string(from.rank.value) + " gives another result of " +
                     name(run, {StreamId::kGradients, body.step, body.chunk}) + " than was sent");
  if (std::exchange(found->second.given_boot, boot_) != boot_) ++totals_.handed_over;
}

}  // namespace sluice::sim

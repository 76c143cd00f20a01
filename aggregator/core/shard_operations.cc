// The packets of groups. operations/operations.h decides about them; this file takes them apart,
// writes what it wants sent, and passes on what it asks of the control side.
#include <algorithm>
#include <array>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// A sequence of a group, in Reply::step. Reply::block is the first chunk of the block there.
constexpr Step reply_step(std::uint16_t group, wire::Sequence sequence) noexcept {
  return static_cast<Step>(group) << 8 | static_cast<Step>(sequence);
}
constexpr std::uint16_t group_of(const Reply& reply) noexcept {
  return static_cast<std::uint16_t>(reply.step >> 8);
}
constexpr wire::Sequence sequence_of(const Reply& reply) noexcept {
  return static_cast<wire::Sequence>(reply.step & 0xFF);
}

}  // namespace

Verdict Shard::take_group_packet(Job& job, const wire::Packet& packet) noexcept {
  JobSlice& slice = job.slices[id_.value];
  if (slice.operations == nullptr) return Verdict::kBadType;
  if (!job.started()) return Verdict::kNotStarted;
  const Rank rank{packet.common().rank};
  Verdict verdict = Verdict::kAccepted;
  if (packet.type() == wire::PacketType::kPart) {
    verdict = slice.operations->part(rank, packet.body<wire::Part>(), packet.payload());
    if (use_of(verdict) == PacketUse::kUseful) {
      slice.contributions.add(1);
      slice.flows[rank.value].included.add(1);
    }
  } else if (packet.type() == wire::PacketType::kCall) {
    verdict = slice.operations->call(rank, packet.body<wire::Call>());
  } else {
    verdict = slice.operations->floors(rank, packet.body<wire::Floors>());
  }
  follow_groups(job);
  return verdict;
}

Verdict Shard::probe_parts(Job& job, const wire::Packet& packet) noexcept {
  JobSlice& slice = job.slices[id_.value];
  if (slice.operations == nullptr) return Verdict::kBadType;
  const auto& body = packet.body<wire::PartProbe>();
  const Rank rank{packet.common().rank};
  const Verdict verdict = slice.operations->probe(rank, body);
  follow_groups(job);
  if (verdict != Verdict::kProbe) return verdict;
  return queue_reply(job, rank,
                     {.asked = body.want,
                      .step = reply_step(body.group.group, body.group.sequence),
                      .block = body.first,
                      .probe_number = body.flow.number,
                      .stream = StreamId::kOperations});
}

void Shard::handle_groups(Job& job, const ShardCommand& command) noexcept {
  OperationShard& operations = *job.slices[id_.value].operations;
  const OperationsRequest& what = command.groups;
  CHECK(what.group != nullptr);
  if (command.kind == ShardCommand::Kind::kAddGroup) return operations.add(*what.group);
  if (command.kind == ShardCommand::Kind::kRemoveGroup) return operations.remove(*what.group);
  switch (what.kind) {
    case OperationsRequest::Kind::kReserve:
      operations.grow(*what.group, what.sequence, what.slots);
      break;
    case OperationsRequest::Kind::kHold: operations.hold(what); break;
    case OperationsRequest::Kind::kSettled: operations.settled(*what.group); break;
    case OperationsRequest::Kind::kBreak: operations.remove_member(what.rank, what.group); break;
    case OperationsRequest::Kind::kLeave:
      operations.remove_member(what.rank, what.group, static_cast<std::uint32_t>(what.first));
      break;
  }
  follow_groups(job);
}

// After any call that may have left something to send or to ask.
void Shard::follow_groups(Job& job) noexcept {
  JobSlice& slice = job.slices[id_.value];
  requests_pending_ |= slice.operations->has_requests();
  for (Rank rank; slice.operations->poll_noticed(rank);) give_turn(job, rank);
  if (slice.operations_active || !slice.operations->has_results()) return;
  CHECK(active_count_ < active_.size());
  slice.operations_active = true;
  active_[(active_head_ + active_count_++) % active_.size()] = {&job, StreamId::kOperations};
}

// The requests of groups wait in their shards, where each has room.
bool Shard::take_request(ShardEvent& event) noexcept {
  if (!requests_pending_) return false;
  for (Job* const job : jobs_) {
    if (job == nullptr || job->slices[id_.value].operations == nullptr) continue;
    event = {.kind = ShardEvent::Kind::kGroupsRequest, .job = job};
    if (job->slices[id_.value].operations->poll_request(event.groups)) return true;
  }
  requests_pending_ = false;
  return false;
}

// Its turn among the results, as long as that of a sum, whose result is sent to all members.
std::size_t Shard::send_parts(Job& job, std::span<Transmit> burst, TimeNs now) noexcept {
  JobSlice& slice = job.slices[id_.value];
  DCHECK(slice.operations_active && !burst.empty());
  const std::size_t turn = std::min<std::size_t>(burst.size(), job.spec.world_size);
  std::size_t count = 0;
  for (PartOut part; count < turn && slice.operations->poll_result(part);)
    if (flow_that_may_get(job, StreamId::kOperations, 0, part.rank) != nullptr)
      count += write_part(job, part, 0, burst[count], now);
  slice.results_sent.add(count);
  slice.operations_active = slice.operations->has_results();
  return count;
}

// The payload stays in the slot, and its sum is known. False: it does not fit.
bool Shard::write_part(Job& job, const PartOut& part, std::uint8_t flags, Transmit& transmit,
                       TimeNs now) noexcept {
  const std::span<std::uint8_t> out = transmit.buffer;
  wire::PartResult body{
      .group = job.slices[id_.value].operations->state_for(*part.group, part.sequence, part.rank),
      .chunk = static_cast<std::uint32_t>(part.chunk),
      .hash = part.hash,
      .payload_bytes = static_cast<std::uint16_t>(part.payload.size())};
  if (out.size() < wire::packet_bytes(sizeof body, 0, part.payload.size())) return false;
  body.feedback.priority = part.priority;
  body.feedback.flags = flags;
  if (!part.finite) body.feedback.flags |= wire::kFlagNonFinite;
  if (part.divided) body.feedback.flags |= wire::kFlagMean;
  fill_feedback(job, flow_to(job, part.rank), body.feedback, now);
  transmit = {.buffer = out, .job = job.spec.id, .rank = part.rank, .priority = part.priority};
  transmit.bytes = wire::encode(out, sender_of(job, part.rank), body);
  CHECK(transmit.bytes != 0 && transmit.bytes % 2 == 0);
  transmit.sum = wire::sum_bytes(out.first(transmit.bytes)) + wire::PartialSum{part.payload_sum};
  transmit.shared = part.payload;
  return true;
}

bool Shard::write_pulled_part(Job& job, Rank rank, const Reply& reply, std::uint32_t index,
                              Transmit& transmit, TimeNs now) noexcept {
  OperationShard& operations = *job.slices[id_.value].operations;
  const Group* const group = operations.find(group_of(reply));
  PartOut part;
  return group != nullptr && group->place_of[rank.value] != Group::kNoPlace &&
         operations.read(*group, sequence_of(reply), reply.block, index, rank, part) &&
         write_part(job, part, wire::kFlagPulled, transmit, now);
}

// Cold: recovery only. Also promises the results that are asked for and exist.
std::size_t Shard::write_part_answer(Job& job, Rank rank, Reply& reply, std::span<std::uint8_t> out,
                                     TimeNs now) noexcept {
  OperationShard& operations = *job.slices[id_.value].operations;
  const Group* const group = operations.find(group_of(reply));
  if (group == nullptr || group->place_of[rank.value] == Group::kNoPlace) {
    reply.want = 0;
    return 0;
  }
  const OperationShard::BlockState state =
      operations.block_state(*group, sequence_of(reply), reply.block, rank);
  reply.priority = state.priority;
  reply.want &= state.complete;
  wire::PartAnswer body{.group = operations.state_for(*group, sequence_of(reply), rank),
                        .first = reply.block,
                        .counted = state.counted,
                        .complete = state.complete,
                        .probe_number = reply.probe_number};
  fill_feedback(job, flow_to(job, rank), body.feedback, now);
  body.feedback.priority = reply.priority;
  return wire::encode(out, sender_of(job, rank), body);
}

// What shard 0 has to tell a member. False: nothing.
bool Shard::write_notice(Job& job, Rank rank, Transmit& transmit, TimeNs now) noexcept {
  OperationShard& operations = *job.slices[id_.value].operations;
  GroupNotice notice;
  const bool some = operations.has_notice(rank) && operations.poll_notice(rank, notice);
  requests_pending_ |= operations.has_requests();
  if (!some) return false;
  const std::span<std::uint8_t> out = transmit.buffer;
  const wire::GroupState state = operations.state_for(*notice.group, notice.sequence, rank);
  if (notice.is_outcome) {
    wire::Outcome& body = notice.outcome;
    body.group = state;
    fill_feedback(job, flow_to(job, rank), body.feedback, now);
    const auto* const behind = reinterpret_cast<const std::uint8_t*>(notice.behind.data());
    transmit.bytes = wire::encode(out, sender_of(job, rank), body, {},
                                  {behind, body.behind_count * sizeof(wire::Behind)});
  } else {
    notice.floor.group = state;
    fill_feedback(job, flow_to(job, rank), notice.floor.feedback, now);
    transmit.bytes = wire::encode(out, sender_of(job, rank), notice.floor);
  }
  transmit.sum = wire::sum_bytes(out.first(transmit.bytes));
  return transmit.bytes != 0;
}

}  // namespace sluice::agg

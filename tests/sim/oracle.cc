#include "tests/sim/oracle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "aggregator/core/fold.h"
#include "tests/sim/random.h"

namespace sluice::sim {

std::uint64_t hash_bytes(std::span<const std::uint8_t> bytes, std::uint64_t seed) {
  std::uint64_t hash = mix(seed ^ bytes.size());
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = std::rotl(hash ^ word, 23) * 0x9E3779B97F4A7C15u;
  }
  std::uint64_t word = 0;
  if (at < bytes.size()) std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return mix(hash ^ word);
}

std::uint64_t hash_values(std::span<const std::uint8_t> payload, Dtype dtype,
                          std::size_t elem_count) {
  if (dtype != Dtype::kInt8 || payload.empty()) return hash_bytes(payload);
  std::vector<float> values(elem_count);
  agg::fold_store(values.data(), payload.data(), elem_count, dtype);
  return hash_bytes(
      {reinterpret_cast<const std::uint8_t*>(values.data()), elem_count * sizeof(float)});
}

RunIndex Oracle::add_run(const JobPlan& plan, const client::Layout& layout) {
  runs_.push_back(std::make_unique<Run>());
  runs_.back()->plan = &plan;
  runs_.back()->layout = &layout;
  runs_.back()->reached.resize(plan.world_size());
  return static_cast<RunIndex>(runs_.size() - 1);
}

void Oracle::note_restart(RunIndex run) {
  ++boot_;
  // The steps of collectives begin anew, with what ranks say to each other.
  const auto is_of_pieces = [](const auto& entry) {
    return entry.first >> 60 != static_cast<std::uint64_t>(StreamId::kGradients);
  };
  runs_[run]->resumes = true;
  std::erase_if(runs_[run]->sent, is_of_pieces);
  std::erase_if(runs_[run]->summed, is_of_pieces);
}

void Oracle::violation(std::string text) {
  if (violations_.size() < 20) violations_.push_back(std::move(text));
}

std::string Oracle::name(const Run& run, const Place& place) const {
  return "job " + run.plan->name + " stream " + std::to_string(static_cast<int>(place.stream)) +
         " step " + std::to_string(place.step) + " chunk " + std::to_string(place.chunk);
}

const Oracle::Sent* Oracle::find_sent(const Run& run, StreamId stream, Step step, ChunkIndex chunk,
                                      Rank rank) const {
  const auto found = run.sent.find(contribution_key(stream, step, chunk, rank));
  return found == run.sent.end() ? nullptr : &found->second;
}

void Oracle::on_worker_packet(const Party& from, std::uint16_t shard, std::uint64_t pump,
                              const wire::Packet& packet, Appliance at) {
  Run& run = *runs_[from.run];
  Flow& flow = run.flows[{from.rank.value, packet.common().cookie, shard}];
  const wire::FlowHeader& header = packet.flow();
  if (header.number != flow.worker_number + 1)
    violation("I5: rank " + std::to_string(from.rank.value) + " sent packet number " +
              std::to_string(header.number) + " after " + std::to_string(flow.worker_number));
  flow.worker_number = header.number;
  flow.credit = std::max(flow.credit, header.credit);
  if (at == Appliance::kNowhere) return;
  if (packet.type() == wire::PacketType::kContribution)
    on_contribution(run, from, flow, pump, packet);
  if (packet.type() == wire::PacketType::kPiece) on_piece(run, from, packet);
  if (packet.type() == wire::PacketType::kHeld) check_held(run, from, packet);
  if (packet.type() == wire::PacketType::kFinished)
    check_finished(run, from, packet.body<wire::Finished>());
}

void Oracle::on_contribution(Run& run, const Party& from, Flow& flow, std::uint64_t pump,
                             const wire::Packet& packet) {
  const auto& body = packet.body<wire::Contribution>();
  Sent sent;
  sent.weight = body.weight;
  sent.nil = (body.flow.flags & wire::kFlagNil) != 0;
  sent.base_step = body.base_step;
  sent.process = from.process;
  // A pass says the same under any base step.
  const Step base = sent.nil && sent.base_step != body.step ? 0 : body.base_step;
  const bool rounded = (body.flow.flags & wire::kFlagRounded) != 0;
  bool fresh = false;
  for_each_chunk(packet, body, body.flow.flags, [&](ChunkIndex chunk, auto payload) {
    const bool known = chunk < run.layout->chunk_count();
    sent.values.clear();
    if (!sent.nil && known && run.plan->is_lossy(run.layout->chunk(chunk).tensor)) {
      sent.values.resize(body.elem_count);
      agg::fold_store(sent.values.data(), payload.data(), body.elem_count, body.dtype);
    }
    sent.payload_hash = hash_values(payload, body.dtype, body.elem_count);
    sent.content_hash = mix(sent.payload_hash, body.weight, body.elem_count, sent.nil, base,
                            static_cast<std::uint64_t>(body.dtype), rounded);
    if (!is_first(run, from, {StreamId::kGradients, body.step, chunk}, sent)) return;
    fresh = true;
    check_contribution(run, from, chunk, body, payload);
  });
  if (!fresh) return;
  const Place place{StreamId::kGradients, body.step, body.chunk};
  const Priority priority = body.flow.priority;
  const bool strict = run.plan->session.schedule.policy == client::Schedule::kStrict;
  if (strict && flow.pump == pump && priority < flow.last_fresh_priority)
    violation("I6: rank " + std::to_string(from.rank.value) + " sent priority " +
              std::to_string(flow.last_fresh_priority) + " before " + std::to_string(priority) +
              " at " + name(run, place));
  flow.pump = pump;
  flow.last_fresh_priority = priority;
}

void Oracle::on_piece(Run& run, const Party& from, const wire::Packet& packet) {
  const auto& body = packet.body<wire::Piece>();
  const wire::Operation operation = body.operation;
  Sent sent;
  sent.nil = packet.payload().empty();
  sent.process = from.process;
  sent.cookie = packet.common().cookie;
  sent.payload_hash = hash_bytes(packet.payload());
  sent.content_hash = mix(sent.payload_hash, operation.size_bytes, operation.root,
                          static_cast<std::uint64_t>(operation.kind));
  is_first(run, from, {wire::stream_of(operation.kind), body.step, body.chunk}, sent);
}

// Keeps what the rank sends there. False: it has sent it before.
bool Oracle::is_first(Run& run, const Party& from, const Place& place, const Sent& sent) {
  ++totals_.contributions_seen;
  const auto [found, fresh] = run.sent.try_emplace(
      contribution_key(place.stream, place.step, place.chunk, from.rank), sent);
  const std::uint32_t states = run.states[from.process];
  // A job that begins anew at an appliance counts transfers of state from the first step on.
  const bool begins = place.stream == StreamId::kState && found->second.cookie != sent.cookie;
  if (!fresh &&
      (found->second.process != from.process || found->second.states != states || begins)) {
    // What the old process sends after it was replaced counts nowhere. What it sent before is lost
    // if the new one has to send it again, or the same one from another rank's state.
    if (from.process < found->second.process) return false;
    found->second = sent;
  } else if (!fresh) {
    // To another appliance it is sent again, or its result is.
    totals_.first_contributions += std::exchange(found->second.boot, boot_) != boot_;
    if (found->second.content_hash != sent.content_hash && !hands_over(run, from, place, sent))
      violation("I1: rank " + std::to_string(from.rank.value) + " sent two versions of " +
                name(run, place));
    return false;
  }
  found->second.states = states;
  found->second.boot = boot_;
  ++totals_.first_contributions;
  return true;
}

// The result is one that another appliance has sent, and the rank gives it alone, or adds nothing.
bool Oracle::hands_over(Run& run, const Party& from, const Place& place, const Sent& sent) {
  const auto found = run.summed.find(slot_key(place.stream, place.step, place.chunk));
  if (found == run.summed.end() || found->second.first_boot == boot_) return false;
  Summed& summed = found->second;
  const bool gives = !sent.nil || sent.weight != 0;
  if (!gives) return true;
  if (sent.weight != summed.weight || sent.nil != summed.nil ||
      (!sent.nil && sent.payload_hash != summed.payload_hash))
    return false;
  if (std::exchange(summed.given_boot, boot_) != boot_) {
    summed.given_by = from.rank;
    ++totals_.handed_over;
  }
  return summed.given_by == from.rank;
}

void Oracle::on_appliance_packet(const Party& to, std::uint16_t shard, const wire::Packet& packet,
                                 Appliance at) {
  Run& run = *runs_[to.run];
  Flow& flow = run.flows[{to.rank.value, packet.common().cookie, shard}];
  const wire::FeedbackHeader& feedback = packet.feedback();
  if (feedback.number != flow.appliance_number + 1)
    violation("I5: shard " + std::to_string(shard) + " sent packet number " +
              std::to_string(feedback.number) + " after " + std::to_string(flow.appliance_number) +
              " to rank " + std::to_string(to.rank.value));
  flow.appliance_number = feedback.number;
  if (at == Appliance::kNowhere) return;
  note_open_step(run, feedback.open_step);
  const bool is_values = packet.type() == wire::PacketType::kValues;
  if (packet.type() != wire::PacketType::kResult &&
      packet.type() != wire::PacketType::kPieceResult && !is_values)
    return;
  if ((feedback.flags & wire::kFlagPulled) == 0 && feedback.number > flow.credit)
    violation("I5: result number " + std::to_string(feedback.number) + " is beyond the credit " +
              std::to_string(flow.credit) + " of rank " + std::to_string(to.rank.value));
  if (is_values) return;  // see StoreOracle
  const Outcome outcome = outcome_of(packet);
  const std::uint32_t boot = boot_ - (at == Appliance::kBefore);
  if (outcome.stream != StreamId::kGradients)
    return on_result(run, to, packet, outcome, packet.payload(), boot);
  for_each_chunk(packet, outcome, outcome.flags, [&](ChunkIndex chunk, auto payload) {
    Outcome one = outcome;
    one.chunk = chunk;
    on_result(run, to, packet, one, payload, boot);
  });
}

}  // namespace sluice::sim

#include "tests/sim/oracle.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/sim/random.h"

namespace sluice::sim {
namespace {

std::uint64_t slot_key(StreamId stream, Step step, ChunkIndex chunk) {
  return std::uint64_t{static_cast<std::uint8_t>(stream)} << 60 |
         std::uint64_t{step & 0xfffff} << 40 | std::uint64_t{chunk & 0xffffff} << 16;
}
std::uint64_t contribution_key(StreamId stream, Step step, ChunkIndex chunk, Rank rank) {
  return slot_key(stream, step, chunk) | (rank.value & 0xffffu);
}

// Who has to be in every result of this gradient step while k = n: all but those who left in order.
bool required(const JobPlan& plan, Rank rank, Step step) {
  const RankPlan& rank_plan = plan.ranks[rank.value];
  return step <= rank_plan.last_step || rank_plan.ending != Ending::kLeave;
}

}  // namespace

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

RunIndex Oracle::add_run(const JobPlan& plan, const client::Layout& layout) {
  runs_.push_back(std::make_unique<Run>());
  runs_.back()->plan = &plan;
  runs_.back()->layout = &layout;
  return static_cast<RunIndex>(runs_.size() - 1);
}

void Oracle::violation(std::string text) {
  if (violations_.size() < 20) violations_.push_back(std::move(text));
}

std::string Oracle::name(const Run& run, StreamId stream, Step step, ChunkIndex chunk) const {
  return "job " + run.plan->name + " stream " + std::to_string(static_cast<int>(stream)) +
         " step " + std::to_string(step) + " chunk " + std::to_string(chunk);
}

std::optional<std::uint64_t> Oracle::result_weight(RunIndex run, StreamId stream, Step step,
                                                   ChunkIndex chunk) const {
  const auto found = runs_[run]->summed.find(slot_key(stream, step, chunk));
  if (found == runs_[run]->summed.end()) return std::nullopt;
  return found->second.weight;
}

void Oracle::on_worker_packet(RunIndex run_index, Rank rank, std::uint16_t shard,
                              std::uint64_t pump, const wire::Packet& packet) {
  Run& run = *runs_[run_index];
  Flow& flow = run.flows[{rank.value, packet.common().cookie, shard}];
  // The flow header is the first thing in every worker data packet.
  const auto& header =
      packet.type() == wire::PacketType::kContribution ? packet.body<wire::Contribution>().flow
      : packet.type() == wire::PacketType::kProbe      ? packet.body<wire::Probe>().flow
                                                       : packet.body<wire::Credit>().flow;
  if (header.number != flow.worker_number + 1)
    violation("I5: rank " + std::to_string(rank.value) + " sent packet number " +
              std::to_string(header.number) + " after " + std::to_string(flow.worker_number));
  flow.worker_number = header.number;
  flow.credit = std::max(flow.credit, header.credit);
  if (packet.type() == wire::PacketType::kContribution)
    on_contribution(run, rank, flow, pump, packet);
}

void Oracle::on_contribution(Run& run, Rank rank, Flow& flow, std::uint64_t pump,
                             const wire::Packet& packet) {
  const auto& body = packet.body<wire::Contribution>();
  ++contributions_seen_;
  Sent sent;
  sent.weight = body.weight;
  sent.nil = (body.flags & wire::kFlagNil) != 0;
  sent.payload_hash = hash_bytes(packet.payload());
  sent.content_hash = mix(sent.payload_hash, body.weight, body.elem_count, sent.nil, body.base_step,
                          static_cast<std::uint64_t>(body.dtype));
  const auto [found, fresh] =
      run.sent.try_emplace(contribution_key(body.stream, body.step, body.chunk, rank), sent);
  if (!fresh) {
    if (found->second.content_hash != sent.content_hash)
      violation("I1: rank " + std::to_string(rank.value) + " sent two versions of " +
                name(run, body.stream, body.step, body.chunk));
    return;
  }
  ++first_contributions_;
  if (body.stream != StreamId::kGradients) return;
  if (flow.pump == pump && body.priority < flow.last_fresh_priority)
    violation("I6: rank " + std::to_string(rank.value) + " sent priority " +
              std::to_string(flow.last_fresh_priority) + " before " +
              std::to_string(body.priority) + " at " +
              name(run, body.stream, body.step, body.chunk));
  flow.pump = pump;
  flow.last_fresh_priority = body.priority;
}

void Oracle::on_appliance_packet(RunIndex run_index, Rank rank, std::uint16_t shard,
                                 const wire::Packet& packet) {
  Run& run = *runs_[run_index];
  Flow& flow = run.flows[{rank.value, packet.common().cookie, shard}];
  const wire::FeedbackHeader& feedback =
      packet.type() == wire::PacketType::kResult   ? packet.body<wire::ResultHeader>().feedback
      : packet.type() == wire::PacketType::kAnswer ? packet.body<wire::Answer>().feedback
                                                   : packet.body<wire::Feedback>().feedback;
  if (feedback.number != flow.appliance_number + 1)
    violation("I5: shard " + std::to_string(shard) + " sent packet number " +
              std::to_string(feedback.number) + " after " + std::to_string(flow.appliance_number) +
              " to rank " + std::to_string(rank.value));
  flow.appliance_number = feedback.number;
  if (packet.type() != wire::PacketType::kResult) return;
  const auto& body = packet.body<wire::ResultHeader>();
  if ((body.flags & wire::kFlagPulled) == 0 && feedback.number > flow.credit)
    violation("I5: result number " + std::to_string(feedback.number) + " is beyond the credit " +
              std::to_string(flow.credit) + " of rank " + std::to_string(rank.value));
  on_result(run, rank, packet);
}

void Oracle::on_result(Run& run, Rank rank, const wire::Packet& packet) {
  const auto& body = packet.body<wire::ResultHeader>();
  ++results_sent_;
  const std::uint64_t mask = packet.mask_word_count() > 0 ? packet.mask_word(0) : 0;
  const std::uint8_t flags = body.flags & ~(wire::kFlagPulled | wire::kFlagReport);
  const std::uint64_t content_hash =
      mix(hash_bytes(packet.payload()), mask, body.weight, flags, body.elem_count,
          static_cast<std::uint64_t>(body.dtype), body.k);
  const auto [found, first] = run.summed.try_emplace(slot_key(body.stream, body.step, body.chunk),
                                                     Summed{content_hash, body.weight});
  if (!first) {
    if (found->second.content_hash != content_hash)
      violation("I2: rank " + std::to_string(rank.value) + " gets another result of " +
                name(run, body.stream, body.step, body.chunk) + " than the first receiver");
    return;
  }
  ++results_checked_;
  results_due_ += run.plan->world_size();
  check_members(run, mask, body);
  check_weight(run, mask, body);
  if (body.stream == StreamId::kGradients)
    check_gradient(run, mask, packet);
  else
    check_collective(run, mask, packet);
}

void Oracle::check_members(const Run& run, std::uint64_t mask, const wire::ResultHeader& body) {
  const std::string where = name(run, body.stream, body.step, body.chunk);
  const int count = std::popcount(mask);
  if (count == 0 || count < body.k || body.k == 0)
    violation("I1: " + std::to_string(count) + " workers in the result of " + where + " with k " +
              std::to_string(body.k));
  if (mask >> run.plan->world_size() != 0) violation("I1: unknown rank in the mask of " + where);
  if (body.stream != StreamId::kGradients) return;
  for (std::uint16_t rank = 0; rank < run.plan->world_size(); ++rank)
    if (required(*run.plan, Rank{rank}, body.step) && (mask >> rank & 1) == 0)
      violation("I1: rank " + std::to_string(rank) + " is missing from the result of " + where);
}

void Oracle::check_weight(const Run& run, std::uint64_t mask, const wire::ResultHeader& body) {
  std::uint64_t weight = 0;
  for (std::uint64_t left = mask; left != 0; left &= left - 1) {
    const Rank rank{static_cast<std::uint16_t>(std::countr_zero(left))};
    const auto found = run.sent.find(contribution_key(body.stream, body.step, body.chunk, rank));
    if (found == run.sent.end()) {
      violation("I1: rank " + std::to_string(rank.value) + " is in the result of " +
                name(run, body.stream, body.step, body.chunk) + " but never sent it");
      return;
    }
    weight += found->second.weight;
  }
  if (body.stream == StreamId::kGradients && weight != body.weight)
    violation("I1: weight " + std::to_string(body.weight) + " instead of " +
              std::to_string(weight) + " in the result of " +
              name(run, body.stream, body.step, body.chunk));
}

void Oracle::check_gradient(const Run& run, std::uint64_t mask, const wire::Packet& packet) {
  const auto& body = packet.body<wire::ResultHeader>();
  const JobPlan& plan = *run.plan;
  const std::string where = name(run, body.stream, body.step, body.chunk);
  if (body.chunk >= run.layout->chunk_count()) return violation("I1: no such chunk: " + where);
  const client::ChunkSpan span = run.layout->chunk(body.chunk);
  bool all_nil = true;
  for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
    if ((mask >> rank & 1) != 0 && !plan.is_nil(Rank{rank}, body.step, span.tensor))
      all_nil = false;
  if (!plan.check_values) return;
  if (all_nil != ((body.flags & wire::kFlagNil) != 0))
    return violation("I1: the NIL flag is wrong in the result of " + where);
  if (all_nil) return;
  const Dtype dtype = plan.tensors[span.tensor].dtype;
  const std::size_t elem_bytes = dtype_bytes(dtype);
  if (body.dtype != dtype || packet.payload().size() != span.elem_count * elem_bytes)
    return violation("I1: the shape is wrong in the result of " + where);
  for (std::uint16_t i = 0; i < span.elem_count; ++i) {
    float value = static_cast<float>(plan.sum(mask, body.step, span.tensor, span.first_elem + i));
    if (dtype != Dtype::kFloat32) value /= static_cast<float>(body.weight);
    std::uint8_t expected[4] = {};
    store_element(dtype, value, expected);
    if (std::memcmp(expected, packet.payload().data() + i * elem_bytes, elem_bytes) != 0)
      return violation("I1/I3: element " + std::to_string(i) + " is not the sum of the mask in " +
                       where);
  }
}

void Oracle::check_collective(const Run& run, std::uint64_t mask, const wire::Packet& packet) {
  const auto& body = packet.body<wire::ResultHeader>();
  if (packet.payload().empty()) return;  // a barrier
  const std::string where = name(run, body.stream, body.step, body.chunk);
  if (std::popcount(mask) != 1) return violation("I1: a broadcast of several roots in " + where);
  const Rank root{static_cast<std::uint16_t>(std::countr_zero(mask))};
  const auto found = run.sent.find(contribution_key(body.stream, body.step, body.chunk, root));
  if (found == run.sent.end() || found->second.payload_hash != hash_bytes(packet.payload()))
    violation("I1: not the root's bytes in " + where);
}

}  // namespace sluice::sim

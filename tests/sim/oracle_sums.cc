// The content of every result.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "tests/sim/oracle.h"
#include "tests/sim/random.h"

namespace sluice::sim {
namespace {

// Who may be relied on to be in a gradient step: all but those who have left in order.
bool takes_part(const JobPlan& plan, Rank rank, Step step) {
  const RankPlan& rank_plan = plan.ranks[rank.value];
  const bool stays = rank_plan.ending == Ending::kStay || rank_plan.ending == Ending::kTogether;
  return step <= rank_plan.last_step || stays;
}

// In synchronous jobs a rank that ends its part before the others ends the job, unless it says that
// uneven ends are meant.
bool required(const JobPlan& plan, Rank rank, Step step) {
  return takes_part(plan, rank, step) || plan.ranks[rank.value].ending != Ending::kUneven;
}

}  // namespace

const Oracle::Summed* Oracle::result(RunIndex run, StreamId stream, Step step,
                                     ChunkIndex chunk) const {
  const auto found = runs_[run]->summed.find(slot_key(stream, step, chunk));
  return found == runs_[run]->summed.end() ? nullptr : &found->second;
}

bool Oracle::add_up(const Run& run, const Outcome& body, Summed& summed) const {
  const client::ChunkSpan span = run.layout->chunk(body.chunk);
  bool any = false;
  summed.mask.for_each([&](Rank rank) {
    const Sent* sent = find_sent(run, StreamId::kGradients, body.step, body.chunk, rank);
    if (sent == nullptr || sent->nil) return;
    if (!any) summed.sums.resize(span.elem_count);
    any = true;
    const Step base = run.plan->tolerates_stragglers() ? sent->base_step : body.step;
    for (std::uint16_t i = 0; i < span.elem_count; ++i)
      summed.sums[i] += sent->values.empty()
                            ? run.plan->gradient(rank, base, span.tensor, span.first_elem + i)
                            : sent->values[i];
  });
  return any;
}

Oracle::Outcome Oracle::outcome_of(const wire::Packet& packet) {
  Outcome outcome;
  outcome.flags = packet.feedback().flags;
  if (packet.type() == wire::PacketType::kPieceResult) {
    const auto& body = packet.body<wire::PieceResult>();
    outcome.stream = wire::stream_of(body.operation.kind);
    outcome.step = body.step;
    outcome.chunk = body.chunk;
    outcome.operation = body.operation;
    outcome.nil = packet.payload().empty();
    return outcome;
  }
  const auto& body = packet.body<wire::ResultHeader>();
  outcome.stream = StreamId::kGradients;
  outcome.step = body.step;
  outcome.chunk = body.chunk;
  outcome.weight = body.weight;
  outcome.k = body.k;
  outcome.may_count = body.may_count;
  outcome.elem_count = body.elem_count;
  outcome.dtype = body.dtype;
  outcome.nil = (outcome.flags & wire::kFlagNil) != 0;
  return outcome;
}

void Oracle::on_result(Run& run, const Party& to, const wire::Packet& packet, const Outcome& body,
                       std::span<const std::uint8_t> payload, std::uint32_t boot) {
  totals_.results_sent += !run.asks_too_much;
  RankSet mask;
  for (std::size_t i = 0; i < packet.mask_word_count(); ++i) mask.set_word(i, packet.mask_word(i));
  // A result that is given to another appliance is dense, whatever it was.
  const std::uint8_t flags = body.flags & ~(wire::kFlagPulled | wire::kFlagSparse);
  const std::uint64_t payload_hash = hash_values(payload, body.dtype, body.elem_count);
  const std::uint64_t content_hash =
      mix(payload_hash, mask.hash(), body.weight, flags, body.elem_count,
          static_cast<std::uint64_t>(body.dtype), body.k, body.may_count, body.operation.size_bytes,
          body.operation.root, static_cast<std::uint64_t>(body.operation.kind));
  const Summed fresh{.content_hash = content_hash,
                     .weight = body.weight,
                     .mask = mask,
                     .k = body.k,
                     .may_count = body.may_count,
                     .payload_hash = payload_hash,
                     .first_boot = boot,
                     .boot = boot};
  auto [found, first] = run.summed.try_emplace(slot_key(body.stream, body.step, body.chunk), fresh);
  Summed& summed = found->second;
  const bool is_void = body.stream == StreamId::kGradients && summed.content_hash != content_hash &&
                       summed.first_boot != boot_ && run.plan->tolerates_stragglers() &&
                       summed.users.without(run.unreliable).empty();
  if (is_void) {
    totals_.requeued_counted -= run.take_back(summed, body);
    summed = fresh;
    first = true;
  }
  const bool anew = summed.boot < boot;
  summed.boot = std::max(summed.boot, boot);
  if (anew) totals_.results_due += run.plan->world_size();
  summed.receivers.add(to.rank);
  if (body.stream == StreamId::kState && summed.receivers.count() > 2)
    violation("a rank's state went to more than two ranks: " + name(run, body));
  // The first chunk waits for both ends, so both have sent something for it.
  if (body.stream == StreamId::kState && body.chunk == 0 &&
      find_sent(run, body.stream, body.step, body.chunk, to.rank) == nullptr)
    violation("a rank's state went to rank " + std::to_string(to.rank.value) +
              ", which is no end of the transfer: " + name(run, body));
  if (!first) {
    // All have it already: another appliance is only told that the chunk is closed. Whoever lacked
    // it would find that out.
    const bool closes = summed.first_boot != boot_ && body.nil && body.weight == 0;
    if (summed.content_hash != content_hash && !closes)
      violation("I2: rank " + std::to_string(to.rank.value) + " gets another result of " +
                name(run, body) + " than the first receiver");
    if (anew && body.stream == StreamId::kGradients && run.plan->tolerates_stragglers() &&
        summed.given_boot != boot_)
      account_for(run, mask, body, true);
    return;
  }
  ++totals_.results_checked;
  totals_.results_due += body.stream == StreamId::kState ? 2 : run.plan->world_size();
  summed.nil = body.nil;
  check_weight(run, mask, body);
  if (body.stream != StreamId::kGradients) {
    check_piece_members(run, mask, body);
    return check_piece(run, mask, body, payload);
  }
  totals_.results_of_nobody += mask.empty();
  check_members(run, mask, body);
  check_share(run, mask, body);
  check_gradient(run, summed, body, payload);
  account_for(run, mask, body, false);
}

void Oracle::check_members(Run& run, const RankSet& mask, const Outcome& body) {
  const std::string where = name(run, body);
  const int count = mask.count();
  const RankSet passed = passes(run, body);
  if (!(mask & passed).empty()) violation("I1: a rank that passed is in the result of " + where);
  if (((count == 0 || body.k == 0) && passed.empty()) || count < body.k)
    violation("I1: " + std::to_string(count) + " workers in the result of " + where + " with k " +
              std::to_string(body.k));
  if (!mask.without(RankSet::below(run.plan->world_size())).empty())
    violation("I1: unknown rank in the mask of " + where);
  if (run.plan->tolerates_stragglers()) return check_fastest(run, mask, body);
  for (std::uint16_t rank = 0; rank < run.plan->world_size(); ++rank)
    if (required(*run.plan, Rank{rank}, body.step) && !mask.has(Rank{rank}))
      violation("I1: rank " + std::to_string(rank) + " is missing from the result of " + where);
}

// Of how many ranks a result is: all that were there, and who is in it.
void Oracle::check_share(const Run& run, const RankSet& mask, const Outcome& body) {
  RankSet least = mask;
  for (std::uint16_t rank = 0; rank < run.plan->world_size(); ++rank)
    if (takes_part(*run.plan, Rank{rank}, body.step) && !run.unreliable.has(Rank{rank}) &&
        body.step >= run.strict_from)
      least.add(Rank{rank});
  if (body.may_count < least.count() || body.may_count > run.plan->world_size())
    violation("I1: " + std::to_string(body.may_count) + " ranks could be in " + name(run, body) +
              ", of " + std::to_string(run.plan->world_size()) + ", of whom at least " +
              std::to_string(least.count()) + " were there");
}

// A barrier waits for everybody who is always there; only a broadcast that has lost its root has
// nobody.
void Oracle::check_piece_members(const Run& run, const RankSet& mask, const Outcome& body) {
  const JobPlan& plan = *run.plan;
  const std::string where = name(run, body);
  if (!mask.without(RankSet::below(plan.world_size())).empty())
    violation("I1: unknown rank in the mask of " + where);
  const Rank root{body.operation.root};
  const bool rootless =
      body.operation.kind == CollectiveKind::kBroadcast && body.nil && run.may_lose(root);
  if (mask.empty() && !rootless) violation("I1: nobody is in the result of " + where);
  if (body.operation.kind != CollectiveKind::kBarrier) return;
  for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
    if (!run.may_lose(Rank{rank}) && !mask.has(Rank{rank}))
      violation("I1: rank " + std::to_string(rank) + " is missing from the result of " + where);
}

// Ranks that requeued into the step and had nothing for this chunk: nobody waits for them, and k is
// at most what is left.
RankSet Oracle::passes(const Run& run, const Outcome& body) const {
  if (!run.plan->requeues()) return {};
  RankSet passed;
  for (std::uint16_t rank = 0; rank < run.plan->world_size(); ++rank) {
    const Sent* sent = find_sent(run, body.stream, body.step, body.chunk, Rank{rank});
    if (sent != nullptr && sent->nil && sent->base_step != body.step) passed.add(Rank{rank});
  }
  return passed;
}

// The k that the result names is the policy's, lowered by death and leave alone.
void Oracle::check_fastest(Run& run, const RankSet& mask, const Outcome& body) {
  const JobPlan& plan = *run.plan;
  const PolicyOptions& policy = plan.session.policy;
  const std::string where = name(run, body);
  const int world_size = plan.world_size();
  int reliable = 0;
  for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
    reliable += takes_part(plan, Rank{rank}, body.step) && !run.unreliable.has(Rank{rank}) &&
                body.step >= run.strict_from;
  int least = 1;
  int most = world_size;
  if (policy.kind == PolicyKind::kFixed) least = most = policy.k;
  if (policy.kind == PolicyKind::kSaina) least = policy.k;
  if (body.step <= 2) least = most = world_size;
  // A step that fewer than two ranks are known to keep up with waits for two.
  if (keeping_up(run, body.step, false) < 2) least = std::max(least, std::min(2, world_size));
  if (keeping_up(run, body.step, true) < 2) most = std::max(most, std::min(2, world_size));
  const RankSet passed = passes(run, body);
  if (reliable != 0) reliable -= passed.without(run.unreliable).count();
  least = std::max(1, least - passed.count());  // each stands for one, but not for the last
  if (body.k > most || body.k < std::min(least, reliable))
    violation("I1: k is " + std::to_string(body.k) + " in " + where + ", the policy says " +
              std::to_string(least) + " to " + std::to_string(most) + " and " +
              std::to_string(reliable) + " ranks were always there");
  if (run.unreliable.empty() && reliable + passed.count() == world_size) {
    // Only passes have lowered it: all shards use the one that was published, and wait for no more.
    if (passed.empty()) {
      const auto [found, first] = run.step_k.try_emplace(body.step, body.k);
      if (!first && found->second != body.k)
        violation("I1: k is " + std::to_string(body.k) + " in " + where + " and " +
                  std::to_string(found->second) + " in another chunk of the step");
    }
    if (!run.resyncs && mask.count() != body.k)
      violation("I1: " + std::to_string(mask.count()) + " workers in the result of " + where +
                ", which k " + std::to_string(body.k) + " had completed before");
  }
  totals_.results_without_somebody += mask.count() < world_size;
}

void Oracle::check_weight(const Run& run, const RankSet& mask, const Outcome& body) {
  std::uint64_t weight = 0;
  bool all_sent = true;
  mask.for_each([&](Rank rank) {
    const Sent* sent = find_sent(run, body.stream, body.step, body.chunk, rank);
    if (sent != nullptr) {
      weight += sent->weight;
      return;
    }
    all_sent = false;
    violation("I1: rank " + std::to_string(rank.value) + " is in the result of " + name(run, body) +
              " but never sent it");
  });
  if (!all_sent) return;
  if (body.stream == StreamId::kGradients && weight != body.weight)
    violation("I1: weight " + std::to_string(body.weight) + " instead of " +
              std::to_string(weight) + " in the result of " + name(run, body));
}

void Oracle::check_gradient(const Run& run, Summed& summed, const Outcome& body,
                            std::span<const std::uint8_t> payload) {
  const JobPlan& plan = *run.plan;
  const std::string where = name(run, body);
  if (body.chunk >= run.layout->chunk_count()) return violation("I1: no such chunk: " + where);
  if (!plan.check_values) return;
  const bool all_nil = !add_up(run, body, summed);
  if (all_nil != body.nil) return violation("I1: the NIL flag is wrong in the result of " + where);
  if (all_nil) return;
  const client::ChunkSpan span = run.layout->chunk(body.chunk);
  const Dtype dtype = run.layout->wire_dtype(span.tensor);
  const std::size_t elem_bytes = dtype_bytes(dtype);
  if (body.dtype != dtype || payload.size() != payload_bytes(dtype, span.elem_count))
    return violation("I1: the shape is wrong in the result of " + where);
  if (plan.is_rounded(span.tensor)) {
    std::vector<std::uint8_t> expected(payload.size());
    const float* const sums = summed.sums.data();
    (void)agg::finish_unbiased(sums, span.elem_count, body.weight, dtype,
                               agg::rounding_seed(sums, span.elem_count, body.chunk),
                               expected.data());
    summed.means.resize(span.elem_count);
    agg::fold_store(summed.means.data(), payload.data(), span.elem_count, dtype);
    std::vector<float> means(span.elem_count);
    agg::fold_store(means.data(), expected.data(), span.elem_count, dtype);
    // The scale of zeros says nothing: a sparse chunk without values has none.
    if (!std::ranges::equal(expected, payload) && summed.means != means)
      violation("I1/I3: not the mean of the mask, rounded, in " + where);
    return;
  }
  for (std::uint16_t i = 0; i < span.elem_count; ++i) {
    float value = summed.sums[i];
    if (dtype != Dtype::kFloat32) value /= static_cast<float>(body.weight);
    std::uint8_t expected[4] = {};
    store_element(dtype, value, expected);
    if (std::memcmp(expected, payload.data() + i * elem_bytes, elem_bytes) != 0)
      return violation("I1/I3: element " + std::to_string(i) + " is not the sum of the mask in " +
                       where);
  }
}

void Oracle::check_piece(const Run& run, const RankSet& mask, const Outcome& body,
                         std::span<const std::uint8_t> payload) {
  if (payload.empty()) return;  // a barrier, or a broadcast that has lost its root
  const std::string where = name(run, body);
  const Rank root{body.operation.root};
  // Of a rank's state the receiver is in as well.
  const int most = body.stream == StreamId::kState ? 2 : 1;
  if (mask.count() > most || !mask.has(root))
    return violation("I1: not the root alone in " + where);
  const Sent* sent = find_sent(run, body.stream, body.step, body.chunk, root);
  if (sent == nullptr || sent->payload_hash != hash_bytes(payload))
    violation("I1: not the root's bytes in " + where);
}

}  // namespace sluice::sim

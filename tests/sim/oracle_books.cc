// The content of every contribution, its fate (I8), and the comparison of replicas.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "tests/sim/oracle.h"

namespace sluice::sim {

void Oracle::on_submitted(const Party& party, Step step, std::uint32_t tensor, bool with_data,
                          std::span<const float> velocity) {
  Run& run = *runs_[party.run];
  Books& books = run.books[party.process];
  books.submitted_last = std::max(books.submitted_last, step);
  if (!with_data) return;
  if (!books.submitted.emplace(step, tensor).second)
    violation("tensor " + std::to_string(tensor) + " of step " + std::to_string(step) +
              " was accepted twice from rank " + std::to_string(party.rank.value));
  if (run.plan->is_lossy(tensor)) {
    std::vector<float>& values = books.undelivered[tensor];
    values.resize(run.plan->tensors[tensor].elem_count);
    const bool moves = run.plan->has_velocity(tensor);
    if (moves) next_velocity(run, party, step, tensor, velocity);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] += moves ? books.velocities[tensor].second[i]
                         : run.plan->gradient(party.rank, step, tensor, i);
  }
  books.sums.submitted += run.layout->first_chunk(tensor + 1) - run.layout->first_chunk(tensor);
}

void Oracle::on_state(const Party& party, Step step) {
  Run& run = *runs_[party.run];
  ++run.states[party.process];
  auto& submitted = run.books[party.process].submitted;
  submitted.erase(submitted.upper_bound({step, UINT32_MAX}), submitted.end());
}

// u = mu u + g. What the session says of the last u, `now`, is that or nothing; of a chunk that its
// own step has counted, which is known then, nothing exactly where a value left, unless all did.
void Oracle::next_velocity(Run& run, const Party& party, Step step, std::uint32_t tensor,
                           std::span<const float> now) {
  const JobPlan& plan = *run.plan;
  auto& [last, velocity] = run.books[party.process].velocities[tensor];
  velocity.resize(plan.tensors[tensor].elem_count);
  const std::string who = "I8: rank " + std::to_string(party.rank.value) + " of job " + plan.name +
                          " begins step " + std::to_string(step) + " of tensor " +
                          std::to_string(tensor) + " with ";
  if (now.size() != velocity.size()) return violation(who + "no velocity");
  for (ChunkIndex chunk = run.layout->first_chunk(tensor);
       chunk < run.layout->first_chunk(tensor + 1); ++chunk) {
    const client::ChunkSpan span = run.layout->chunk(chunk);
    const auto counted =
        run.counted_in.find(contribution_key(StreamId::kGradients, last, chunk, party.rank));
    const Sent* sent = find_sent(run, StreamId::kGradients, last, chunk, party.rank);
    const bool known = last != 0 && counted != run.counted_in.end() &&
                       counted->second.step == last && counted->second.process == party.process &&
                       sent != nullptr && sent->process == party.process;
    // A rank that fell behind was not told that it counted: it has let go of all of that.
    const auto discarded = [](float value) { return value == 0; };
    if (plan.tolerates_stragglers() &&
        std::ranges::all_of(now.subspan(span.first_elem, span.elem_count), discarded))
      continue;
    for (std::uint64_t i = span.first_elem; i < span.first_elem + span.elem_count; ++i) {
      const bool left = known && plan.is_pruned(tensor) && sent->values[i - span.first_elem] != 0;
      const bool stays = now[i] == velocity[i];
      const bool ends = now[i] == 0;
      if (known && plan.is_pruned(tensor) ? (left ? !ends : !stays)
                                          : !(stays || (ends && plan.is_pruned(tensor))))
        return violation(who + "velocity " + std::to_string(now[i]) + " of element " +
                         std::to_string(i) + ", which was " + std::to_string(velocity[i]));
    }
  }
  for (std::size_t i = 0; i < velocity.size(); ++i)
    velocity[i] = plan.session.prune.momentum * now[i] + plan.gradient(party.rank, step, tensor, i);
  last = step;
}

void Oracle::on_applied(const Party& party, Step step, std::uint64_t replica) {
  Run& run = *runs_[party.run];
  Run::Replica& known = run.replicas[step];
  // What only ranks have that were away may be lost with an appliance: they get the others' state.
  if (known.hash != replica && known.ranks.without(run.unreliable).empty())
    known = {.hash = replica};
  known.ranks.add(party.rank);
  if (known.hash != replica)
    violation("job " + runs_[party.run]->plan->name + ": the replica of rank " +
              std::to_string(party.rank.value) + " differs from another one after step " +
              std::to_string(step));
}

void Oracle::on_collective_begun(const Party& party, std::size_t index, Step step, Appliance at) {
  Run& run = *runs_[party.run];
  const std::uint32_t boot = boot_ - (at == Appliance::kBefore);
  const auto [found, first] = run.calls.try_emplace(index, Run::Call{.step = step, .boot = boot});
  if (!first && found->second.step != step && found->second.boot == boot)
    violation("rank " + std::to_string(party.rank.value) + " of job " + run.plan->name +
              " calls collective " + std::to_string(index) + " at step " + std::to_string(step) +
              ", another rank at step " + std::to_string(found->second.step));
}

void Oracle::on_collective_done(const Party& party, std::size_t index, const Status& status) {
  Run& run = *runs_[party.run];
  const CollectivePlan& plan = run.plan->collectives[index];
  const std::string what = "collective " + std::to_string(index) + " of rank " +
                           std::to_string(party.rank.value) + " of job " + run.plan->name;
  std::optional<bool>& ok = run.calls[index].ok;
  if (ok.has_value() && *ok != status.ok())
    violation(what + (status.ok() ? " is done, another rank's failed"
                                  : " failed, another rank's is done: " + status.message()));
  ok = status.ok();
  ++collectives_done_;
  if (status.ok()) return;
  ++collectives_failed_;
  const std::string root = "its root, rank " + std::to_string(plan.root.value);
  if (plan.kind != CollectiveKind::kBroadcast || status.code() != StatusCode::kPeerLost ||
      status.message().find(root) == std::string::npos || !run.may_lose(plan.root))
    violation(what + " failed without a reason: " + status.message());
}

// One that others have called, or the next one that anybody will.
std::size_t Oracle::collective_at(RunIndex run, Step step) const {
  std::size_t next = 0;
  for (const auto& [index, call] : runs_[run]->calls) {
    if (call.step == step) return index;
    if (call.step < step) next = index + 1;
  }
  return next;
}

// Of a gradient's chunk: the bytes that this process computed on the parameters of the base step,
// under the weight of that step; or nothing where it has nothing.
void Oracle::check_contribution(Run& run, const Party& from, ChunkIndex chunk,
                                const wire::Contribution& body,
                                std::span<const std::uint8_t> payload) {
  const JobPlan& plan = *run.plan;
  if (!plan.check_values || plan.manual) return;
  const std::string where = name(run, {StreamId::kGradients, body.step, chunk}) + " with base " +
                            std::to_string(body.base_step) + " from rank " +
                            std::to_string(from.rank.value);
  if (chunk >= run.layout->chunk_count()) return violation("I1: no such chunk: " + where);
  const client::ChunkSpan span = run.layout->chunk(chunk);
  if (body.base_step != body.step) check_late(run, from, chunk, body);
  const bool computed =
      run.books[from.process].submitted.contains({Step{body.base_step}, span.tensor});
  if ((body.flow.flags & wire::kFlagNil) != 0) {
    // A late rank owes nothing in other chunks of the step that it requeues into.
    if (body.base_step == body.step && computed)
      violation("I8: no data, but a gradient was submitted, in " + where);
    return;
  }
  if (!computed) return violation("I1: data that nobody submitted, in " + where);
  if (body.weight != plan.weight(from.rank, body.base_step))
    violation("I1: weight " + std::to_string(body.weight) + " is not that of the base step in " +
              where);
  const Dtype dtype = run.layout->wire_dtype(span.tensor);
  const std::size_t elem_bytes = dtype_bytes(dtype);
  const bool rounded = body.flow.flags & wire::kFlagRounded;
  if (body.dtype != dtype || payload.size() != payload_bytes(dtype, span.elem_count) ||
      rounded != plan.is_rounded(span.tensor))
    return violation("I1: the shape is wrong in " + where);
  if (plan.is_lossy(span.tensor)) return check_lossy(run, from, chunk, body, payload);
  for (std::uint16_t i = 0; i < span.elem_count; ++i) {
    std::uint8_t expected[4] = {};
    store_element(dtype, plan.gradient(from.rank, body.base_step, span.tensor, span.first_elem + i),
                  expected);
    if (std::memcmp(expected, payload.data() + i * elem_bytes, elem_bytes) != 0)
      return violation("I3: element " + std::to_string(i) + " is not the gradient of the base in " +
                       where);
  }
}

// In a synchronous job every gradient is delivered, so what was lost before is known: what leaves
// is the sum of both, the small ones left out, rounded. Otherwise only the end can tell, and
// what is given up before: give_up().
void Oracle::check_lossy(Run& run, const Party& from, ChunkIndex chunk,
                         const wire::Contribution& body, std::span<const std::uint8_t> payload) {
  const JobPlan& plan = *run.plan;
  if (plan.tolerates_stragglers()) return;
  const client::ChunkSpan span = run.layout->chunk(chunk);
  Books& books = run.books[from.process];
  const float limit = limit_of(run, from, books, span.tensor, body.step);
  float* residual = &books.residuals[span.tensor][span.first_elem];
  const std::vector<float> nothing(span.elem_count);
  const bool moves = plan.has_velocity(span.tensor);
  std::vector<float> value(span.elem_count);
  std::vector<float> left(span.elem_count);
  for (std::uint16_t i = 0; i < span.elem_count; ++i) {
    value[i] = residual[i] +
               (moves ? books.velocities[span.tensor].second[span.first_elem + i]
                      : plan.gradient(from.rank, body.base_step, span.tensor, span.first_elem + i));
    left[i] = std::fabs(value[i]) >= limit ? value[i] : 0;
  }
  std::vector<std::uint8_t> expected(payload.size());
  if (plan.is_rounded(span.tensor))
    agg::pack(left.data(), nothing.data(), span.elem_count, body.dtype, expected.data());
  else
    std::memcpy(expected.data(), left.data(), expected.size());
  // The scale of zeros says nothing: an entry does not carry it.
  agg::fold_store(left.data(), expected.data(), span.elem_count, body.dtype);
  std::vector<float> sent(span.elem_count);
  agg::fold_store(sent.data(), payload.data(), span.elem_count, body.dtype);
  for (std::uint16_t i = 0; i < span.elem_count; ++i) residual[i] = value[i] - left[i];
  if (sent != left)
    violation("I8: not gradient and residual, pruned and rounded, in " +
              name(run, {StreamId::kGradients, body.step, chunk}) + " from rank " +
              std::to_string(from.rank.value));
}

std::uint64_t Oracle::give_up(const Party& party, std::uint32_t tensor,
                              std::span<const float> residual, Step behind) {
  Run& run = *runs_[party.run];
  Books& books = run.books[party.process];
  std::vector<float>& undelivered = books.undelivered[tensor];
  undelivered.resize(residual.size());
  std::vector<float> missing(residual.size());
  for (std::size_t i = 0; i < missing.size(); ++i) missing[i] = undelivered[i] - residual[i];
  for (ChunkIndex chunk = run.layout->first_chunk(tensor);
       chunk < run.layout->first_chunk(tensor + 1); ++chunk) {
    const client::ChunkSpan span = run.layout->chunk(chunk);
    const auto of_chunk = [&](std::span<const float> values) {
      return values.subspan(span.first_elem, span.elem_count);
    };
    const std::span<const float> lost = of_chunk(missing);
    const auto at = std::ranges::find_if(lost, [](float value) { return value != 0; });
    if (at == lost.end()) continue;
    ++books.given_up_chunks;
    if (may_give_up(run, party, chunk, lost, of_chunk(residual), behind)) continue;
    violation("I8: rank " + std::to_string(party.rank.value) + " of job " + run.plan->name +
              (behind != 0 ? " fell behind in step " + std::to_string(behind) : " ended") +
              " and lacks " + std::to_string(*at) + " of element " +
              std::to_string(span.first_elem + static_cast<std::uint64_t>(at - lost.begin())) +
              " of tensor " + std::to_string(tensor) + ", which is nothing that it may give up");
  }
  if (behind != 0) {
    undelivered.assign(residual.begin(), residual.end());
    books.given_up_to = behind;
  }
  return books.given_up_chunks;
}

// A late gradient as it was packed; of the step in which the process fell behind its gradient too,
// or all, where it has left and nobody knows whether it counts.
bool Oracle::may_give_up(const Run& run, const Party& party, ChunkIndex chunk,
                         std::span<const float> missing, std::span<const float> residual,
                         Step behind) {
  const client::ChunkSpan span = run.layout->chunk(chunk);
  const JobPlan& plan = *run.plan;
  const Dtype wire = run.layout->wire_dtype(span.tensor);
  const std::vector<float> zeros(span.elem_count);
  const auto is_late = [&](const std::vector<float>& values) {
    if (!plan.requeues() || !plan.is_rounded(span.tensor))
      return plan.requeues() || values == zeros;
    std::vector<std::uint8_t> payload(payload_bytes(wire, span.elem_count));
    agg::pack(values.data(), zeros.data(), span.elem_count, wire, payload.data());
    std::vector<float> packed(span.elem_count);
    agg::fold_store(packed.data(), payload.data(), span.elem_count, wire);
    return packed == values;
  };
  std::vector<float> late(missing.begin(), missing.end());
  if (is_late(late)) return true;
  const Books& books = run.books.at(party.process);
  if (behind == 0 || !books.submitted.contains({behind, span.tensor})) return false;
  const Sent* sent = find_sent(run, StreamId::kGradients, behind, chunk, party.rank);
  if (sent != nullptr && sent->process == party.process && std::ranges::equal(residual, zeros))
    return true;
  for (std::size_t i = 0; i < late.size(); ++i)
    late[i] -= plan.has_velocity(span.tensor)
                   ? books.velocities.at(span.tensor).second[span.first_elem + i]
                   : plan.gradient(party.rank, behind, span.tensor, span.first_elem + i);
  return is_late(late);
}

// Asked for at the tensor's first chunk of a step, when all of the step before was sent.
float Oracle::limit_of(const Run& run, const Party& from, Books& books, std::uint32_t tensor,
                       Step step) {
  const JobPlan& plan = *run.plan;
  std::vector<float>& residual = books.residuals[tensor];
  residual.resize(plan.tensors[tensor].elem_count);
  if (!plan.is_pruned(tensor)) return 0;
  if (books.thresholds == nullptr) {
    std::vector<client::PruneTensor> tensors;
    for (std::uint32_t i = 0; i < plan.tensors.size(); ++i)
      tensors.push_back({plan.tensors[i].elem_count, !plan.is_pruned(i)});
    books.thresholds = std::make_unique<client::Thresholds>(plan.session.prune, tensors);
  }
  auto& [known_step, limit] = books.limits[tensor];
  if (known_step == step) return limit;
  std::vector<float> gradient(residual.size());
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = plan.has_velocity(tensor) ? books.velocities[tensor].second[i]
                                            : plan.gradient(from.rank, step, tensor, i);
  known_step = step;
  limit = books.thresholds->next(tensor, gradient, residual);
  if (plan.flush_last && step == plan.ranks[from.rank.value].last_step) limit = 0;
  return limit;
}

// A contribution to another step than that of its parameters.
void Oracle::check_late(const Run& run, const Party& from, ChunkIndex chunk,
                        const wire::Contribution& body) {
  const PolicyOptions& policy = run.plan->session.policy;
  const std::string where = name(run, {StreamId::kGradients, body.step, chunk}) + " with base " +
                            std::to_string(body.base_step) + " from rank " +
                            std::to_string(from.rank.value);
  if (!run.plan->tolerates_stragglers()) return;  // the field has no meaning there
  if (policy.late != LateMode::kRequeue)
    violation("I3: a late gradient in a job that drops them: " + where);
  if (body.base_step == 0 || body.base_step > body.step)
    violation("I3: a base step that is not before its step: " + where);
  if ((body.flow.flags & wire::kFlagNil) != 0) {
    if (body.weight != 0) violation("I1: no data, but a weight, in " + where);
    return;
  }
  if (policy.max_staleness != 0 && body.step - body.base_step > policy.max_staleness)
    violation("I3: staler than " + std::to_string(policy.max_staleness) + " steps: " + where);
  const auto counted =
      run.counted_in.find(contribution_key(StreamId::kGradients, body.base_step, chunk, from.rank));
  if (counted == run.counted_in.end() || counted->second.process != from.process) return;
  // Its own step's result is known to this worker before it contributes again.
  if (counted->second.step == body.base_step)
    violation("I8: contributed again although its own step has it: " + where);
}

void Oracle::check_finished(Run& run, const Party& from, const wire::Finished& body) {
  Books& books = run.books[from.process];
  const std::string who = "rank " + std::to_string(from.rank.value) + " of job " + run.plan->name +
                          " reports step " + std::to_string(body.step);
  if (!run.plan->tolerates_stragglers()) violation(who + " as finished, in a synchronous job");
  if (body.flow.flags & wire::kFlagNil) return;  // it has only come to the step
  if (body.step <= books.finished_last) violation(who + " as finished a second time");
  if (!run.plan->manual && body.step > books.submitted_last)
    violation(who + " as finished and has not submitted it");
  books.finished_last = body.step;
}

// What the result counts has its place now: once, whatever becomes of the packets. `again`: another
// appliance has made the same result anew, maybe of another process's gradient.
void Oracle::account_for(Run& run, const RankSet& mask, const Outcome& body, bool again) {
  mask.for_each([&](Rank rank) {
    const Sent* sent = find_sent(run, body.stream, body.step, body.chunk, rank);
    if (sent == nullptr || sent->nil) return;
    const Step base = run.plan->tolerates_stragglers() ? sent->base_step : body.step;
    const Run::Counted fresh{.step = body.step, .process = sent->process};
    const auto [found, first] =
        run.counted_in.try_emplace(contribution_key(body.stream, base, body.chunk, rank), fresh);
    if (!first && found->second.process == sent->process) {
      if (again) return;
      violation("I8: the gradient of rank " + std::to_string(rank.value) + " and base " +
                std::to_string(base) + " counts in step " + std::to_string(found->second.step) +
                " and again in " + name(run, body));
    }
    found->second = fresh;
    Books& books = run.books[sent->process];
    const client::ChunkSpan span = run.layout->chunk(body.chunk);
    for (std::size_t i = 0; i < sent->values.size() && base > books.given_up_to; ++i)
      books.undelivered[span.tensor][span.first_elem + i] -= sent->values[i];
    Account& sums = books.sums;
    if (base == body.step)
      ++sums.delivered;
    else
      ++sums.requeued, ++totals_.requeued_counted;
  });
}

}  // namespace sluice::sim

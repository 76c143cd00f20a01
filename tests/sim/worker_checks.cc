// The checks of a worker's outputs, and the books that must balance at the end.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>

#include "tests/sim/random.h"
#include "tests/sim/worker.h"
#include "tests/sim/world.h"

namespace sluice::sim {

void Worker::check_collective() {
  const CollectivePlan& collective = plan.collectives[next_collective_];
  if (collective.kind == CollectiveKind::kBarrier) return;
  for (std::size_t i = 0; i < collective_buffer_.size(); ++i)
    if (collective_buffer_[i] != plan.broadcast_byte(next_collective_, i))
      return violation("byte " + std::to_string(i) + " of broadcast " +
                       std::to_string(next_collective_) + " is wrong");
}

void Worker::check_tensor(const client::Event& event) {
  if (plan.manual || !plan.check_values) return;
  const std::string where =
      "tensor " + std::to_string(event.tensor) + " of step " + std::to_string(event.step);
  if (event.tensor >= plan.tensors.size()) return violation("no such tensor: " + where);
  const bool nil = !catching_up_ && plan.is_nil(identity.rank, event.step, event.tensor);
  if (nil && !plan.nil_output) return;
  if (tensor_steps_[event.tensor] != event.step)
    return violation(where + " is done, submitted was step " +
                     std::to_string(tensor_steps_[event.tensor]));
  bool all_nil = true;
  for (ChunkIndex chunk = layout.first_chunk(event.tensor);
       chunk < layout.first_chunk(event.tensor + 1); ++chunk) {
    const Oracle::Summed* result =
        world_.oracle().result(identity.run, StreamId::kGradients, event.step, chunk);
    if (result == nullptr) return violation(where + " is done without a result");
    all_nil = all_nil && result->nil;
  }
  if (event.absent != all_nil) return violation(where + (all_nil ? " is not" : " is") + " absent");
  if (!all_nil) return check_average(event.tensor, event.step);
  if (plan.in_place && plan.tolerates_stragglers()) return;  // its own gradient is still there
  for (const std::uint8_t byte : outputs_[event.tensor])
    if (byte != kUntouched) return violation(where + " is absent, its output was touched");
}

// Every chunk may have been summed over other ranks. One that nobody had data for is zero: all
// replicas must see the same.
void Worker::check_average(std::uint32_t tensor, Step step) {
  const Dtype dtype = plan.tensors[tensor].dtype;
  const std::size_t elem_bytes = dtype_bytes(dtype);
  for (ChunkIndex chunk = layout.first_chunk(tensor); chunk < layout.first_chunk(tensor + 1);
       ++chunk) {
    const Oracle::Summed& result =
        *world_.oracle().result(identity.run, StreamId::kGradients, step, chunk);
    const client::ChunkSpan span = layout.chunk(chunk);
    const AveragingChoice choice = plan.averaged_by();
    // A step of k of n ranks counts k / n. Narrow results travel as the mean, rounded.
    double divisor = choice == AveragingChoice::kSum ? 1 : static_cast<double>(result.weight);
    const bool rounded = plan.is_rounded(tensor);
    const bool narrow = rounded || dtype != Dtype::kFloat32;
    if (narrow) divisor = 1;
    if (choice == AveragingChoice::kWorld && result.mask.count() != 0)
      divisor = divisor * result.may_count / result.mask.count();
    const std::uint8_t* output = outputs_[tensor].data() + span.first_elem * elem_bytes;
    for (std::uint16_t i = 0; i < span.elem_count; ++i) {
      std::uint8_t expected[4];
      float value = result.nil ? 0 : rounded ? result.means[i] : result.sums[i];
      if (narrow && !rounded && !result.nil) {
        store_element(dtype, value / static_cast<float>(result.weight), expected);
        value = load_element(dtype, expected);
      }
      if (!result.nil) value /= static_cast<float>(divisor);
      store_element(dtype, value, expected);
      if (std::memcmp(expected, output + i * elem_bytes, elem_bytes) != 0)
        return violation("element " + std::to_string(span.first_elem + i) + " of tensor " +
                         std::to_string(tensor) + " of step " + std::to_string(step) +
                         " is not the average");
    }
  }
}

// The parameters after the step, as far as a checksum can stand for them.
void Worker::apply_step(Step step) {
  std::uint64_t averages = 0;
  for (std::size_t tensor = 0; tensor < outputs_.size(); ++tensor)
    averages = mix(averages, absent_[tensor] ? 0 : hash_bytes(outputs_[tensor]));
  replica_ = mix(replica_, step, averages);
  world_.oracle().on_applied(party(), step, replica_);
  check_report(step);
}

void Worker::check_report(Step step) {
  const client::StepReport* report = session_->report(step);
  const std::string where = "the report of step " + std::to_string(step);
  if (report == nullptr) return violation(where + " is missing");
  std::uint16_t k = UINT16_MAX;
  std::uint64_t weight = UINT64_MAX;
  std::uint16_t members = 0;  // of the first chunk that has any
  std::uint16_t may_count = 0;
  RankSet in_every = RankSet::below(kMaxWorkers);
  RankSet in_any;
  for (ChunkIndex chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const Oracle::Summed* result =
        world_.oracle().result(identity.run, StreamId::kGradients, step, chunk);
    if (result == nullptr) return violation("step " + std::to_string(step) + " has no result");
    k = std::min(k, result->k);
    weight = std::min(weight, result->weight);
    if (members == 0 && !result->mask.empty()) {
      members = static_cast<std::uint16_t>(result->mask.count());
      may_count = result->may_count;
    }
    in_every &= result->mask;
    in_any |= result->mask;
  }
  if (report->step != step || report->k != k || report->weight != weight ||
      !(RankSet::of(report->in_every) == in_every) || !(RankSet::of(report->in_any) == in_any))
    violation(where + " says k " + std::to_string(report->k) + " weight " +
              std::to_string(report->weight) + ", the results k " + std::to_string(k) + " weight " +
              std::to_string(weight) + ", or other ranks");
  if (report->first_members != members || report->first_may_count != may_count)
    violation(where + " says that " + std::to_string(report->first_members) + " of " +
              std::to_string(report->first_may_count) + " ranks are in it, the first result that " +
              "has any " + std::to_string(members) + " of " + std::to_string(may_count));
}

std::size_t Worker::count(client::Event::Kind kind) const {
  return static_cast<std::size_t>(
      std::count_if(log_.begin(), log_.end(), [&](const auto& e) { return e.kind == kind; }));
}

std::string Worker::describe_log() const {
  using Kind = client::Event::Kind;
  const std::map<Kind, const char*> names = {
      {Kind::kJoined, "joined"},          {Kind::kStarted, "started"},
      {Kind::kStepDone, "step"},          {Kind::kCollectiveDone, "collective"},
      {Kind::kTensorLost, "lost"},        {Kind::kStalled, "stalled"},
      {Kind::kFellBehind, "fell behind"}, {Kind::kStateWanted, "wanted"},
      {Kind::kStateSent, "state sent"},   {Kind::kStateReceived, "state"},
      {Kind::kStateUnwanted, "unwanted"}, {Kind::kLeft, "left"},
      {Kind::kReturned, "goes on"},       {Kind::kFailed, "failed"},
      {Kind::kCreditLimits, "limited"}};
  std::string text;
  for (const LoggedEvent& event : log_) {
    if (event.kind == Kind::kTensorDone || event.kind == Kind::kPushDone ||
        event.kind == Kind::kPullDone || event.kind == Kind::kOperationDone)
      continue;
    text += plan.name + " rank " + std::to_string(identity.rank.value) + " process " +
            std::to_string(identity.index) + " ms " + std::to_string(event.at / kMillisecond) +
            ": " + names.at(event.kind) + " " + std::to_string(event.step) + " " +
            event.status.message() + "\n";
  }
  return text;
}

std::string Worker::unbalanced() const {
  if (!session_) return {};
  const client::Counters& counters = session_->counters();
  const std::string who =
      "I7: rank " + std::to_string(identity.rank.value) + " of job " + plan.name + " ";
  if (counters.packets_sent != datagrams_out_)
    return who + "sent " + std::to_string(datagrams_out_) + " datagrams and counted " +
           std::to_string(counters.packets_sent);
  const std::uint64_t verdicts =
      std::accumulate(session_->verdicts().begin(), session_->verdicts().end(), std::uint64_t{0});
  if (counters.packets_received != datagrams_in_ || verdicts != datagrams_in_)
    return who + "received " + std::to_string(datagrams_in_) + " datagrams and counted " +
           std::to_string(counters.packets_received) + " with " + std::to_string(verdicts) +
           " verdicts";
  return unbalanced_gradients();
}

// I8: delivered + requeued + kept + discarded + still waiting = submitted, by the session's own
// count; and what it believes to be counted is counted. It may not know of chunks of a step that
// has left the window: those it has discarded.
std::string Worker::unbalanced_gradients() const {
  if (plan.manual || !plan.check_values || failed_ || state_ != ProcessState::kRunning) return {};
  if (!left_ && !finished_) return {};
  const client::Counters& counters = session_->counters();
  const Oracle::Account& truth = world_.oracle().account(party());
  const std::uint64_t over = counters.delivered_chunks + counters.requeued_chunks +
                             counters.discarded_chunks + counters.kept_chunks;
  const std::string books = "I8: rank " + std::to_string(identity.rank.value) + " of job " +
                            plan.name + " submitted " + std::to_string(truth.submitted) +
                            " chunks and counts " + std::to_string(counters.delivered_chunks) +
                            " delivered, " + std::to_string(counters.requeued_chunks) +
                            " requeued, " + std::to_string(counters.kept_chunks) + " kept, " +
                            std::to_string(counters.discarded_chunks) + " discarded; counted are " +
                            std::to_string(truth.delivered) + " and " +
                            std::to_string(truth.requeued);
  const std::uint64_t waiting = left_ ? 0 : session_->waiting_late_chunks();
  if (over + waiting != truth.submitted) return books + "; " + std::to_string(waiting) + " wait";
  if (counters.delivered_chunks > truth.delivered || counters.requeued_chunks > truth.requeued)
    return books;
  const std::uint64_t unknown =
      truth.delivered - counters.delivered_chunks + truth.requeued - counters.requeued_chunks;
  const bool fell_behind = count(client::Event::Kind::kFellBehind) != 0;
  if (unknown > (fell_behind ? counters.discarded_chunks : 0)) return books;
  if (!plan.requeues() && counters.requeued_chunks != 0) return books;
  return give_up(0) <= counters.discarded_chunks + waiting ? "" : books + ": more is missing";
}

// I8 of what travels at a loss, element by element: delivered + residual + discarded = submitted.
std::uint64_t Worker::give_up(Step behind) const {
  std::uint64_t chunks = 0;
  for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    if (!plan.is_lossy(tensor)) continue;
    std::span<const float> residual;
    client::Kept here;
    if (layout.tensor(tensor).far) {
      residual = far_.residual(tensor);
    } else {
      const Status status = session_->residual(tensor, here);
      if (!status.ok()) return world_.oracle().violation(status.message()), chunks;
      residual = here.values.first(plan.tensors[tensor].elem_count);  // then maybe a velocity
    }
    chunks = world_.oracle().give_up(party(), tensor, residual, behind);
  }
  return chunks;
}

}  // namespace sluice::sim

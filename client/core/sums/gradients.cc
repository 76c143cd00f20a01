#include "client/core/sums/gradients.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

constexpr std::size_t kListedTensors = 5;

}  // namespace

GradientStream::GradientStream(const SessionOptions& options, const Layout& layout,
                               Tensors& tensors, Residuals& residuals, Link& link)
    : Stream(StreamId::kGradients, Flows::kAll, link),
      options_(options),
      layout_(layout),
      tensors_(tensors),
      residuals_(residuals),
      averages_(layout_.tensor_count()),
      gradient_priorities_(layout_.tensor_count()),
      late_(link.counters, layout_, residuals_),
      reports_(options.world_size) {
  if (options.trace) trace_.enable(layout_.tensor_count());
}

Status GradientStream::join(const wire::Accept& accept) {
  set_up(accept);
  const Step open_step = accept.open_steps[index_of(id())];
  if (open_step > 1 && !tolerant())
    return {StatusCode::kRefused,
            error_prefix(options_) + "the job is at step " + std::to_string(open_step) +
                "; a synchronous job cannot be joined in mid-run: stop the other ranks and start "
                "it again from a checkpoint"};
  // The policy would see the norm or the signs of the few elements that pruning leaves.
  const PolicyKind kind = accept.policy.kind;
  const bool reads_signs = kind == PolicyKind::kSaina;
  const bool reads_norms = kind == PolicyKind::kGoodput || kind == PolicyKind::kRamp;
  if (residuals_.prunes_any() && (reads_signs || reads_norms))
    return {StatusCode::kRefused,
            error_prefix(options_) + "policy " + name_of(kind) + " reads the " +
                (reads_signs ? "signs" : "norms") +
                " of whole gradients, and this rank's are pruned: use policy sync or fixed, or "
                "prune nothing"};
  return {};
}

void GradientStream::set_up(const wire::Accept& accept) {
  CHECK(!recovery_);
  make_flows(accept);
  const PolicyOptions policy = accept.policy;
  const AveragingChoice averaging = resolved(options_.averaging, policy);
  for (std::uint32_t tensor = 0; tensor < layout_.tensor_count(); ++tensor) {
    const bool is_sum = layout_.result_dtype(tensor) == Dtype::kFloat32;
    tensors_.set_averaging(tensor, !layout_.tensor(tensor).relayed ? averaging
                                   : is_sum                        ? AveragingChoice::kSum
                                                                   : AveragingChoice::kWeight);
  }
  if (!policy.tolerates_stragglers()) {
    // A rank that is alone has all results that there are.
    if (options_.restart_timeout_ns != 0 && options_.world_size > 1)
      kept_.emplace(layout_.chunk_count(), layout_.chunk_bytes());
    return;
  }
  const bool keeps = options_.restart_timeout_ns != 0;
  const std::size_t masks = keeps ? mask_words(options_.world_size) : 0;
  arena_.emplace(layout_.chunk_count(), layout_.chunk_bytes(), masks);
  if (keeps) kept_.emplace(layout_.chunk_count(), layout_.chunk_bytes(), masks);
  late_.join(policy, layout_.chunk_count(), layout_.chunk_bytes());
  first_step_ = std::max<Step>(1, accept.first_steps[index_of(id())]);
  if (accept.rejoined != 0)
    tensors_.fall_behind({StatusCode::kBehind,
                          error_prefix(options_) +
                              "this rank has joined a job that runs and needs the state of another "
                              "rank first (resync)"});
}

// What depends on the appliance.
void GradientStream::make_flows(const wire::Accept& accept) {
  CHECK(accept.shards == link_.shard_count());
  scheduler_.emplace(options_.schedule, ScheduleSetup{.shard_count = accept.shards,
                                                      .chunk_count = layout_.chunk_count(),
                                                      .chunk_bytes = layout_.chunk_bytes(),
                                                      .first_chunks = layout_.first_chunks()});
  last_sent_.assign(accept.shards, {});
  bool relays = false;
  for (std::uint32_t tensor = 0; tensor < layout_.tensor_count(); ++tensor)
    relays |= layout_.tensor(tensor).relayed;
  departures_.assign(accept.shards, {});
  // One place for each chunk: a more urgent packet overtakes, and the packet that it overtook holds
  // no window.
  const std::size_t departures = layout_.chunk_count() / accept.shards + kChunksPerBlock;
  for (std::uint16_t shard = 0; relays && shard < accept.shards; ++shard)
    departures_[shard] = Ring<Departure>(departures);
  recovery_.emplace(layout_.chunk_count(), accept.shards, layout_.first_chunks());
}

void GradientStream::start(TimeNs now) {
  CHECK(!started_ && recovery_.has_value());
  started_ = true;
  last_progress_ns_ = now;
}

// ---- the application's calls ----

bool GradientStream::schedule_next(TimeNs now) {
  if (!may_schedule()) return false;
  const auto ready = std::find_if(measuring_.begin(), measuring_.end(), [&](std::uint32_t tensor) {
    return residuals_.measured(tensor);
  });
  std::uint32_t tensor = 0;
  DCHECK(measuring_.size() + scheduled_count_ <= tensors_.count());
  if (ready != measuring_.end()) {
    tensor = *ready;
    measuring_.erase(ready);
  } else if (tensors_.next_joined(tensor)) {
    if (has_data(tensor)) {
      const Submission& submission = tensors_.submission(tensor);
      residuals_.begin_step(tensor, static_cast<const float*>(submission.input), submission.far);
    }
    if (!residuals_.measured(tensor)) {
      measuring_.push_back(tensor);
      return true;
    }
  } else {
    return false;
  }
  schedule(tensor, now);
  return true;
}

void GradientStream::await_measurements() noexcept {
  for (const std::uint32_t tensor : measuring_) residuals_.await(tensor);
  measuring_.clear();
}

void GradientStream::give_up(const Status& why) {
  await_measurements();
  for (std::uint32_t tensor = 0; tensor < tensors_.count(); ++tensor)
    if (tensors_.in_flight(tensor))
      link_.events.push({.kind = Event::Kind::kTensorLost, .tensor = tensor, .status = why});
}

// The tensor takes part in the step under way, with data or without. The results that have come for
// it are applied now, so this may end the step.
void GradientStream::schedule(std::uint32_t tensor, TimeNs now) {
  if (scheduled_count_++ == 0) scheduler_->begin_step(now);
  CHECK(scheduled_count_ <= tensors_.count() && averages_[tensor].chunks_left == 0);
  CHECK(tensors_.active(tensor));
  averages_[tensor] = {.chunks_left = layout_.chunks_of(tensor)};
  last_progress_ns_ = std::max(last_progress_ns_, now);
  const Part part = tensors_.part(tensor);
  if (part == Part::kGradient) {
    gradient_priorities_[tensor] = tensors_.submission(tensor).priority;
    nil_weight_ = tensors_.submission(tensor).weight;
  }
  if (tolerant() && scheduled_count_ == tensors_.count() && !tensors_.catching_up())
    reports_due_.finished = current_step();
  if (part != Part::kLeftOut)
    trace_.queued(tensor, current_step(), priority_of(tensor), contributes(tensor),
                  tensors_.submission(tensor).ready_ns, now);
  const ChunkIndex first = layout_.first_chunk(tensor);
  const ChunkIndex end = layout_.first_chunk(tensor + 1);
  const bool wanted = part == Part::kLeftOut || tensors_.submission(tensor).wanted;
  const bool whole = !tolerant() && wanted && contributes(tensor);  // its chunks all fare alike
  if (whole && !has_data(tensor)) {  // by block: it may be most of the model
    scheduler_->push_along(first, kNilPriority, now);
    for (std::uint32_t block = first / kChunksPerBlock; block * kChunksPerBlock < end; ++block)
      if (const std::uint64_t one = recovery_->expect_absent(block, chunks_in(block, tensor)))
        scheduler_->push(first_chunk(block, one), kNilPriority, now);
    return;
  }
  if (whole && !residuals_.prunes(tensor)) {
    recovery_->expect_run(first, end);
    return scheduler_->push_run(first, end, priority_of(tensor), now);
  }
  for (ChunkIndex chunk = first; chunk < end; ++chunk) {
    if (!tolerant() || !arena_->has(chunk)) {
      schedule_chunk(chunk, tensor, now);
      continue;
    }
    apply(chunk, layout_.chunk(chunk), arena_->get(chunk));
    (void)chunks_done(tensor, 1, now);
  }
}

// The chunk's result is not here. The chunk is contributed while the step is open, and otherwise
// only pulled.
void GradientStream::schedule_chunk(ChunkIndex chunk, std::uint32_t tensor, TimeNs now) noexcept {
  const Step current = current_step();
  DCHECK(!recovery_->wants(chunk));
  if (closed() && (passed_ >= current || known_open_ > current + 1)) {
    recovery_->pull(chunk);
  } else if (closed() || !(contributes(tensor) || requeues_now() || owed_ == current)) {
    // A result that came too early was not kept, and does not come again by itself.
    recovery_->await(chunk, passed_ >= current ? now : now + kIdleProbeInterval);
  } else {
    const bool data = carries_data(chunk, tensor);
    const Priority priority = data ? priority_of(tensor) : kNilPriority;
    bool alone = true;  // no other chunk stands for it with the scheduler
    if (!data)
      alone = recovery_->expect_absent(chunk / kChunksPerBlock, chunk_bit(chunk)) != 0;
    else if (residuals_.prunes(tensor))
      alone = recovery_->expect_shared(chunk);
    else
      recovery_->expect(chunk);
    if (alone)
      scheduler_->push(chunk, priority, now);
    else
      scheduler_->push_along(chunk, priority, now);
  }
  if (tensors_.part(tensor) == Part::kGradient && !tensors_.submission(tensor).wanted)
    recovery_->want_no_result(chunk);
}

Priority GradientStream::priority_of(std::uint32_t tensor) const noexcept {
  return tensors_.part(tensor) == Part::kLeftOut ? kNilPriority : gradient_priorities_[tensor];
}

Priority GradientStream::block_priority(std::uint32_t block) const noexcept {
  const ChunkIndex first = block * kChunksPerBlock;
  const ChunkIndex end = std::min(first + kChunksPerBlock, layout_.chunk_count());
  DCHECK(first < end);
  Priority least_urgent = 0;
  for (ChunkIndex chunk = first; chunk < end;) {
    const std::uint32_t index = layout_.chunk(chunk).tensor;
    if (tensors_.active(index) || handed_.any())
      least_urgent = std::max(least_urgent, priority_of(index));
    chunk = layout_.first_chunk(index + 1);
  }
  return least_urgent;
}

std::string GradientStream::describe(TimeNs now) const {
  if (!in_progress()) return {};
  return "step " + std::to_string(current_step()) + " has made no progress for " +
         seconds_text(now - last_progress_ns_) + ": " + describe_open_tensors();
}

std::string GradientStream::describe_open_tensors() const {
  std::string open, unsubmitted;
  std::size_t open_count = 0, unsubmitted_count = 0;
  const auto add = [this](std::string& list, std::size_t& count, std::uint32_t index) {
    if (++count <= kListedTensors)
      list += (count == 1 ? "'" : ", '") + layout_.tensor(index).name + "'";
  };
  const auto close = [](std::string& list, std::size_t count) {
    if (count > kListedTensors) list += " and " + std::to_string(count - kListedTensors) + " more";
  };
  for (std::uint32_t index = 0; index < tensors_.count(); ++index) {
    if (tensors_.active(index)) add(open, open_count, index);
    if (tensors_.part(index) == Part::kUnasked) add(unsubmitted, unsubmitted_count, index);
  }
  close(open, open_count);
  close(unsubmitted, unsubmitted_count);
  std::string text;
  if (open_count != 0) text += "waiting for the results of " + open;
  if (unsubmitted_count != 0)
    text += (text.empty() ? "" : "; ") + std::string("this rank has not submitted ") + unsubmitted +
            " (end_step() declares tensors without a gradient)";
  return text;
}

}  // namespace sluice::client

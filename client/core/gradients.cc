#include "client/core/gradients.h"

#include <algorithm>
#include <utility>

#include "client/core/join.h"

namespace sluice::client {
namespace {

constexpr Priority kNilPriority = 0;  // other ranks may wait for nothing else
constexpr std::size_t kListedTensors = 5;

}  // namespace

GradientStream::GradientStream(const SessionOptions& options, Layout layout, Link& link,
                               Step first_step)
    : options_(options),
      layout_(std::move(layout)),
      plan_{.world_size = options.world_size},
      link_(link),
      tensors_(layout_.tensor_count()),
      current_(first_step),
      asked_step_(first_step),
      late_(link.stats) {
  for (Tensor& tensor : tensors_) tensor.asked = first_step - 1;
  if (options.trace) trace_.enable(layout_.tensor_count());
}

void GradientStream::join(const wire::Accept& accept) {
  scheduler_.emplace(options_.schedule, ScheduleSetup{.shard_count = accept.shards,
                                                      .chunk_count = layout_.chunk_count(),
                                                      .chunk_bytes = layout_.chunk_bytes(),
                                                      .first_chunks = layout_.first_chunks()});
  last_sent_.assign(accept.shards, {});
  recovery_.emplace(layout_.chunk_count(), accept.shards);
  const PolicyOptions policy = accept.policy;
  plan_.averaging = resolved(options_.averaging, policy);
  if (!policy.tolerates_stragglers()) return;
  arena_.emplace(layout_.chunk_count(), layout_.chunk_bytes());
  late_.join(policy, layout_.chunk_count(), layout_.chunk_bytes());
  first_step_ =
      std::max<Step>(1, accept.first_steps[static_cast<std::size_t>(StreamId::kGradients)]);
  stranded_ = accept.rejoined != 0;
}

void GradientStream::start(TimeNs now) noexcept {
  started_ = true;
  last_progress_ns_ = now;
  if (submitted_count_ != 0) scheduler_->begin_step(now);
  for (std::uint32_t index = 0; index < tensors_.size(); ++index)
    if (tensors_[index].submitted || tensors_[index].nil) (void)schedule(index, now);
}

// ---- the application's side ----

Status GradientStream::fail_submit(std::uint32_t tensor, std::string why) const {
  const std::string name =
      tensor < tensors_.size() ? " '" + layout_.tensor(tensor).name + "'" : std::string();
  return {StatusCode::kInvalidArgument,
          place_of(options_) + "tensor " + std::to_string(tensor) + name + ": " + std::move(why)};
}

Status GradientStream::submit(const Submission& submission, TimeNs now) noexcept {
  const std::uint32_t index = submission.tensor;
  if (index >= tensors_.size())
    return fail_submit(index, "the layout has " + std::to_string(tensors_.size()) + " tensors");
  if (submission.output == nullptr) return fail_submit(index, "output must not be null");
  if (submission.contribute && submission.input == nullptr && !options_.allow_nil)
    return fail_submit(index,
                       "input must not be null: this job does not allow tensors without data "
                       "(allow_nil)");
  if (!submission.contribute && !tolerant())
    return fail_submit(index,
                       "a synchronous job waits for every rank: there is nothing to catch "
                       "up with, submit a gradient");
  Tensor& tensor = tensors_[index];
  if (tensor.submitted || tensor.asked > current_)
    return fail_submit(index, "submitted again before step " + std::to_string(tensor.asked) +
                                  " of it is done: wait for its result first");
  if (tensor.asked >= kLastStep)
    return fail_submit(index, "step numbers are used up after " + std::to_string(kLastStep) +
                                  " steps: start a new job from a checkpoint");
  ++tensor.asked;
  Status status;
  const Step step = tensor.asked;
  Submission& kept = step == current_ ? tensor.submission : tensor.held;
  kept = submission;
  if (kept.ready_ns == 0) kept.ready_ns = now;
  if (step == current_) {
    tensor.submitted = true;
    if (submission.contribute) nil_weight_ = submission.weight;
    status = activate(index, now);
  } else {
    tensor.held_valid = true;
  }
  if (step == asked_step_) {
    ended_by_itself_ = false;
    if (++asked_count_ == tensors_.size()) {
      advance_asked();
      ended_by_itself_ = true;
    }
  }
  return status;
}

Status GradientStream::end_step(TimeNs now) noexcept {
  if (ended_by_itself_) {  // all tensors were submitted: nothing is left to declare
    ended_by_itself_ = false;
    return {};
  }
  const Step step = asked_step_;
  const std::string step_text = "step " + std::to_string(step);
  if (step > kLastStep)
    return {StatusCode::kExhausted, place_of(options_) +
                                        "step numbers are used up: start a new "
                                        "job from a checkpoint"};
  if (step > current_ + 1)
    return {StatusCode::kInvalidArgument,
            place_of(options_) + step_text + " cannot end before step " + std::to_string(current_) +
                " is done: wait for it first"};
  if (!options_.allow_nil)
    return {StatusCode::kInvalidArgument,
            place_of(options_) + step_text + " has " +
                std::to_string(tensors_.size() - asked_count_) +
                " tensors that were not submitted, and this job does not allow it (allow_nil)"};
  Status status;
  const bool at_once = step == current_;
  for (std::uint32_t index = 0; index < tensors_.size() && status.ok(); ++index) {
    Tensor& tensor = tensors_[index];
    if (tensor.asked >= step) continue;
    tensor.asked = step;
    if (at_once) {
      tensor.nil = true;
      status = activate(index, now);
    } else {
      tensor.held_nil = true;
    }
  }
  advance_asked();
  return status;
}

void GradientStream::advance_asked() noexcept {
  ++asked_step_;
  asked_count_ = static_cast<std::uint32_t>(
      std::count_if(tensors_.begin(), tensors_.end(),
                    [this](const Tensor& tensor) { return tensor.asked >= asked_step_; }));
}

// The tensor takes part in the step under way, with data or without.
Status GradientStream::activate(std::uint32_t index, TimeNs now) noexcept {
  Tensor& tensor = tensors_[index];
  tensor.any_data = false;
  tensor.some_absent = false;
  tensor.non_finite = false;
  tensor.chunks_left = layout_.first_chunk(index + 1) - layout_.first_chunk(index);
  if (tensor.submitted && tensor.submission.contribute) {
    tensor.priority = tensor.submission.priority;
  } else if (tensor.submitted) {
    tensor.submission.priority = tensor.priority;
    catching_up_ = true;
  }
  if (submitted_count_++ == 0 && started_) scheduler_->begin_step(now);
  last_progress_ns_ = std::max(last_progress_ns_, now);
  if (tolerant() && submitted_count_ == tensors_.size() && !catching_up_) finished_ = current_;
  return started_ ? schedule(index, now) : Status();
}

Status GradientStream::schedule(std::uint32_t index, TimeNs now) noexcept {
  const Tensor& tensor = tensors_[index];
  if (tensor.submitted)
    trace_.queued(index, current_, priority_of(tensor), contributes(tensor),
                  tensor.submission.ready_ns, now);
  const ChunkIndex end = layout_.first_chunk(index + 1);
  for (ChunkIndex chunk = layout_.first_chunk(index); chunk < end; ++chunk) {
    if (!tolerant() || !arena_->has(chunk)) {
      schedule_chunk(chunk, tensor, now);
      continue;
    }
    last_progress_ns_ = std::max(last_progress_ns_, now);
    apply(chunk, layout_.chunk(chunk), arena_->get(chunk));
    Verdict verdict{};
    if (Status status = chunk_done(index, now, verdict); !status.ok()) return status;
  }
  return {};
}

// Its result is not here. It is contributed while the step is open, and otherwise only pulled.
void GradientStream::schedule_chunk(ChunkIndex chunk, const Tensor& tensor, TimeNs now) noexcept {
  if (closed_ && (passed_ >= current_ || known_open_ > current_ + 1)) {
    recovery_->pull(chunk);
  } else if (closed_ || !(contributes(tensor) || requeues_now())) {
    // A result that came too early was not kept, and does not come again by itself.
    recovery_->await(chunk, passed_ >= current_ ? now : now + kIdleProbeInterval);
  } else {
    recovery_->expect(chunk);
    scheduler_->push(chunk, priority_of(tensor), now);
  }
}

Priority GradientStream::priority_of(const Tensor& tensor) noexcept {
  return tensor.nil ? kNilPriority : tensor.submission.priority;
}

// ---- sending ----

std::span<const std::uint8_t> GradientStream::input_of(const Tensor& tensor,
                                                       const ChunkSpan& span) const noexcept {
  const std::size_t elem_bytes = dtype_bytes(layout_.tensor(span.tensor).dtype);
  return {static_cast<const std::uint8_t*>(tensor.submission.input) + span.first_elem * elem_bytes,
          span.elem_count * elem_bytes};
}

// What this worker has for the chunk: its gradient, a late one of before, or its presence.
std::span<const std::uint8_t> GradientStream::fill_body(ChunkIndex chunk,
                                                        wire::Contribution& body) noexcept {
  const ChunkSpan span = layout_.chunk(chunk);
  const Tensor& tensor = tensors_[span.tensor];
  const Dtype dtype = layout_.tensor(span.tensor).dtype;
  std::span<const std::uint8_t> payload;
  body.dtype = dtype;
  body.priority = priority_of(tensor);
  if (contributes(tensor)) {
    body.weight = tensor.nil ? nil_weight_ : tensor.submission.weight;
    if (has_data(tensor)) payload = input_of(tensor, span);
  } else if (late_.waiting(chunk)) {
    body.base_step = late_.entry(chunk).base;
    body.weight = late_.entry(chunk).weight;
    payload = late_.data(chunk);
  } else {  // no step may wait for a worker that has no more to say
    body.base_step = late_.waiting() ? late_.newest_base() : current_ - 1;
  }
  if (payload.empty()) {
    body.flags |= wire::kFlagNil;
    ++link_.stats.nil_contributions;
  } else {
    body.elem_count = span.elem_count;
    body.payload_bytes = static_cast<std::uint16_t>(payload.size());
  }
  return payload;
}

std::size_t GradientStream::write(const Choice& choice, std::span<std::uint8_t> out, TimeNs now,
                                  Priority& priority) noexcept {
  const ChunkIndex chunk = choice.chunk;
  if (!recovery_->take(chunk)) return 0;
  Flow& flow = link_.flows[choice.shard];
  wire::Contribution body{.flow = flow.next_header(now),
                          .step = current_,
                          .chunk = chunk,
                          .base_step = current_,
                          .stream = StreamId::kGradients};
  const std::span<const std::uint8_t> payload = fill_body(chunk, body);
  priority = body.priority;
  LastSent& last_sent = last_sent_[choice.shard];
  last_sent.number = body.flow.number;
  last_sent.unreported_priority = std::max(last_sent.unreported_priority, body.priority);
  if (flow.take_report_flag(choice.last)) {
    body.flags |= wire::kFlagReport;
    last_sent.unreported_priority = 0;
  }
  const bool again = recovery_->sent(chunk, body.flow.number, now, flow);
  link_.stats.retransmissions += again;
  if (trace_.on()) trace_.sent(layout_.chunk(chunk).tensor, current_, again, now);
  return wire::encode(out, link_.identity, body, {}, payload);
}

std::size_t GradientStream::write_finished(std::span<std::uint8_t> out, TimeNs now) noexcept {
  Flow& flow = link_.flows[0];
  // Whoever has heard nothing for a while does not know how far the others are.
  const bool stale = now - flow.heard_ns() > kIdleProbeInterval;
  wire::Finished body{.flow = flow.next_header(now), .step = finished_};
  if (stale && flow.take_report_flag(true)) body.flags |= wire::kFlagReport;
  finished_ = 0;
  return wire::encode(out, link_.identity, body);
}

// The report of a gradient without one: only the step that it would be of.
std::size_t GradientStream::write_reached(std::span<std::uint8_t> out, TimeNs now) noexcept {
  tell_reached_ = false;
  const wire::Finished body{
      .flow = link_.flows[0].next_header(now), .step = current_, .flags = wire::kFlagNil};
  return wire::encode(out, link_.identity, body);
}

Priority GradientStream::block_priority(std::uint32_t block) const noexcept {
  const ChunkIndex first = block * kChunksPerBlock;
  const ChunkIndex end = std::min(first + kChunksPerBlock, layout_.chunk_count());
  Priority least_urgent = 0;
  for (ChunkIndex chunk = first; chunk < end;) {
    const std::uint32_t index = layout_.chunk(chunk).tensor;
    const Tensor& tensor = tensors_[index];
    if (tensor.submitted || tensor.nil) least_urgent = std::max(least_urgent, priority_of(tensor));
    chunk = layout_.first_chunk(index + 1);
  }
  return least_urgent;
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
  for (std::uint32_t index = 0; index < tensors_.size(); ++index) {
    if (tensors_[index].submitted || tensors_[index].nil) add(open, open_count, index);
    if (tensors_[index].asked < current_) add(unsubmitted, unsubmitted_count, index);
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

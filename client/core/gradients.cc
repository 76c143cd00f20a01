#include "client/core/gradients.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "client/core/join.h"

namespace sluice::client {
namespace {

constexpr Step kLastStep = UINT32_MAX - 1;
constexpr Priority kNilPriority = 0;  // other ranks may wait for nothing else
constexpr std::size_t kListedTensors = 5;

}  // namespace

GradientStream::GradientStream(const SessionOptions& options, Layout layout, Averaging averaging,
                               Step first_step)
    : options_(options),
      layout_(std::move(layout)),
      plan_{.averaging = averaging, .world_size = options.world_size},
      tensors_(layout_.tensor_count()),
      links_(layout_.chunk_count()),
      current_(first_step),
      asked_step_(first_step) {
  for (Tensor& tensor : tensors_) tensor.asked = first_step - 1;
}

void GradientStream::join(std::uint16_t shard_count) {
  schedulers_.assign(shard_count, Scheduler(options_.schedule, links_));
  recovery_.emplace(layout_.chunk_count(), shard_count);
}

void GradientStream::start(TimeNs now) noexcept {
  started_ = true;
  last_progress_ns_ = now;
  for (std::uint32_t index = 0; index < tensors_.size(); ++index)
    if (tensors_[index].submitted || tensors_[index].nil) schedule(index);
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
  if (submission.input == nullptr && !options_.allow_nil)
    return fail_submit(index,
                       "input must not be null: this job does not allow tensors without data "
                       "(allow_nil)");
  Tensor& tensor = tensors_[index];
  if (tensor.submitted || tensor.asked > current_)
    return fail_submit(index, "submitted again before step " + std::to_string(tensor.asked) +
                                  " of it is done: wait for its result first");
  if (tensor.asked >= kLastStep)
    return fail_submit(index, "step numbers are used up after " + std::to_string(kLastStep) +
                                  " steps: start a new job from a checkpoint");
  ++tensor.asked;
  if (tensor.asked == current_) {
    tensor.submission = submission;
    tensor.submitted = true;
    nil_weight_ = submission.weight;
    activate(index, now);
  } else {
    tensor.held = submission;
    tensor.held_valid = true;
  }
  if (tensor.asked == asked_step_) {
    ended_by_itself_ = false;
    if (++asked_count_ == tensors_.size()) {
      advance_asked();
      ended_by_itself_ = true;
    }
  }
  return {};
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
  for (std::uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    if (tensor.asked >= step) continue;
    tensor.asked = step;
    if (step == current_) {
      tensor.nil = true;
      activate(index, now);
    } else {
      tensor.held_nil = true;
    }
  }
  advance_asked();
  return {};
}

void GradientStream::advance_asked() noexcept {
  ++asked_step_;
  asked_count_ = static_cast<std::uint32_t>(
      std::count_if(tensors_.begin(), tensors_.end(),
                    [this](const Tensor& tensor) { return tensor.asked >= asked_step_; }));
}

// The tensor takes part in the step under way, with data or without.
void GradientStream::activate(std::uint32_t index, TimeNs now) noexcept {
  Tensor& tensor = tensors_[index];
  tensor.any_data = false;
  tensor.non_finite = false;
  tensor.chunks_left = layout_.first_chunk(index + 1) - layout_.first_chunk(index);
  ++submitted_count_;
  last_progress_ns_ = std::max(last_progress_ns_, now);
  if (started_) schedule(index);
}

void GradientStream::schedule(std::uint32_t index) noexcept {
  const ChunkIndex end = layout_.first_chunk(index + 1);
  for (ChunkIndex chunk = layout_.first_chunk(index); chunk < end; ++chunk) {
    recovery_->expect(chunk);
    schedulers_[shard_of(chunk, shard_count())].push(chunk, priority_of(tensors_[index]));
  }
}

Priority GradientStream::priority_of(const Tensor& tensor) noexcept {
  return tensor.nil ? kNilPriority : tensor.submission.priority;
}

// ---- sending ----

std::size_t GradientStream::write_next(std::uint16_t shard, Link& link, std::span<std::uint8_t> out,
                                       TimeNs now, Priority& priority) noexcept {
  Scheduler& scheduler = schedulers_[shard];
  const ChunkIndex chunk = scheduler.pop();
  if (!recovery_->take(chunk)) return 0;
  const ChunkSpan span = layout_.chunk(chunk);
  const Tensor& tensor = tensors_[span.tensor];
  const Dtype dtype = layout_.tensor(span.tensor).dtype;
  Flow& flow = link.flows[shard];
  priority = priority_of(tensor);

  wire::Contribution body{.flow = flow.next_header(now),
                          .step = current_,
                          .chunk = chunk,
                          .base_step = current_,
                          .weight = tensor.nil ? nil_weight_ : tensor.submission.weight,
                          .stream = StreamId::kGradients,
                          .dtype = dtype,
                          .priority = priority};
  std::span<const std::uint8_t> payload;
  if (tensor.nil || tensor.submission.input == nullptr) {
    body.flags |= wire::kFlagNil;
    ++link.stats.nil_contributions;
  } else {
    body.elem_count = span.elem_count;
    body.payload_bytes = static_cast<std::uint16_t>(span.elem_count * dtype_bytes(dtype));
    payload = {static_cast<const std::uint8_t*>(tensor.submission.input) +
                   span.first_elem * dtype_bytes(dtype),
               body.payload_bytes};
  }
  if (flow.take_report_flag(scheduler.empty())) body.flags |= wire::kFlagReport;
  if (recovery_->sent(chunk, body.flow.number, now, flow)) ++link.stats.retransmissions;
  return wire::encode(out, link.identity, body, {}, payload);
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

// ---- receiving ----

Outcome GradientStream::handle_result(const wire::Packet& packet, Link& link, TimeNs now) noexcept {
  const auto& body = packet.body<wire::ResultHeader>();
  if (!started_) return {Verdict::kNotStarted, {}};
  if (body.step > current_) return {Verdict::kTooNew, {}};
  if (body.chunk >= layout_.chunk_count()) return {Verdict::kBadChunk, {}};
  if (body.step < current_) {
    ++link.stats.duplicate_results;
    return {Verdict::kDuplicate, {}};
  }
  const ChunkSpan span = layout_.chunk(body.chunk);
  const bool nil = body.flags & wire::kFlagNil;
  if (!nil &&
      (body.elem_count != span.elem_count || body.dtype != layout_.tensor(span.tensor).dtype))
    return {Verdict::kShapeMismatch, {}};
  if (!recovery_->wants(body.chunk)) return {Verdict::kNotAllowed, {}};
  if (!recovery_->result(body.chunk, now, link.flows[shard_of(body.chunk, shard_count())])) {
    ++link.stats.duplicate_results;
    return {Verdict::kDuplicate, {}};
  }
  last_progress_ns_ = now;
  apply(packet, span, link);
  Tensor& tensor = tensors_[span.tensor];
  if (--tensor.chunks_left != 0) return {Verdict::kFolded, {}};
  finish_tensor(span.tensor, link);
  if (++done_count_ != tensors_.size()) return {Verdict::kCompleted, {}};
  return {Verdict::kCompleted, finish_step(link, now)};
}

void GradientStream::blame(const Tensor& tensor, const ChunkSpan& span, Link& link) noexcept {
  if (!tensor.submitted || tensor.submission.input == nullptr) return;
  const Dtype dtype = layout_.tensor(span.tensor).dtype;
  const auto* input = static_cast<const std::uint8_t*>(tensor.submission.input) +
                      span.first_elem * dtype_bytes(dtype);
  if (!all_finite(input, span.elem_count, dtype, scratch_)) ++link.stats.non_finite_inputs;
}

// The chunk's average goes straight into the caller's memory. From here on its input may be gone:
// both may be the same memory.
void GradientStream::apply(const wire::Packet& packet, const ChunkSpan& span, Link& link) noexcept {
  const auto& body = packet.body<wire::ResultHeader>();
  Tensor& tensor = tensors_[span.tensor];
  tensor.weight = body.weight;
  bool finite = !(body.flags & wire::kFlagNonFinite);
  if (!finite) blame(tensor, span, link);  // while the input is still there
  if (!(body.flags & wire::kFlagNil)) {
    tensor.any_data = true;
    if (tensor.submitted) {
      auto* output = static_cast<std::uint8_t*>(tensor.submission.output) +
                     span.first_elem * dtype_bytes(body.dtype);
      finite &= write_average(output, packet.payload(), body.elem_count, body.dtype, body.weight,
                              body.flags & wire::kFlagMean, plan_, scratch_);
    }
  }
  if (finite) return;
  tensor.non_finite = true;
  ++link.stats.non_finite_results;
}

void GradientStream::finish_tensor(std::uint32_t index, Link& link) noexcept {
  Tensor& tensor = tensors_[index];
  if (tensor.submitted)
    link.events.push({.kind = Event::Kind::kTensorDone,
                      .tensor = index,
                      .step = current_,
                      .weight = tensor.weight,
                      .absent = !tensor.any_data,
                      .non_finite = tensor.non_finite});
  tensor.submitted = false;
  tensor.nil = false;
}

Status GradientStream::finish_step(Link& link, TimeNs now) noexcept {
  link.events.push({.kind = Event::Kind::kStepDone, .step = current_});
  if (current_ >= kLastStep)
    return {StatusCode::kExhausted,
            place_of(options_) + "step " + std::to_string(current_) +
                " was the last one, its number cannot grow: start a new job from a checkpoint"};
  ++current_;
  done_count_ = 0;
  submitted_count_ = 0;
  recovery_->begin_step();
  for (Scheduler& scheduler : schedulers_) scheduler.clear();
  for (std::uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    if (!tensor.held_valid && !tensor.held_nil) continue;
    if (tensor.held_valid) {
      tensor.submission = tensor.held;
      nil_weight_ = tensor.submission.weight;
    }
    tensor.submitted = tensor.held_valid;
    tensor.nil = tensor.held_nil;
    tensor.held_valid = tensor.held_nil = false;
    activate(index, now);
  }
  return {};
}

Outcome GradientStream::handle_answer(const wire::Packet& packet, Link& link, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Answer>();
  if (!started_ || body.step != current_) return {Verdict::kProbe, {}};
  const ChunkIndex first = body.block * kChunksPerBlock;
  if (body.block >= kMaxChunks / kChunksPerBlock || first >= layout_.chunk_count())
    return {Verdict::kBadChunk, {}};
  if (body.status == wire::AnswerStatus::kGone)
    return {Verdict::kTooOld, Status(StatusCode::kClosed,
                                     place_of(options_) + "step " + std::to_string(body.step) +
                                         " is no longer kept by the appliance, which is at step " +
                                         std::to_string(body.open_step) +
                                         ": the job went on without this rank; start it again")};
  const std::uint16_t shard = shard_of(first, shard_count());
  std::uint64_t lost = recovery_->answer(body, now, link.flows[shard]);
  for (; lost != 0; lost &= lost - 1) {
    const ChunkIndex chunk = first + static_cast<ChunkIndex>(std::countr_zero(lost));
    schedulers_[shard].push(chunk, priority_of(tensors_[layout_.chunk(chunk).tensor]));
  }
  return {Verdict::kProbe, {}};
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

// Stream 0, the receiving half: results into the caller's memory or the arena, the end of a step,
// and what becomes of a worker that the others have left behind.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "client/core/gradients.h"
#include "client/core/join.h"

namespace sluice::client {
namespace {

bool in_mask(const wire::Packet& packet, Rank rank) noexcept {
  const std::size_t word = rank.value / 64;
  return word < packet.mask_word_count() && (packet.mask_word(word) >> (rank.value % 64) & 1);
}

}  // namespace

Outcome GradientStream::handle_result(const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::ResultHeader>();
  if (!started_) return {Verdict::kNotStarted, {}};
  if (body.step > current_ || stranded_) {
    passed_ = std::max(passed_, Step{body.step});
    return {Verdict::kTooNew, {}};
  }
  if (body.chunk >= layout_.chunk_count()) return {Verdict::kBadChunk, {}};
  if (body.step < current_) {
    ++link_.stats.duplicate_results;
    return {Verdict::kDuplicate, {}};
  }
  const ChunkSpan span = layout_.chunk(body.chunk);
  const bool nil = body.flags & wire::kFlagNil;
  if (!nil &&
      (body.elem_count != span.elem_count || body.dtype != layout_.tensor(span.tensor).dtype))
    return {Verdict::kShapeMismatch, {}};
  const ChunkResult result{.payload = packet.payload(),
                           .weight = body.weight,
                           .flags = body.flags,
                           .counted = in_mask(packet, options_.rank)};
  const bool wanted = recovery_->wants(body.chunk);
  if (!wanted && !tolerant()) return {Verdict::kNotAllowed, {}};
  Flow& flow = link_.flows[shard_of(body.chunk, shard_count())];
  const bool fresh =
      wanted ? recovery_->result(body.chunk, now, flow) : arena_->store(body.chunk, result);
  if (!fresh) {
    ++link_.stats.duplicate_results;
    return {Verdict::kDuplicate, {}};
  }
  add_to_report(packet);
  trace_.result(span.tensor, current_,
                {.k = body.k, .first_us = body.first_age_us, .complete_us = body.complete_age_us},
                flow.rtt().shortest_ns(), now);
  if (!wanted) return {Verdict::kFolded, {}};
  last_progress_ns_ = now;
  apply(body.chunk, span, result);
  Verdict verdict{};
  Status status = chunk_done(span.tensor, now, verdict);
  return {verdict, std::move(status)};
}

void GradientStream::add_to_report(const wire::Packet& packet) noexcept {
  const auto& body = packet.body<wire::ResultHeader>();
  StepReport& report = open_report_;
  const bool first = report.step == 0;
  report.step = body.step;
  report.k = first ? body.k : std::min(report.k, std::uint16_t{body.k});
  report.weight = first ? body.weight : std::min(report.weight, std::uint64_t{body.weight});
  report.mask_words = static_cast<std::uint16_t>(mask_words(options_.world_size));
  for (std::size_t word = 0; word < report.mask_words; ++word) {
    const std::uint64_t ranks = word < packet.mask_word_count() ? packet.mask_word(word) : 0;
    report.in_every[word] = first ? ranks : report.in_every[word] & ranks;
    report.in_any[word] |= ranks;
  }
}

const StepReport* GradientStream::report(Step step) const noexcept {
  const StepReport& report = reports_[step % kReportedSteps];
  return step != 0 && report.step == step ? &report : nullptr;
}

void GradientStream::blame(const Tensor& tensor, const ChunkSpan& span) noexcept {
  if (!has_data(tensor)) return;
  const Dtype dtype = layout_.tensor(span.tensor).dtype;
  if (!all_finite(input_of(tensor, span).data(), span.elem_count, dtype, scratch_))
    ++link_.stats.non_finite_inputs;
}

// What the result says about this worker's own part. The input is still there.
void GradientStream::account(ChunkIndex chunk, const Tensor& tensor, const ChunkSpan& span,
                             bool counted) noexcept {
  if (has_data(tensor)) {
    if (counted || !tolerant())
      late_.delivered();
    else
      late_.missed(chunk, current_, tensor.submission.weight, input_of(tensor, span));
    if (!recovery_->was_sent(chunk)) link_.stats.cancelled_bytes += input_of(tensor, span).size();
  } else if (counted && !contributes(tensor) && late_.waiting(chunk)) {
    late_.requeued(chunk);
  }
}

// The chunk's average goes straight into the caller's memory. From here on its input may be gone:
// both may be the same memory.
void GradientStream::apply(ChunkIndex chunk, const ChunkSpan& span,
                           const ChunkResult& result) noexcept {
  Tensor& tensor = tensors_[span.tensor];
  tensor.weight = result.weight;
  account(chunk, tensor, span, result.counted);
  bool finite = !(result.flags & wire::kFlagNonFinite);
  if (!finite) blame(tensor, span);  // while the input is still there
  if (result.flags & wire::kFlagNil) {
    tensor.some_absent = true;
    if (tolerant()) arena_->note_absent(chunk);
  } else {
    tensor.any_data = true;
    if (tensor.submitted) {
      const Dtype dtype = layout_.tensor(span.tensor).dtype;
      auto* output = static_cast<std::uint8_t*>(tensor.submission.output) +
                     span.first_elem * dtype_bytes(dtype);
      finite &= write_average(output, result.payload, span.elem_count, dtype, result.weight,
                              result.flags & wire::kFlagMean, plan_, scratch_);
    }
  }
  if (finite) return;
  tensor.non_finite = true;
  ++link_.stats.non_finite_results;
}

Status GradientStream::chunk_done(std::uint32_t index, TimeNs now, Verdict& verdict) noexcept {
  verdict = Verdict::kFolded;
  if (--tensors_[index].chunks_left != 0) return {};
  verdict = Verdict::kCompleted;
  if (tensors_[index].submitted) trace_.done(index, current_, now);
  finish_tensor(index);
  return ++done_count_ == tensors_.size() ? finish_step(now) : Status();
}

// A part of a tensor that nobody contributed to, beside others, is zero on every rank: what this
// rank has there may be its own gradient.
void GradientStream::clear_absent_parts(std::uint32_t index) noexcept {
  const std::size_t elem_bytes = dtype_bytes(layout_.tensor(index).dtype);
  auto* output = static_cast<std::uint8_t*>(tensors_[index].submission.output);
  const ChunkIndex end = layout_.first_chunk(index + 1);
  for (ChunkIndex chunk = layout_.first_chunk(index); chunk < end; ++chunk) {
    if (!arena_->absent(chunk)) continue;
    const ChunkSpan span = layout_.chunk(chunk);
    std::memset(output + span.first_elem * elem_bytes, 0, span.elem_count * elem_bytes);
  }
}

void GradientStream::finish_tensor(std::uint32_t index) noexcept {
  Tensor& tensor = tensors_[index];
  if (tolerant() && tensor.submitted && tensor.any_data && tensor.some_absent)
    clear_absent_parts(index);
  if (tensor.submitted)
    link_.events.push({.kind = Event::Kind::kTensorDone,
                       .tensor = index,
                       .step = current_,
                       .weight = tensor.weight,
                       .absent = !tensor.any_data,
                       .non_finite = tensor.non_finite});
  tensor.submitted = false;
  tensor.nil = false;
}

Status GradientStream::finish_step(TimeNs now) noexcept {
  link_.events.push(
      {.kind = Event::Kind::kStepDone, .step = current_, .weight = open_report_.weight});
  tell_reached_ = tolerant() && open_report_.k < 2;  // one rank completes steps alone
  reports_[current_ % kReportedSteps] = std::exchange(open_report_, {});
  if (current_ >= kLastStep)
    return {StatusCode::kExhausted,
            place_of(options_) + "step " + std::to_string(current_) +
                " was the last one, its number cannot grow: start a new job from a checkpoint"};
  ++current_;
  done_count_ = 0;
  submitted_count_ = 0;
  recovery_->begin_step();
  scheduler_->clear();
  if (tolerant()) {
    arena_->clear();
    closed_ = known_open_ > current_;
    late_.expire(std::max(current_, known_open_));
  }
  catching_up_ = std::any_of(tensors_.begin(), tensors_.end(), [](const Tensor& tensor) {
    return tensor.held_valid && !tensor.held.contribute;
  });
  for (std::uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    if (!tensor.held_valid && !tensor.held_nil) continue;
    if (tensor.held_valid) {
      tensor.submission = tensor.held;
      if (tensor.submission.contribute) nil_weight_ = tensor.submission.weight;
    }
    tensor.submitted = tensor.held_valid;
    tensor.nil = tensor.held_nil;
    tensor.held_valid = tensor.held_nil = false;
    if (Status status = activate(index, now); !status.ok()) return status;
  }
  return {};
}

Outcome GradientStream::handle_answer(const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Answer>();
  if (!started_ || body.step != current_ || stranded_) return {Verdict::kProbe, {}};
  const ChunkIndex first = body.block * kChunksPerBlock;
  if (body.block >= kMaxChunks / kChunksPerBlock || first >= layout_.chunk_count())
    return {Verdict::kBadChunk, {}};
  if (body.status == wire::AnswerStatus::kGone) {
    const std::string gone = place_of(options_) + "step " + std::to_string(body.step) +
                             " is no longer kept by the appliance, which is at step " +
                             std::to_string(body.open_step) + ": ";
    if (!tolerant())
      return {Verdict::kTooOld, Status(StatusCode::kClosed,
                                       gone + "the job went on without this rank; start it again")};
    link_.events.push(
        {.kind = Event::Kind::kFellBehind,
         .step = current_,
         .status = Status(StatusCode::kBehind, gone + "get the state of another rank (resync)")});
    strand();
    return {Verdict::kTooOld, {}};
  }
  const std::uint16_t shard = shard_of(first, shard_count());
  std::uint64_t lost = recovery_->answer(body, now, link_.flows[shard]);
  for (; lost != 0; lost &= lost - 1) {
    const ChunkIndex chunk = first + static_cast<ChunkIndex>(std::countr_zero(lost));
    scheduler_->push_again(chunk, priority_of(tensors_[layout_.chunk(chunk).tensor]));
  }
  return {Verdict::kProbe, {}};
}

// ---- stragglers ----

// All chunks of earlier steps are closed, in every shard: nobody needs this worker's part of them.
void GradientStream::learn_open_step(Step open_step, TimeNs now) noexcept {
  if (!tolerant() || open_step <= known_open_) return;
  known_open_ = open_step;
  // What is on its way to the step under way may be counted there, however far the others are.
  if (submitted_count_ == 0) late_.expire(std::max(current_, known_open_));
  if (closed_ || stranded_ || known_open_ <= current_) return;
  closed_ = true;
  recovery_->close_step(now + kIdleProbeInterval);
}

void GradientStream::strand() noexcept {
  for (std::uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    if (has_data(tensor)) late_.unknown(tensor.chunks_left);
    if (tensor.held_valid && tensor.held.contribute && tensor.held.input != nullptr)
      late_.unknown(layout_.first_chunk(index + 1) - layout_.first_chunk(index));
    tensor.submitted = tensor.nil = tensor.held_valid = tensor.held_nil = false;
  }
  late_.discard_all();
  recovery_->abandon(link_.flows);
  scheduler_->clear();
  arena_->clear();
  open_report_ = {};
  done_count_ = submitted_count_ = 0;
  finished_ = 0;
  tell_reached_ = false;
  catching_up_ = false;
  stranded_ = true;
}

void GradientStream::resume(Step step, TimeNs now) noexcept {
  current_ = asked_step_ = step;
  asked_count_ = 0;
  ended_by_itself_ = false;
  for (Tensor& tensor : tensors_) tensor.asked = step - 1;
  closed_ = known_open_ > current_;
  last_progress_ns_ = now;
  relearn();
  stranded_ = false;
  tell_reached_ = true;
}

}  // namespace sluice::client

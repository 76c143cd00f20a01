// Stream 0 of a worker that is late: the appliance's answers about its chunks, steps that closed
// without it, and falling behind.
#include <algorithm>
#include <string>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/sums/gradients.h"

namespace sluice::client {

Verdict GradientStream::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  if (!started_ || body.step != step_on_wire() || !tensors_.behind_status().ok())
    return Verdict::kProbe;
  const ChunkIndex first = body.block * kChunksPerBlock;
  if (body.block >= kMaxChunks / kChunksPerBlock || first >= layout_.chunk_count())
    return Verdict::kBadChunk;
  if (body.status == wire::AnswerStatus::kGone) {
    const std::string gone = error_prefix(options_) + "step " + std::to_string(body.step) +
                             " is no longer kept by the appliance, which is at step " +
                             std::to_string(body.open_step) + ": ";
    if (!tolerant()) {
      link_.fail({StatusCode::kClosed, gone + "the job went on without this rank; start it again"});
    } else {
      Status why(StatusCode::kBehind, gone + "get the state of another rank (resync)");
      link_.events.push({.kind = Event::Kind::kFellBehind, .step = current_step(), .status = why});
      fall_behind(std::move(why));
    }
    return Verdict::kTooOld;
  }
  const std::uint16_t shard = shard_of(first, link_.shard_count());
  const std::uint64_t lost = recovery_->answer(body, now, link_.flows[shard]);
  finish_unwanted(body.block, body.counted | body.complete, now);
  if (body.step != step_on_wire()) return Verdict::kProbe;  // that was the rest of it
  send_again(body.block, lost);
  return Verdict::kProbe;
}

void GradientStream::send_again(std::uint32_t block, std::uint64_t chunks) {
  for (; chunks != 0; chunks &= chunks - 1) {
    const ChunkIndex chunk = first_chunk(block, chunks);
    DCHECK(chunk < layout_.chunk_count());
    const std::uint32_t tensor = layout_.chunk(chunk).tensor;
    DCHECK(tensors_.active(tensor) || handed_.holds(chunk));
    scheduler_->push_again(chunk, carries_data(chunk, tensor) ? priority_of(tensor) : kNilPriority);
  }
}

void GradientStream::finish_unwanted(std::uint32_t block, std::uint64_t chunks, TimeNs now) {
  const Step step = current_step();
  Flow& flow = link_.flows[block % link_.shard_count()];
  for (std::uint64_t rest =
           recovery_->results(block, recovery_->unwanted(block, chunks), now, flow);
       rest != 0 && step == current_step(); rest &= rest - 1) {
    const ChunkIndex chunk = first_chunk(block, rest);
    const ChunkSpan span = layout_.chunk(chunk);
    DCHECK(!tolerant() && !wants_average(span.tensor));
    Average& average = averages_[span.tensor];
    average.weight = tensors_.submission(span.tensor).weight;
    average.any_data |= has_data(span.tensor);
    account(chunk, span, true);
    last_progress_ns_ = now;
    (void)chunks_done(span.tensor, 1, now);
  }
}

// All chunks of earlier steps are closed, in every shard: no rank needs this worker's part of them.
void GradientStream::advance_open_step(Step open_step, TimeNs now) noexcept {
  CHECK(tolerant() && open_step > known_open_);
  const bool was_closed = closed();
  known_open_ = open_step;
  // A late chunk that is on its way to the step under way may be counted there, however far the
  // others are.
  if (!tensors_.begun()) late_.expire(std::max(current_step(), known_open_));
  if (was_closed || !closed() || !tensors_.behind_status().ok()) return;
  CHECK(started_);
  recovery_->close_step(now + kIdleProbeInterval);
}

// A contribution that was sent and not answered has left with its residual.
void GradientStream::discard_unknown(std::uint32_t tensor) noexcept {
  CHECK(has_data(tensor));
  for (ChunkIndex chunk = layout_.first_chunk(tensor); chunk < layout_.first_chunk(tensor + 1);
       ++chunk) {
    const bool is_open = started_ && !gathers_ ? recovery_->lacks(chunk) : !has(results_, chunk);
    const bool was_sent =
        recovery_->was_sent(chunk) || (results_step_ == current_step() && has(sent_, chunk));
    if (is_open && was_sent) residuals_.discard(layout_.chunk(chunk));
  }
}

void GradientStream::fall_behind(Status why) {
  CHECK(tolerant() && !why.ok());
  await_measurements();
  CHECK(measuring_.empty());
  for (std::uint32_t tensor = 0; tensor < tensors_.count(); ++tensor) {
    if (!tensors_.in_flight(tensor)) continue;
    const bool partly = has_data(tensor) && averages_[tensor].chunks_left != 0;
    if (tensors_.carries_data(tensor))
      late_.unknown(partly ? averages_[tensor].chunks_left : layout_.chunks_of(tensor));
    if (has_data(tensor) && residuals_.covers(tensor)) discard_unknown(tensor);
    link_.events.push({.kind = Event::Kind::kTensorLost, .tensor = tensor, .status = why});
  }
  tensors_.fall_behind(std::move(why));
  tensors_.abandon();
  std::fill(averages_.begin(), averages_.end(), Average{});
  late_.discard_all();
  recovery_->abandon(link_.flows);
  scheduler_->clear();
  arena_->clear();
  if (kept_) kept_->clear();  // another sum may take their place
  gathers_ = false;
  reports_.abandon();
  scheduled_count_ = 0;
  reports_due_ = {};
}

void GradientStream::resume(Step step, TimeNs now) noexcept {
  CHECK(!tensors_.behind_status().ok() && !late_.waiting());
  CHECK(scheduled_count_ == 0 && reports_due_.finished == 0);
  tensors_.resume(step);
  link_.counters.steps_done = step - 1;
  last_progress_ns_ = now;
  members_changed();
  reports_due_.reached = true;
}

}  // namespace sluice::client

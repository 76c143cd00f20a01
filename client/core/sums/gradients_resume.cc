// Stream 0 at an appliance that has come back without its sums: who has which result, and how the
// step that it was lost in goes on. handover/resumption.h decides, this sends.
#include <algorithm>
#include <string>

#include "aggregator/base/check.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/sparse.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/sums/gradients.h"

namespace sluice::client {
namespace {

// What others have given is kept as well.
void keep(ReceiveArena& kept, const ReceiveArena& given, ChunkIndex chunk_count) noexcept {
  for (ChunkIndex chunk = 0; chunk < chunk_count; ++chunk)
    if (given.has(chunk)) kept.replace(chunk, given.get(chunk));
}

}  // namespace

// Of the step under way: those that this membership has brought, and those of memberships before.
void GradientStream::note_results() {
  const std::size_t words = Resumption::words(layout_.chunk_count());
  if (results_step_ != current_step()) {
    results_.clear();
    sent_.clear();
  }
  results_.resize(words);
  sent_.resize(words);
  results_step_ = current_step();
  if (!started_ || gathers_ || step_on_wire() != current_step()) return;
  for (ChunkIndex chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
    // With k < n a result that came early is used without having been asked for.
    const bool is_here = tolerant() ? averages_[layout_.chunk(chunk).tensor].chunks_left != 0
                                    : recovery_->wants(chunk);
    if (is_here && !recovery_->lacks(chunk)) results_[chunk / kChunksPerBlock] |= chunk_bit(chunk);
    if (recovery_->was_sent(chunk)) sent_[chunk / kChunksPerBlock] |= chunk_bit(chunk);
  }
}

void GradientStream::change_appliance(const wire::Accept& accept) {
  CHECK(recovery_.has_value());
  note_results();
  if (gathers_) keep(*kept_, *arena_, layout_.chunk_count());
  handed_ = {};
  entries_ = {};
  started_ = gathers_ = false;
  known_open_ = passed_ = 0;
  make_flows(accept);
}

void GradientStream::begin_there(Step first_step, bool gathers, TimeNs now) noexcept {
  CHECK(tolerant() && !started_);
  started_ = true;
  gathers_ = gathers;
  first_step_ = first_step;
  owed_ = 0;
  last_progress_ns_ = now;
}

// What others had of the step under way is in the arena, or is pulled.
void GradientStream::go_on(Step open_step, TimeNs now) {
  CHECK(tolerant() && gathers_ && open_step != 0);
  const Step step = current_step();
  keep(*kept_, *arena_, layout_.chunk_count());
  gathers_ = false;
  known_open_ = open_step;
  if (closed())
    passed_ = std::max(passed_, step);
  else if (tensors_.catching_up())
    owed_ = step;
  last_progress_ns_ = now;
  if (scheduled_count_ != 0) scheduler_->begin_step(now);
  for (ChunkIndex chunk = 0; chunk < layout_.chunk_count() && step == current_step(); ++chunk) {
    const ChunkSpan span = layout_.chunk(chunk);
    if (averages_[span.tensor].chunks_left == 0 || has(results_, chunk)) continue;
    if (!arena_->has(chunk)) {
      schedule_chunk(chunk, span.tensor, now);
      continue;
    }
    apply(chunk, span, arena_->get(chunk));
    (void)chunks_done(span.tensor, 1, now);
  }
}

Status GradientStream::go_on(const Resumption& resumption, TimeNs now) {
  CHECK(!started_ && (kept_.has_value() || options_.world_size == 1));
  CHECK(resumption.first_step() + resumption.is_ahead() == current_step());
  started_ = true;
  last_progress_ns_ = now;
  handed_ = HandedOver(resumption.first_step(), layout_.chunk_count());
  if (resumption.is_ahead() || scheduled_count_ != 0) scheduler_->begin_step(now);
  bool any = false;
  for (ChunkIndex chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
    const std::uint32_t tensor = layout_.chunk(chunk).tensor;
    // Some of the tensor's results are still to come, and it has been handed to the scheduler.
    const bool takes_part = !resumption.is_ahead() && averages_[tensor].chunks_left != 0;
    if (resumption.is_ahead() || resumption.is_held(chunk)) {
      if (Status status = hand_over(resumption, chunk, takes_part); !status.ok()) return status;
      any = true;
    } else if (takes_part) {
      schedule_chunk(chunk, tensor, now);
    }
  }
  if (!any) handed_ = {};
  return {};
}

Status GradientStream::hand_over(const Resumption& resumption, ChunkIndex chunk,
                                 bool takes_part) noexcept {
  const std::uint32_t tensor = layout_.chunk(chunk).tensor;
  if (!resumption.has(chunk) && !takes_part)
    return {StatusCode::kRefused,
            error_prefix(options_) + "another rank has a result of tensor '" +
                layout_.tensor(tensor).name + "' of step " + std::to_string(handed_.step()) +
                ", to which this rank has not contributed: start the job again from a checkpoint"};
  bool data = false;
  handed_.add(chunk, resumption.has(chunk), resumption.gives(chunk));
  if (handed_.gives(chunk)) {
    const ChunkResult result = kept_->get(chunk);
    if (result.summed.weight > UINT32_MAX)
      return {StatusCode::kInvalidArgument,
              error_prefix(options_) + "the weights of step " + std::to_string(handed_.step()) +
                  " sum to " + std::to_string(result.summed.weight) +
                  ", and a result is given to another rank with a weight of at most " +
                  std::to_string(UINT32_MAX) + ": divide all ranks' weights by one number"};
    data = !result.absent;
  }
  bool alone = true;
  if (data)
    recovery_->expect(chunk);
  else
    alone = recovery_->expect_absent(chunk / kChunksPerBlock, chunk_bit(chunk)) != 0;
  if (alone) scheduler_->push_again(chunk, data ? priority_of(tensor) : kNilPriority);
  return {};
}

// Who gives a result adds it alone to what has no weight, so it comes out as it went in.
GradientStream::Offer GradientStream::offer_handed_over(ChunkIndex chunk,
                                                        const ChunkSpan& span) const noexcept {
  Offer offer{.base_step = handed_.step()};
  if (!handed_.gives(chunk)) return offer;
  const ChunkResult result = kept_->get(chunk);
  offer.weight = static_cast<std::uint32_t>(result.summed.weight);
  if (result.absent) return offer;
  offer.payload = result.payload;
  offer.averaged = result.summed.is_mean;
  const Dtype dtype = layout_.result_dtype(span.tensor);
  if (!result.is_entry) return offer;
  wire::SparseEntry entry;
  std::span<const std::uint8_t> bytes = result.payload;
  if (!bytes.empty()) entry = wire::take_entry(bytes, span.elem_count, dtype);
  agg::expand(entry, span.elem_count, dtype, given_);
  offer.payload = {given_, payload_bytes(dtype, span.elem_count)};
  return offer;
}

// A chunk is closed whose result this worker had.
Verdict GradientStream::handed_over(TimeNs now) {
  last_progress_ns_ = now;
  handed_.close_one();
  if (!handed_.is_over()) return Verdict::kFolded;
  if (handed_.step() == current_step()) {
    if (!step_is_over()) return Verdict::kFolded;
    finish_step();
    return Verdict::kCompleted;
  }
  handed_ = {};
  recovery_->begin_step();
  scheduler_->clear();
  if (scheduled_count_ == 0) return Verdict::kCompleted;
  scheduler_->begin_step(now);  // of its own step, of which no rank has a result
  for (ChunkIndex chunk = 0; chunk < layout_.chunk_count(); ++chunk)
    if (const std::uint32_t tensor = layout_.chunk(chunk).tensor; averages_[tensor].chunks_left)
      schedule_chunk(chunk, tensor, now);
  return Verdict::kCompleted;
}

}  // namespace sluice::client

// Stream 0, the receiving half: results into the caller's memory or the arena, the end of a step.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"
#include "aggregator/core/sparse.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/sums/gradients.h"

namespace sluice::client {
namespace {

bool in_mask(const wire::Packet& packet, Rank rank) noexcept {
  const std::size_t word = rank.value / 64;
  return word < packet.mask_word_count() && (packet.mask_word(word) >> (rank.value % 64) & 1);
}

std::uint16_t member_count(const wire::Packet& packet) noexcept {
  int count = 0;
  for (std::size_t word = 0; word < packet.mask_word_count(); ++word)
    count += std::popcount(packet.mask_word(word));
  return static_cast<std::uint16_t>(count);
}

}  // namespace

Verdict GradientStream::handle_result(const wire::Packet& packet, TimeNs now) {
  const Step current = step_on_wire();
  const auto& body = packet.body<wire::ResultHeader>();
  if (!started_) return Verdict::kNotStarted;
  if (body.step > current || !tensors_.behind_status().ok()) {
    passed_ = std::max(passed_, Step{body.step});
    return Verdict::kTooNew;
  }
  const std::uint32_t block = body.chunk / kChunksPerBlock;
  if (body.chunk >= layout_.chunk_count() ||
      block * kChunksPerBlock + static_cast<ChunkIndex>(std::bit_width(packet.chunks())) >
          layout_.chunk_count())
    return Verdict::kBadChunk;
  if (body.step < current) {
    ++link_.counters.duplicate_results;
    return Verdict::kDuplicate;
  }
  const bool sparse = body.feedback.flags & wire::kFlagSparse;
  std::span<const std::uint8_t> entries = packet.payload();
  std::array<std::uint64_t, kMaskWords> mask;
  for (std::size_t word = 0; tolerant() && word < packet.mask_word_count(); ++word)
    mask[word] = packet.mask_word(word);
  ChunkResult result{.payload = entries,
                     .is_entry = sparse,
                     .absent = entries.empty() && !sparse,
                     .summed = {.weight = body.weight,
                                .members = member_count(packet),
                                .may_count = body.may_count,
                                .is_mean = (body.feedback.flags & wire::kFlagMean) != 0},
                     .mask = std::span(mask).first(tolerant() ? packet.mask_word_count() : 0),
                     .step = body.step,
                     .k = body.k,
                     .non_finite = (body.feedback.flags & wire::kFlagNonFinite) != 0,
                     .counted = in_mask(packet, options_.rank)};
  Verdict best = Verdict::kAccepted;
  DCHECK(std::countr_zero(packet.chunks()) == static_cast<int>(body.chunk % kChunksPerBlock));
  for (std::uint64_t rest = packet.chunks(); rest != 0;) {
    std::uint64_t chunks = rest & -rest;
    if (sparse) {
      result.payload = entries;
      if ((packet.filled() & chunks) != 0)
        (void)wire::take_entry(entries, body.elem_count, body.dtype);
      result.payload = result.payload.first(result.payload.size() - entries.size());
      result.is_entry = result.payload.size() < payload_bytes(body.dtype, body.elem_count);
      if (!result.is_entry) result.payload = expanded(result.payload, body.elem_count, body.dtype);
    } else if (result.absent && !result.non_finite) {
      chunks = rest & alike_without_data(first_chunk(block, rest));
    }
    rest &= ~chunks;
    const Verdict verdict = take_result(packet, block, chunks, result, now);
    if (best == Verdict::kAccepted || is_better(verdict, best)) best = verdict;
    if (step_on_wire() != current) break;  // it was the step's last one
  }
  return best;
}

// The dense payload of an entry, or of none. Valid until the next call.
std::span<const std::uint8_t> GradientStream::expanded(std::span<const std::uint8_t> bytes,
                                                       std::size_t elem_count,
                                                       Dtype dtype) noexcept {
  wire::SparseEntry entry;
  if (!bytes.empty()) entry = wire::take_entry(bytes, elem_count, dtype);
  agg::expand(entry, elem_count, dtype, expanded_);
  return {expanded_, payload_bytes(dtype, elem_count)};
}

// Several chunks at once are of one tensor, and without data.
Verdict GradientStream::take_result(const wire::Packet& packet, std::uint32_t block,
                                    std::uint64_t chunks, const ChunkResult& result, TimeNs now) {
  const Step current = current_step();
  const auto& body = packet.body<wire::ResultHeader>();
  ChunkIndex chunk = first_chunk(block, chunks);
  DCHECK(at_most_one(chunks) || (result.absent && !tolerant()));
  const ChunkSpan span = layout_.chunk(chunk);
  const bool nil = body.feedback.flags & wire::kFlagNil;
  if (!nil &&
      (body.elem_count != span.elem_count || body.dtype != layout_.result_dtype(span.tensor)))
    return Verdict::kShapeMismatch;
  const std::uint16_t members = result.summed.members;
  if (members > body.may_count || packet.mask_word_count() > mask_words(options_.world_size))
    return Verdict::kBadField;
  const bool wanted = recovery_->wants(chunk);
  if (!wanted && !tolerant()) return Verdict::kNotAllowed;
  Flow& flow = link_.flows[link_.shard_of_chunk(chunk)];
  std::uint64_t fresh = 0;
  if (wanted)
    fresh = recovery_->results(block, chunks, now, flow);
  else if (arena_->store(chunk, result))
    fresh = chunks;
  link_.counters.duplicate_results += count_of(chunks & ~fresh);
  if (fresh == 0) return Verdict::kDuplicate;
  chunk = first_chunk(block, fresh);
  if (handed_.is_here(chunk)) return handed_over(now);
  // What was kept before may be on its way to others yet: what comes meanwhile is in the arena.
  for (std::uint64_t rest = fresh; kept_ && !gathers_ && rest != 0; rest &= rest - 1)
    kept_->replace(first_chunk(block, rest), result);
  reports_.add(packet, chunk, members);
  trace_.result(span.tensor, current,
                {.k = body.k, .first_us = body.first_age_us, .complete_us = body.complete_age_us},
                flow.rtt().shortest_ns(), now);
  DCHECK(!wanted || tensors_.active(span.tensor));
  if (!wanted) return Verdict::kFolded;
  last_progress_ns_ = now;
  apply(chunk, span, result);
  return chunks_done(span.tensor, count_of(fresh), now);
}

void GradientStream::count_own_non_finite(const ChunkSpan& span) noexcept {
  if (!has_data(span.tensor)) return;
  const std::uint8_t* sent = input_of(span).data();
  if (residuals_.covers(span.tensor)) {  // what the format cannot hold is infinite in it
    residuals_.pack(span, as_floats(input_of(span)), packed_);
    sent = packed_;
  }
  if (!all_finite(sent, span.elem_count, layout_.wire_dtype(span.tensor), scratch_))
    ++link_.counters.non_finite_inputs;
}

// Notes the result's verdict about this worker's own part. The input is still there.
void GradientStream::account(ChunkIndex chunk, const ChunkSpan& span, bool counted) noexcept {
  DCHECK(recovery_->wants(chunk) || (tolerant() && arena_->has(chunk)));
  if (!has_data(span.tensor)) {
    if (counted && !contributes(span.tensor) && late_.waiting(chunk)) late_.requeued(chunk);
    return;
  }
  const bool delivered = counted || !tolerant();
  const bool packs = residuals_.covers(span.tensor);
  const std::size_t bytes = payload_bytes(layout_.wire_dtype(span.tensor), span.elem_count);
  if (packs) {
    if (!delivered && late_.requeues()) residuals_.pack(span, as_floats(input_of(span)), packed_);
    residuals_.update(span, as_floats(input_of(span)), delivered || late_.requeues());
  }
  if (delivered)
    late_.delivered();
  else if (packs && !late_.requeues())
    late_.kept();
  else
    late_.missed(chunk, current_step(), tensors_.submission(span.tensor).weight,
                 {packs ? packed_ : input_of(span).data(), bytes});
  if (!recovery_->was_sent(chunk)) link_.counters.cancelled_bytes += bytes;
}

// The chunk's average goes straight into the caller's memory. From here on its input may be gone:
// both may be the same memory.
void GradientStream::apply(ChunkIndex chunk, const ChunkSpan& span,
                           const ChunkResult& result) noexcept {
  Average& average = averages_[span.tensor];
  DCHECK(tensors_.active(span.tensor) && average.chunks_left != 0);
  average.weight = result.summed.weight;
  bool finite = !result.non_finite;
  if (!finite) count_own_non_finite(span);  // while the input is still there
  account(chunk, span, result.counted);
  if (result.absent) {
    average.some_absent = true;
    if (tolerant()) arena_->note_absent(chunk);
  } else {
    average.any_data = true;
    FarTensor* const far = tensors_.submission(span.tensor).far;
    if (wants_average(span.tensor) && far != nullptr) {
      const Scaling scaling = scaling_of(result.summed, tensors_.averaging(span.tensor));
      far->keep_result(chunk - layout_.first_chunk(span.tensor), result.payload, scaling.factor,
                       scaling.divisor);
      finite &= scaling.defined;
    } else if (wants_average(span.tensor)) {
      const Dtype dtype = layout_.tensor(span.tensor).dtype;
      auto* output = static_cast<std::uint8_t*>(tensors_.submission(span.tensor).output) +
                     span.first_elem * dtype_bytes(dtype);
      const Dtype wire = layout_.result_dtype(span.tensor);
      const auto payload =
          result.is_entry ? expanded(result.payload, span.elem_count, wire) : result.payload;
      finite &= write_average(output, payload, span.elem_count, dtype, wire, result.summed,
                              tensors_.averaging(span.tensor), scratch_);
      // Results come mostly in order.
      const std::size_t bytes = span.elem_count * dtype_bytes(dtype);
      if (chunk + 1 != layout_.first_chunk(span.tensor + 1))
        prefetch<Use::kWrite>(output + bytes, bytes);
    }
  }
  if (finite) return;
  average.non_finite = true;
  ++link_.counters.non_finite_results;
}

void GradientStream::confirm_departures(std::uint16_t shard) noexcept {
  Ring<Departure>& departures = departures_[shard];
  while (!departures.empty() && link_.flows[shard].all_arrived_up_to(departures.front().number)) {
    DCHECK(ahead(departures.front().number, last_sent_[shard].number) <= 0);
    recovery_->confirm(departures.pop().block);
  }
}

Verdict GradientStream::chunks_done(std::uint32_t tensor, std::uint32_t count, TimeNs now) {
  CHECK(averages_[tensor].chunks_left >= count);
  averages_[tensor].chunks_left -= count;
  if (averages_[tensor].chunks_left != 0) return Verdict::kFolded;
  finish_tensor(tensor, now);
  if (step_is_over()) finish_step();
  return Verdict::kCompleted;
}

// A part of a tensor that no rank contributed to, beside others, is zero on every rank. This rank's
// memory may hold its own gradient there.
void GradientStream::clear_absent_parts(std::uint32_t tensor) noexcept {
  const std::size_t elem_bytes = dtype_bytes(layout_.tensor(tensor).dtype);
  CHECK(tolerant() && wants_average(tensor));
  if (residuals_.is_far(tensor)) return;  // that is how its results begin
  auto* output = static_cast<std::uint8_t*>(tensors_.submission(tensor).output);
  const ChunkIndex end = layout_.first_chunk(tensor + 1);
  for (ChunkIndex chunk = layout_.first_chunk(tensor); chunk < end; ++chunk) {
    if (!arena_->absent(chunk)) continue;
    const ChunkSpan span = layout_.chunk(chunk);
    std::memset(output + span.first_elem * elem_bytes, 0, span.elem_count * elem_bytes);
  }
}

void GradientStream::finish_tensor(std::uint32_t tensor, TimeNs now) {
  const Average& average = averages_[tensor];
  const bool wanted = wants_average(tensor);
  CHECK(average.chunks_left == 0 && (average.any_data || average.some_absent || !wanted));
  if (tolerant() && wanted && average.any_data && average.some_absent) clear_absent_parts(tensor);
  if (tensors_.part(tensor) != Part::kLeftOut) {
    trace_.done(tensor, current_step(), now);
    link_.events.push({.kind = Event::Kind::kTensorDone,
                       .tensor = tensor,
                       .step = current_step(),
                       .weight = average.weight,
                       .absent = !average.any_data,
                       .non_finite = average.non_finite});
  }
  tensors_.done(
      tensor,
      {.weight = average.weight, .absent = !average.any_data, .non_finite = average.non_finite},
      now);
}

void GradientStream::finish_step() {
  const Step step = current_step();
  CHECK(scheduled_count_ == tensors_.count() && measuring_.empty());
  const StepReport& report = reports_.open();
  CHECK(report.step == step || report.step == 0);  // no result was wanted
  CHECK(link_.counters.steps_done < step);
  link_.events.push({.kind = Event::Kind::kStepDone, .step = step, .weight = report.weight});
  link_.counters.steps_done = step;
  reports_due_.reached = tolerant() && report.k < 2;  // one rank completes steps alone
  reports_.close(step);
  if (step >= kLastStep)
    return link_.fail({StatusCode::kExhausted,
                       error_prefix(options_) + "step " + std::to_string(step) +
                           " was the last one, its number cannot grow: start a new job from a "
                           "checkpoint"});
  scheduled_count_ = 0;
  handed_ = {};
  recovery_->begin_step();
  for (Ring<Departure>& departures : departures_) departures.clear();
  scheduler_->clear();
  tensors_.begin_next_step();
  if (!tolerant()) return;
  arena_->clear();
  late_.expire(std::max(current_step(), known_open_));
}

}  // namespace sluice::client

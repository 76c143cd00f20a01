#include "client/core/gradients.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/join.h"
#include "client/core/prefetch.h"
#include "client/core/text.h"

namespace sluice::client {
namespace {

constexpr std::size_t kListedTensors = 5;

}  // namespace

GradientStream::GradientStream(const SessionOptions& options, Layout layout, Link& link,
                               Step first_step)
    : Stream(StreamId::kGradients, link),
      options_(options),
      layout_(std::move(layout)),
      tensors_(options, layout_, first_step),
      averaging_(layout_.tensor_count()),
      averages_(layout_.tensor_count()),
      gradient_priorities_(layout_.tensor_count()),
      residuals_(layout_),
      late_(link.counters, layout_, residuals_) {
  if (options.trace) trace_.enable(layout_.tensor_count());
}

void GradientStream::join(const wire::Accept& accept) {
  CHECK(!recovery_ && accept.shards == link_.shard_count());
  scheduler_.emplace(options_.schedule, ScheduleSetup{.shard_count = accept.shards,
                                                      .chunk_count = layout_.chunk_count(),
                                                      .chunk_bytes = layout_.chunk_bytes(),
                                                      .first_chunks = layout_.first_chunks()});
  last_sent_.assign(accept.shards, {});
  recovery_.emplace(layout_.chunk_count(), accept.shards);
  const PolicyOptions policy = accept.policy;
  default_averaging_ = resolved(options_.averaging, policy);
  std::fill(averaging_.begin(), averaging_.end(), default_averaging_);
  if (!policy.tolerates_stragglers()) return;
  arena_.emplace(layout_.chunk_count(), layout_.chunk_bytes());
  late_.join(policy, layout_.chunk_count(), layout_.chunk_bytes());
  first_step_ =
      std::max<Step>(1, accept.first_steps[static_cast<std::size_t>(StreamId::kGradients)]);
  if (accept.rejoined != 0)
    behind_ = {StatusCode::kBehind, place_of(options_) +
                                        "this rank has joined a job that runs and needs the "
                                        "state of another rank first (resync)"};
}

void GradientStream::start(TimeNs now) noexcept {
  CHECK(!started_ && recovery_.has_value());
  started_ = true;
  last_progress_ns_ = now;
}

// ---- the application's side ----

Status GradientStream::submit(const Submission& submission, TimeNs now) {
  if (!behind_.ok()) return behind_;
  Status status = tensors_.check(submission);
  if (status.ok() && !submission.contribute) status = check_catch_up(submission);
  if (status.ok()) tensors_.accept(submission, now);
  return status;
}

Status GradientStream::check_catch_up(const Submission& submission) const {
  const auto refuse = [&](const std::string& why) -> Status {
    return {StatusCode::kInvalidArgument,
            place_of(options_) + "tensor '" + layout_.tensor(submission.tensor).name + "': " + why};
  };
  if (!tolerant())
    return refuse(
        "a synchronous job waits for every rank, so there is nothing to catch up with; submit a "
        "gradient");
  const Step step = tensors_.next_step(submission.tensor);
  // With a late gradient to give, it says what it has for every chunk.
  if (step > kFullSteps || open_step() > step || late_.waiting()) return {};
  return refuse("step " + std::to_string(step) + " waits for every rank, as the first " +
                std::to_string(kFullSteps) + " steps of a job do; submit a gradient");
}

void GradientStream::set_averaging(std::uint32_t tensor, AveragingChoice choice) noexcept {
  CHECK(recovery_ && tensor < averaging_.size() && !tensors_.in_flight(tensor));
  averaging_[tensor] = choice == AveragingChoice::kDefault ? default_averaging_ : choice;
}

Status GradientStream::end_step() { return behind_.ok() ? tensors_.end_step() : behind_; }

void GradientStream::schedule_joined(TimeNs now) {
  std::uint32_t tensor = 0;
  if (started_ && tensors_.next_joined(tensor)) schedule(tensor, now);
}

// The tensor takes part in the step under way, with data or without. What has come for it already
// is applied, so this may end the step.
void GradientStream::schedule(std::uint32_t tensor, TimeNs now) {
  if (scheduled_count_++ == 0) scheduler_->begin_step(now);
  CHECK(scheduled_count_ <= tensors_.count() && averages_[tensor].chunks_left == 0);
  averages_[tensor] = {.chunks_left = chunks_of(tensor)};
  last_progress_ns_ = std::max(last_progress_ns_, now);
  const Part part = tensors_.part(tensor);
  if (part == Part::kGradient) {
    gradient_priorities_[tensor] = tensors_.submission(tensor).priority;
    nil_weight_ = tensors_.submission(tensor).weight;
  }
  if (tolerant() && scheduled_count_ == tensors_.count() && !tensors_.catching_up())
    finished_ = current_step();
  if (part != Part::kLeftOut)
    trace_.queued(tensor, current_step(), priority_of(tensor), contributes(tensor),
                  tensors_.submission(tensor).ready_ns, now);
  const ChunkIndex end = layout_.first_chunk(tensor + 1);
  for (ChunkIndex chunk = layout_.first_chunk(tensor); chunk < end; ++chunk) {
    if (!tolerant() || !arena_->has(chunk)) {
      schedule_chunk(chunk, tensor, now);
      continue;
    }
    apply(chunk, layout_.chunk(chunk), arena_->get(chunk));
    (void)chunk_done(tensor, now);
  }
}

// Its result is not here. It is contributed while the step is open, and otherwise only pulled.
void GradientStream::schedule_chunk(ChunkIndex chunk, std::uint32_t tensor, TimeNs now) noexcept {
  const Step current = current_step();
  if (closed_ && (passed_ >= current || known_open_ > current + 1)) {
    recovery_->pull(chunk);
  } else if (closed_ || !(contributes(tensor) || requeues_now())) {
    // A result that came too early was not kept, and does not come again by itself.
    recovery_->await(chunk, passed_ >= current ? now : now + kIdleProbeInterval);
  } else if (carries_data(chunk, tensor)) {
    recovery_->expect(chunk);
    scheduler_->push(chunk, priority_of(tensor), now);
  } else if (recovery_->expect_absent(chunk)) {
    scheduler_->push(chunk, kNilPriority, now);
  } else {
    scheduler_->push_along(chunk, kNilPriority, now);
  }
}

Priority GradientStream::priority_of(std::uint32_t tensor) const noexcept {
  return tensors_.part(tensor) == Part::kLeftOut ? kNilPriority : gradient_priorities_[tensor];
}

// ---- sending ----

// Contributions sent and not known to have arrived. Other packets do not count: nothing tells of
// them while nothing else is sent, and a chunk that is not outstanding has nothing to wait for.
std::uint32_t GradientStream::in_flight(std::uint16_t shard) const noexcept {
  if (recovery_->nothing_outstanding(shard)) return 0;
  return static_cast<std::uint32_t>(
      std::max(0, ahead(last_sent_[shard].number, link_.flows[shard].highest_arrived())));
}

WindowState GradientStream::window_state(TimeNs now) const noexcept {
  WindowState windows{.now = now};
  for (std::uint16_t shard = 0; shard < link_.shard_count(); ++shard) {
    const Flow& flow = link_.flows[shard];
    windows.in_flight_packets += in_flight(shard);
    windows.arrived_packets += flow.highest_arrived();
    if (flow.window_open() || recovery_->nothing_outstanding(shard))
      windows.open_shards |= std::uint64_t{1} << shard;
    else if (flow.window_open_for_urgent())
      windows.urgent_shards |= std::uint64_t{1} << shard;
  }
  return windows;
}

// A report first: the others may wait for it. Then the most urgent chunk whose flow has room.
bool GradientStream::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  if (finished_ != 0 || tell_reached_) {
    const std::size_t bytes = finished_ != 0 ? write_finished(out, now) : write_reached(out, now);
    transmit = {.bytes = bytes, .port_offset = 1};
    return true;
  }
  const WindowState windows = window_state(now);
  Choice choice;
  while (scheduler_->next(windows, choice)) {
    std::uint64_t chunks = recovery_->take(choice.chunk);
    if (chunks == 0) continue;  // it need not be sent after all
    if ((chunks & (chunks - 1)) != 0) chunks = keep_alike(choice.chunk / kChunksPerBlock, chunks);
    write_chunks(choice, chunks, transmit, out, now);
    return true;
  }
  return false;
}

std::span<const std::uint8_t> GradientStream::input_of(const ChunkSpan& span) const noexcept {
  const std::size_t elem_bytes = dtype_bytes(layout_.tensor(span.tensor).dtype);
  const void* const input = tensors_.submission(span.tensor).input;
  DCHECK(input != nullptr && has_data(span.tensor));
  return {static_cast<const std::uint8_t*>(input) + span.first_elem * elem_bytes,
          span.elem_count * elem_bytes};
}

// Its gradient, a late one of before, or its presence.
GradientStream::Offer GradientStream::offer_of(ChunkIndex chunk,
                                               const ChunkSpan& span) const noexcept {
  const std::uint32_t tensor = span.tensor;
  if (contributes(tensor)) {
    const bool left_out = tensors_.part(tensor) == Part::kLeftOut;
    return {.payload = has_data(tensor) ? input_of(span) : std::span<const std::uint8_t>(),
            .base_step = current_step(),
            .weight = left_out ? nil_weight_ : tensors_.submission(tensor).weight};
  }
  if (late_.waiting(chunk)) {
    const LateChunks::Entry& late = late_.entry(chunk);
    return {.payload = late_.data(chunk), .base_step = late.base, .weight = late.weight};
  }
  // No step may wait for a worker that has no more to say.
  return {.base_step = late_.waiting() ? late_.newest_base() : current_step() - 1};
}

// Of chunks without data, those that one packet can speak of; the others wait again.
std::uint64_t GradientStream::keep_alike(std::uint32_t block, std::uint64_t chunks) noexcept {
  std::uint64_t kept = 0;
  Offer first;
  for (std::uint64_t rest = chunks; rest != 0; rest &= rest - 1) {
    const ChunkIndex chunk =
        block * kChunksPerBlock + static_cast<ChunkIndex>(std::countr_zero(rest));
    const Offer offer = offer_of(chunk, layout_.chunk(chunk));
    if (kept == 0) first = offer;
    if (kept == 0 || same_absence(first, offer)) kept |= rest & -rest;
  }
  if (kept != chunks)
    scheduler_->push_again(recovery_->put_back(block, chunks & ~kept), kNilPriority);
  return kept;
}

// A gradient stays where it is, or is packed straight into the packet; what waits to be requeued
// may make room for something newer.
void GradientStream::write_chunks(const Choice& choice, std::uint64_t chunks, Transmit& transmit,
                                  std::span<std::uint8_t> out, TimeNs now) noexcept {
  const std::uint32_t block = choice.chunk / kChunksPerBlock;
  const ChunkIndex chunk =
      block * kChunksPerBlock + static_cast<ChunkIndex>(std::countr_zero(chunks));
  DCHECK(choice.shard == shard_of(chunk, link_.shard_count()));
  const ChunkSpan span = layout_.chunk(chunk);
  const Offer offer = offer_of(chunk, span);
  const bool nil = offer.payload.empty();
  DCHECK(nil || (chunks & (chunks - 1)) == 0);
  DCHECK(offer.base_step <= current_step());
  Flow& flow = link_.flows[choice.shard];
  wire::Contribution body{.flow = flow.next_header(now),
                          .step = current_step(),
                          .chunk = chunk,
                          .base_step = offer.base_step,
                          .weight = offer.weight,
                          .elem_count = nil ? std::uint16_t{0} : span.elem_count,
                          .dtype = nil ? Dtype{} : layout_.wire_dtype(span.tensor)};
  body.flow.priority = nil ? kNilPriority : priority_of(span.tensor);
  const bool rounded = !nil && residuals_.covers(span.tensor);
  if (nil) body.flow.flags |= wire::kFlagNil;
  if (rounded) body.flow.flags |= wire::kFlagRounded;
  if (nil) link_.counters.nil_contributions += static_cast<unsigned>(std::popcount(chunks));
  LastSent& last_sent = last_sent_[choice.shard];
  last_sent.number = body.flow.number;
  last_sent.unreported_priority = std::max(last_sent.unreported_priority, body.flow.priority);
  if (flow.take_report_flag(choice.last)) {
    body.flow.flags |= wire::kFlagReport;
    last_sent.unreported_priority = 0;
  }
  const bool again = recovery_->sent(block, chunks, body.flow.number, now, flow);
  link_.counters.retransmissions += again;
  if (trace_.on()) trace_.sent(span.tensor, current_step(), again, now);
  const bool own = has_data(span.tensor);
  const bool in_place = own && !rounded;
  if (in_place) prefetch<Use::kRead>(offer.payload.data(), offer.payload.size());  // for transport
  const std::span<const std::uint8_t> list{reinterpret_cast<const std::uint8_t*>(&chunks),
                                           sizeof chunks};
  transmit = {
      .bytes = own ? wire::encode(out, link_.identity, body)
                   : wire::encode(out, link_.identity, body, {}, nil ? list : offer.payload),
      .payload = in_place ? offer.payload : std::span<const std::uint8_t>(),
      .port_offset = static_cast<std::uint16_t>(1 + choice.shard),
      .priority = body.flow.priority};
  if (!own || !rounded) return;
  const std::size_t packed_bytes = payload_bytes(body.dtype, body.elem_count);
  CHECK(transmit.bytes != 0 && out.size() - transmit.bytes >= packed_bytes);
  residuals_.pack(span, floats_of(span), &out[transmit.bytes]);
  transmit.bytes += packed_bytes;
}

std::size_t GradientStream::write_finished(std::span<std::uint8_t> out, TimeNs now) noexcept {
  Flow& flow = link_.flows[0];
  // Whoever has heard nothing for a while does not know how far the others are.
  const bool stale = now - flow.heard_ns() > kIdleProbeInterval;
  CHECK(finished_ != 0 && finished_ <= current_step());
  wire::Finished body{.flow = flow.next_header(now), .step = finished_};
  if (stale && flow.take_report_flag(true)) body.flow.flags |= wire::kFlagReport;
  finished_ = 0;
  return wire::encode(out, link_.identity, body);
}

// The report of a gradient without one: only the step that it would be of.
std::size_t GradientStream::write_reached(std::span<std::uint8_t> out, TimeNs now) noexcept {
  tell_reached_ = false;
  wire::Finished body{.flow = link_.flows[0].next_header(now), .step = current_step()};
  body.flow.flags = wire::kFlagNil;
  return wire::encode(out, link_.identity, body);
}

Priority GradientStream::block_priority(std::uint32_t block) const noexcept {
  const ChunkIndex first = block * kChunksPerBlock;
  const ChunkIndex end = std::min(first + kChunksPerBlock, layout_.chunk_count());
  Priority least_urgent = 0;
  for (ChunkIndex chunk = first; chunk < end;) {
    const std::uint32_t index = layout_.chunk(chunk).tensor;
    if (tensors_.active(index)) least_urgent = std::max(least_urgent, priority_of(index));
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

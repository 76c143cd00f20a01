// Stream 0, the sending half: the choice of the next packet, and what a packet says of one chunk or
// several.
#include <algorithm>
#include <bit>
#include <new>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/in_place.h"
#include "client/core/sums/gradients.h"

namespace sluice::client {

// Contributions sent and not known to have arrived. Other packets do not count: no answer tells of
// them while no other packet is sent, and a chunk that is not outstanding has nothing to wait for.
std::uint32_t GradientStream::in_flight(std::uint16_t shard) const noexcept {
  if (recovery_->nothing_outstanding(shard)) return 0;
  return static_cast<std::uint32_t>(
      std::max(0, ahead(last_sent_[shard].number, link_.flows[shard].highest_arrived())));
}

WindowState GradientStream::window_state(TimeNs now) const noexcept {
  WindowState windows{.now = now};
  const std::uint16_t shards = link_.shard_count();
  DCHECK(shards <= 64);  // a bit each
  for (std::uint16_t shard = 0; shard < shards; ++shard) {
    Flow& flow = link_.flows[shard];
    windows.in_flight_packets += in_flight(shard);
    windows.arrived_packets += flow.highest_arrived();
    if (!flow.on_pace(now)) continue;
    if (flow.may_send(!recovery_->nothing_outstanding(shard)))
      windows.open_shards |= std::uint64_t{1} << shard;
    else if (flow.window_open_for_urgent())
      windows.urgent_shards |= std::uint64_t{1} << shard;
  }
  return windows;
}

// A report first: the others may wait for it. Then the most urgent chunk whose flow has room.
bool GradientStream::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  if (reports_due_.any()) {
    transmit = {.bytes = write_report(out, now), .port_offset = 1};
    return true;
  }
  const WindowState windows = window_state(now);
  Choice choice;
  while (scheduler_->next(windows, choice)) {
    std::uint64_t chunks = recovery_->take(choice.chunk);
    if (chunks == 0) continue;  // it need not be sent after all
    entries_ = {};
    if (!at_most_one(chunks) || residuals_.prunes_any())
      chunks = keep_fitting(choice.chunk / kChunksPerBlock, chunks);
    DCHECK(chunks != 0);
    write_chunks(choice, chunks, transmit, out, now);
    return true;
  }
  return false;
}

std::span<const std::uint8_t> GradientStream::input_of(const ChunkSpan& span) const noexcept {
  const std::size_t elem_bytes = dtype_bytes(layout_.tensor(span.tensor).dtype);
  const void* const input = tensors_.submission(span.tensor).input;
  DCHECK(input != nullptr && has_data(span.tensor));
  // The session does not read far memory: Residuals has the values that leave of it.
  if (residuals_.is_far(span.tensor)) return {static_cast<const std::uint8_t*>(input), elem_bytes};
  return {static_cast<const std::uint8_t*>(input) + span.first_elem * elem_bytes,
          span.elem_count * elem_bytes};
}

// The chunk's gradient, an earlier late one, or this worker's presence.
GradientStream::Offer GradientStream::offer_of(ChunkIndex chunk,
                                               const ChunkSpan& span) const noexcept {
  const std::uint32_t tensor = span.tensor;
  if (handed_.holds(chunk)) return offer_handed_over(chunk, span);
  DCHECK(tensors_.active(tensor));
  if (contributes(tensor)) {
    const bool left_out = tensors_.part(tensor) == Part::kLeftOut;
    return {.payload = has_data(tensor) ? input_of(span) : std::span<const std::uint8_t>(),
            .base_step = current_step(),
            .weight = left_out ? nil_weight_ : tensors_.submission(tensor).weight,
            .wanted = left_out || tensors_.submission(tensor).wanted,
            .averaged = has_data(tensor) && tensors_.submission(tensor).averaged};
  }
  if (late_.waiting(chunk)) {
    const LateChunks::Entry& late = late_.entry(chunk);
    return {.payload = late_.data(chunk), .base_step = late.base, .weight = late.weight};
  }
  // No step may wait for a worker that has no more to say.
  if (owed_ == current_step() && (!late_.requeues() || owed_ == 1)) return {.base_step = owed_};
  return {.base_step = late_.waiting() ? late_.newest_base() : current_step() - 1};
}

// In a job without stragglers nothing of a chunk without data is its own, but after a restart.
std::uint64_t GradientStream::alike_without_data(ChunkIndex chunk) const noexcept {
  if (tolerant() || handed_.any()) return chunk_bit(chunk);
  const std::uint32_t tensor = layout_.chunk(chunk).tensor;
  if (has_data(tensor)) return chunk_bit(chunk);
  return chunks_in(chunk / kChunksPerBlock, tensor);
}

// Of chunks that were taken together, those that one packet can speak of; the others wait once
// more. The chunk that stood for them with the scheduler has no say: it may have been counted
// meanwhile.
std::uint64_t GradientStream::keep_fitting(std::uint32_t block, std::uint64_t chunks) noexcept {
  std::uint64_t kept = 0;
  Offer first;
  ChunkSpan first_span;
  bool shares = false;  // a sparse packet; of other data a packet has one chunk
  for (std::uint64_t rest = chunks; rest != 0;) {
    const std::uint64_t bit = rest & -rest;
    const ChunkIndex chunk = first_chunk(block, rest);
    const ChunkSpan span = layout_.chunk(chunk);
    const Offer offer = offer_of(chunk, span);
    const std::uint64_t same = offer.payload.empty() ? rest & alike_without_data(chunk) : bit;
    rest &= ~same;
    if (kept == 0) {
      first = offer;
      first_span = span;
      shares = !offer.payload.empty() && residuals_.prunes(span.tensor) && !handed_.gives(chunk);
    } else if (!same_story(first, offer) || (shares && span.tensor != first_span.tensor)) {
      continue;
    }
    if (shares && (span.elem_count != first_span.elem_count || !add_entry(bit, span, offer))) {
      if (kept == 0) kept = bit;  // it goes dense, alone
      break;
    }
    kept |= same;
    if (!shares && !offer.payload.empty()) break;
  }
  DCHECK(kept != 0 && (kept & ~chunks) == 0);
  DCHECK((entries_.chunks & ~kept) == 0);
  if (kept != chunks) {
    const ChunkIndex next = recovery_->put_back(block, chunks & ~kept);
    const std::uint32_t tensor = layout_.chunk(next).tensor;
    scheduler_->push_rest(next, carries_data(next, tensor) ? priority_of(tensor) : kNilPriority);
  }
  return kept;
}

// Adds the chunk to the sparse packet under construction. False: it does not fit there.
bool GradientStream::add_entry(std::uint64_t bit, const ChunkSpan& span,
                               const Offer& offer) noexcept {
  DCHECK((entries_.chunks & bit) == 0);
  DCHECK(entries_.bytes + wire::kSparseHeadBytes <= layout_.chunk_bytes());
  const Dtype dtype = layout_.wire_dtype(span.tensor);
  const std::size_t room = layout_.chunk_bytes() - wire::kSparseHeadBytes - entries_.bytes;
  const std::span out{&entry_bytes_[entries_.bytes],
                      std::min(room, payload_bytes(dtype, span.elem_count) - 1)};
  const std::size_t bytes = has_data(span.tensor)
                                ? residuals_.compress(span, as_floats(input_of(span)), out)
                                : agg::compress(offer.payload.data(), span.elem_count, dtype, out);
  if (bytes == agg::kNotCompressed) return false;
  entries_.chunks |= bit;
  if (bytes != 0) entries_.filled |= bit;
  entries_.bytes += bytes;
  return true;
}

// A gradient stays in its place, or is packed straight into the packet. A late chunk that waits to
// be requeued may make room for a newer one.
void GradientStream::write_chunks(const Choice& choice, std::uint64_t chunks, Transmit& transmit,
                                  std::span<std::uint8_t> out, TimeNs now) noexcept {
  const std::uint32_t block = choice.chunk / kChunksPerBlock;
  const ChunkIndex chunk = first_chunk(block, chunks);
  DCHECK(choice.shard == shard_of(chunk, link_.shard_count()));
  const ChunkSpan span = layout_.chunk(chunk);
  const Offer offer = offer_of(chunk, span);
  const bool nil = offer.payload.empty();
  const bool sparse = entries_.chunks != 0;
  DCHECK(nil || sparse || (chunks & (chunks - 1)) == 0);
  DCHECK(!sparse || entries_.chunks == chunks);
  DCHECK(offer.base_step <= current_step());
  const bool handed_over = handed_.holds(chunk);  // a result, and as it came, or nothing
  const Dtype result = layout_.result_dtype(span.tensor);
  const Dtype dtype = handed_over ? result : layout_.wire_dtype(span.tensor);
  Flow& flow = link_.flows[choice.shard];
  wire::Contribution& body =
      *new (wire::begin(out, wire::Contribution::kType, link_.identity)) wire::Contribution{
          .flow = flow.next_header(now, nil ? kNilPriority : priority_of(span.tensor)),
          .step = step_on_wire(),
          .chunk = chunk,
          .base_step = offer.base_step,
          .weight = offer.weight,
          .elem_count = nil ? std::uint16_t{0} : span.elem_count,
          .dtype = nil ? Dtype{} : dtype,
          .result = nil ? std::uint8_t{0} : wire::result_code(dtype, result)};
  const bool packs = !nil && residuals_.covers(span.tensor) && !handed_over;
  if (nil) body.flow.flags |= wire::kFlagNil;
  if (sparse) body.flow.flags |= wire::kFlagSparse;
  if (!nil && layout_.is_rounded(span.tensor)) body.flow.flags |= wire::kFlagRounded;
  if (offer.averaged) body.flow.flags |= wire::kFlagMean;
  if (!offer.wanted) {
    body.flow.flags |= wire::kFlagUnwanted;
    Ring<Departure>& departures = departures_[choice.shard];
    if (!departures.full()) departures.push({body.flow.number, block});
  }
  if (nil) link_.counters.nil_contributions += static_cast<unsigned>(std::popcount(chunks));
  LastSent& last_sent = last_sent_[choice.shard];
  last_sent.number = body.flow.number;
  last_sent.unreported_priority = std::max(last_sent.unreported_priority, body.flow.priority);
  if (flow.take_report_flag(choice.last, now)) {
    body.flow.flags |= wire::kFlagReport;
    last_sent.unreported_priority = 0;
  }
  const bool again = recovery_->sent(block, chunks, body.flow.number, now, flow);
  link_.counters.retransmissions += again;
  if (trace_.on() && !handed_over) trace_.sent(span.tensor, current_step(), again, now);
  transmit.port_offset = static_cast<std::uint16_t>(1 + choice.shard);
  transmit.priority = body.flow.priority;
  if (sparse) {
    transmit.bytes = finish_entries(out);
    return;
  }
  const bool own = has_data(span.tensor) && !handed_over;
  const bool in_place = own && !packs;
  if (in_place) prefetch<Use::kRead>(offer.payload.data(), offer.payload.size());  // for transport
  const std::span<const std::uint8_t> list{reinterpret_cast<const std::uint8_t*>(&chunks),
                                           sizeof chunks};
  if (own)
    transmit.bytes = wire::packet_bytes(sizeof body, 0, 0);
  else
    transmit.bytes = wire::finish(out, sizeof body, {}, nil ? list : offer.payload);
  if (in_place) transmit.payload = offer.payload;
  if (!own || !packs) return;  // what waits to be requeued was packed when it was late
  const std::size_t packed_bytes = payload_bytes(body.dtype, body.elem_count);
  CHECK(transmit.bytes != 0 && out.size() - transmit.bytes >= packed_bytes);
  residuals_.pack(span, as_floats(input_of(span)), &out[transmit.bytes]);
  transmit.bytes += packed_bytes;
}

std::size_t GradientStream::finish_entries(std::span<std::uint8_t> out) const noexcept {
  DCHECK((entries_.filled & ~entries_.chunks) == 0);
  const std::uint64_t words[] = {entries_.chunks, entries_.filled};
  const std::size_t bytes =
      wire::finish(out, sizeof(wire::Contribution), words, {entry_bytes_, entries_.bytes});
  CHECK(bytes != 0);
  return bytes;
}

// The step whose gradient is finished, or the one that this worker has come to without a gradient.
std::size_t GradientStream::write_report(std::span<std::uint8_t> out, TimeNs now) noexcept {
  Flow& flow = link_.flows[0];
  const Step finished = reports_due_.finished;
  CHECK(tolerant() && reports_due_.any() && finished <= current_step());
  wire::Finished body{.flow = flow.next_header(now),
                      .step = finished != 0 ? finished : current_step()};
  if (finished == 0) {
    body.flow.flags = wire::kFlagNil;
    reports_due_.reached = false;
    return wire::encode(out, link_.identity, body);
  }
  // A worker that has heard nothing for a while does not know how far the others are.
  const bool stale = now - flow.heard_ns() > kIdleProbeInterval;
  if (stale && flow.take_report_flag(true, now)) body.flow.flags |= wire::kFlagReport;
  reports_due_.finished = 0;
  return wire::encode(out, link_.identity, body);
}

}  // namespace sluice::client

// Data packets of a session: what comes in, and the choice of what leaves next.
#include <algorithm>

#include "client/core/session_impl.h"

namespace sluice::client {
namespace {

std::uint16_t shard_of_block(std::uint32_t block, std::uint16_t shard_count) noexcept {
  return static_cast<std::uint16_t>(block % shard_count);
}

}  // namespace

Verdict Session::Impl::handle_data(const wire::Packet& packet, TimeNs now) {
  if (state == SessionState::kLeaving) return Verdict::kJobEnded;
  // All ranks must have joined before a shard sends anything; the status that says so was lost.
  if (packet.type() == wire::PacketType::kResult && membership.note_running()) start(now);
  if (state != SessionState::kRunning) return Verdict::kNotStarted;

  const auto& feedback = packet.body<wire::FeedbackHeader>();
  std::uint16_t shard = 0;
  switch (packet.type()) {
    case wire::PacketType::kResult:
      shard = shard_of(packet.body<wire::ResultHeader>().chunk, link.shard_count());
      break;
    case wire::PacketType::kAnswer:
      shard = shard_of_block(packet.body<wire::Answer>().block, link.shard_count());
      break;
    default: shard = packet.body<wire::Feedback>().shard; break;
  }
  if (shard >= link.shard_count()) return Verdict::kWrongShard;
  Flow& flow = link.flows[shard];
  const Flow::News news = flow.on_feedback(feedback, now);
  if (!news.valid) return Verdict::kBadField;
  gradients.learn_open_step(feedback.open_step, now);

  Outcome outcome{Verdict::kCredit, {}};
  if (packet.type() == wire::PacketType::kResult) {
    const auto& body = packet.body<wire::ResultHeader>();
    if (body.flags & wire::kFlagPulled) {
      ++link.stats.results_pulled;
      flow.found_result();
    }
    if (body.stream == StreamId::kGradients)
      outcome = gradients.handle_result(packet, now);
    else if (body.stream == StreamId::kCollectives)
      outcome = collectives.handle_result(packet, link, now);
    else
      outcome.verdict = handle_state(packet, now);
  } else if (packet.type() == wire::PacketType::kAnswer) {
    const auto& body = packet.body<wire::Answer>();
    remember_missing(packet, now);
    if (body.stream == StreamId::kGradients)
      outcome = gradients.handle_answer(packet, now);
    else if (body.stream == StreamId::kCollectives)
      outcome = collectives.handle_answer(packet, link, now);
    else
      transfers.handle_answer(body, link, now);
  }
  if (!outcome.failure.ok()) {
    fail(std::move(outcome.failure), true);
    return outcome.verdict;
  }
  if (outcome.verdict == Verdict::kCompleted) note_caught_up(now);
  bool others = false;  // the flow has other streams that may lack results
  for (const StreamId stream : {StreamId::kCollectives, StreamId::kState}) {
    if (shard != 0 || !busy(stream)) continue;
    others = true;
    pieces(stream).recovery().hint(0, news, now, flow);
  }
  if (gradients.in_progress() || !others) gradients.recovery().hint(shard, news, now, flow);
  work(shard, now);
  return outcome.verdict;
}

// A state that is whole decides where this worker goes on.
Verdict Session::Impl::handle_state(const wire::Packet& packet, TimeNs now) {
  const bool was_here = transfers.received();
  const Verdict verdict = transfers.handle_result(packet, link, now);
  if (!was_here && transfers.received()) gradients.resume(transfers.state_step() + 1, now);
  return verdict;
}

void Session::Impl::work(std::uint16_t shard, TimeNs now) noexcept {
  for (const StreamId stream : {StreamId::kCollectives, StreamId::kState})
    if (shard == 0 && busy(stream)) pieces(stream).recovery().work(0, now, link.flows[0]);
  gradients.recovery().work(shard, now, link.flows[shard]);
}

void Session::Impl::work(TimeNs now) noexcept {
  for (std::uint16_t shard = 0; shard < link.shard_count(); ++shard) work(shard, now);
}

void Session::Impl::remember_missing(const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Answer>();
  if (body.first_incomplete == wire::kNoChunk) return;
  missing.stream = body.stream;
  missing.step = body.step;
  missing.arrived_ns = now;
  for (std::size_t word = 0; word < kMaskWords; ++word)
    missing.ranks[word] = word < packet.mask_word_count() ? packet.mask_word(word) : 0;
  missing.age_count = body.age_count;
  for (std::size_t i = 0; i < missing.age_count; ++i) missing.ages[i] = packet.missing_age(i);
}

// ---- what leaves next ----

// Probes first: they unblock windows. Then collectives, then the most urgent gradient chunk whose
// flow has room, another rank's copy of this one's state, and a bare credit update only when
// nothing else carried it, or when the schedule waits for feedback that nobody has asked for.
std::size_t Session::Impl::poll_data(Transmit& transmit, std::span<std::uint8_t> out,
                                     TimeNs now) noexcept {
  for (std::uint16_t shard = 0; shard < link.shard_count(); ++shard) {
    transmit.port_offset = static_cast<std::uint16_t>(1 + shard);
    if (const std::size_t bytes = poll_probe(shard, out, now, transmit.priority)) return bytes;
  }
  transmit.port_offset = 1;
  if (gradients.finished_step() != 0) return gradients.write_finished(out, now);
  if (gradients.tells_reached()) return gradients.write_reached(out, now);
  if (const std::size_t bytes = poll_pieces(StreamId::kCollectives, out, now)) return bytes;
  if (const std::size_t bytes = poll_gradients(transmit, out, now)) return bytes;
  transmit.port_offset = 1;
  transmit.priority = 255;
  if (const std::size_t bytes = poll_pieces(StreamId::kState, out, now)) return bytes;

  transmit.priority = 0;
  for (std::uint16_t shard = 0; shard < link.shard_count(); ++shard) {
    Flow& flow = link.flows[shard];
    const bool wants_feedback = gradients.wants_feedback(shard);
    if (!flow.credit_due() && !wants_feedback) continue;
    if (wants_feedback) transmit.priority = gradients.feedback_priority(shard);
    transmit.port_offset = static_cast<std::uint16_t>(1 + shard);
    wire::Credit body{.flow = flow.next_header(now), .priority = transmit.priority};
    if (flow.take_report_flag(wants_feedback)) body.flags |= wire::kFlagReport;
    return wire::encode(out, link.identity, body);
  }
  return 0;
}

std::size_t Session::Impl::poll_pieces(StreamId stream, std::span<std::uint8_t> out,
                                       TimeNs now) noexcept {
  PieceStream& stream_pieces = pieces(stream);
  while (stream_pieces.may_send(link))
    if (const std::size_t bytes = stream_pieces.write_next(link, out, now)) return bytes;
  return 0;
}

std::size_t Session::Impl::poll_gradients(Transmit& transmit, std::span<std::uint8_t> out,
                                          TimeNs now) noexcept {
  Opportunity opportunity{.now = now};
  for (std::uint16_t shard = 0; shard < link.shard_count(); ++shard) {
    const Flow& flow = link.flows[shard];
    opportunity.in_flight_packets += gradients.in_flight(shard);
    opportunity.arrived_packets += flow.highest_arrived();
    if (flow.window_open() || gradients.recovery().nothing_unsettled(shard))
      opportunity.open_shards |= std::uint64_t{1} << shard;
    else if (flow.window_open_for_urgent())
      opportunity.urgent_shards |= std::uint64_t{1} << shard;
  }
  Choice choice;
  while (gradients.choose(opportunity, choice)) {
    const std::size_t bytes = gradients.write(choice, out, now, transmit.priority);
    if (bytes == 0) continue;  // it need not be sent after all
    transmit.port_offset = static_cast<std::uint16_t>(1 + choice.shard);
    return bytes;
  }
  return 0;
}

std::size_t Session::Impl::poll_probe(std::uint16_t shard, std::span<std::uint8_t> out, TimeNs now,
                                      Priority& priority) noexcept {
  Flow& flow = link.flows[shard];
  Recovery::ProbePlan plan;
  for (const StreamId stream : {StreamId::kCollectives, StreamId::kState}) {
    if (shard != 0 || !busy(stream)) continue;
    Recovery& recovery = pieces(stream).recovery();
    if (!recovery.plan_probe(0, flow, plan)) continue;
    // A probe that overtook the chunks would find them missing.
    priority = pieces(stream).piece().priority;
    return write_probe(shard, stream, recovery, plan, priority, out, now);
  }
  if (!gradients.recovery().plan_probe(shard, flow, plan)) return 0;
  priority = gradients.block_priority(plan.block);
  return write_probe(shard, StreamId::kGradients, gradients.recovery(), plan, priority, out, now);
}

std::size_t Session::Impl::write_probe(std::uint16_t shard, StreamId stream, Recovery& recovery,
                                       const Recovery::ProbePlan& plan, Priority priority,
                                       std::span<std::uint8_t> out, TimeNs now) noexcept {
  Flow& flow = link.flows[shard];
  recovery.probe_sent(shard, plan, now, flow);
  ++link.stats.probes;
  const wire::Probe body{
      .flow = flow.next_header(now),
      .step = stream == StreamId::kGradients ? gradients.current_step() : pieces(stream).step(),
      .block = plan.block,
      .want = plan.want,
      .stream = stream,
      .priority = priority};
  return wire::encode(out, link.identity, body);
}

}  // namespace sluice::client

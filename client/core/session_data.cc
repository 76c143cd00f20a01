// Data packets of a session: what comes in, and the choice of what leaves next.
#include <algorithm>

#include "aggregator/base/check.h"
#include "client/core/session.h"

namespace sluice::client {
namespace {

// A state goes last, but its probes are few.
constexpr std::array kProbeOrder = {StreamId::kCollectives, StreamId::kState, StreamId::kGradients};
static_assert(kProbeOrder.size() == kStreamsOfJob);

}  // namespace

std::optional<std::uint16_t> Session::shard_of_packet(const wire::Packet& packet) const noexcept {
  std::uint32_t shard = 0;
  CHECK(link_.shard_count() != 0);
  switch (packet.type()) {
    case wire::PacketType::kResult:
      shard = shard_of(packet.body<wire::ResultHeader>().chunk, link_.shard_count());
      break;
    case wire::PacketType::kValues:
      shard = shard_of(packet.body<wire::Values>().chunk, link_.shard_count());
      break;
    case wire::PacketType::kPieceResult: break;  // all are of the first block
    case wire::PacketType::kAnswer:
      shard = packet.body<wire::Answer>().block % link_.shard_count();
      break;
    default: shard = packet.body<wire::Feedback>().shard; break;
  }
  if (shard >= link_.shard_count()) return {};
  return static_cast<std::uint16_t>(shard);
}

Verdict Session::handle_data(const wire::Packet& packet, TimeNs now) {
  if (state_ == SessionState::kLeaving) return Verdict::kJobEnded;
  // All ranks must have joined before a shard sends anything; the status that says so was lost.
  const bool is_sum = packet.type() == wire::PacketType::kResult;
  const bool is_piece = packet.type() == wire::PacketType::kPieceResult;
  const bool is_values = packet.type() == wire::PacketType::kValues;
  if ((is_sum || is_piece || is_values) && membership_.note_running()) start(now);
  if (is_values && !store_) return Verdict::kBadType;
  if (state_ != SessionState::kRunning) return Verdict::kNotStarted;

  const std::optional<std::uint16_t> shard = shard_of_packet(packet);
  if (!shard) return Verdict::kWrongShard;
  CHECK(link_.joined());
  Flow& flow = link_.flows[*shard];
  const wire::FeedbackHeader& feedback = packet.feedback();
  const Flow::LossSignals signals = flow.on_feedback(feedback, now);
  if (!signals.valid) return Verdict::kBadField;
  gradients_.learn_open_step(feedback.open_step, now);

  Verdict verdict = Verdict::kCredit;
  if (is_sum) {
    verdict = gradients_.handle_result(packet, now);
  } else if (is_piece) {
    const CollectiveKind kind = packet.body<wire::PieceResult>().operation.kind;
    verdict = stream(wire::stream_of(kind)).handle_result(packet, now);
  } else if (is_values) {
    verdict = store_->handle_values(packet, now);
  } else if (packet.type() == wire::PacketType::kAnswer) {
    remember_missing(packet, now);
    const StreamId id = packet.body<wire::Answer>().stream;
    if (has_steps(id))
      verdict = stream(id).handle_answer(packet, now);
    else
      verdict = store_ ? store_->handle_answer(packet, now) : Verdict::kBadStream;
  }
  if (feedback.flags & wire::kFlagPulled) ++link_.counters.results_pulled;
  gradients_.confirm_arrived(*shard);
  if (!link_.failure.ok()) {
    fail(link_.failure, true, now);
    return verdict;
  }
  if (verdict == Verdict::kCompleted) note_caught_up(now);
  if (store_) store_->hint(*shard, signals, now);
  if (pieces_use(*shard)) {
    for (Stream* const one : streams_)
      if (one->uses(*shard)) one->recovery().hint(*shard, signals, now, flow);
  } else if (!store_) {
    // What nobody waits for is recovered with the gradients', the only ones that have every flow.
    gradients_.recovery().hint(*shard, signals, now, flow);
  }
  work(*shard, now);
  return verdict;
}

void Session::work(std::uint16_t shard, TimeNs now) noexcept {
  DCHECK(shard < link_.shard_count() && state_ == SessionState::kRunning);
  if (store_)
    store_->work(shard, now);
  else
    gradients_.recovery().work(shard, now, link_.flows[shard]);
  if (!pieces_use(shard)) return;
  for (Stream* const one : streams_)
    if (one != &gradients_ && one->uses(shard))
      one->recovery().work(shard, now, link_.flows[shard]);
}

void Session::work(TimeNs now) noexcept {
  for (std::uint16_t shard = 0; shard < link_.shard_count(); ++shard) work(shard, now);
}

void Session::remember_missing(const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Answer>();
  if (body.first_incomplete == wire::kNoChunk) return;
  CHECK(body.age_count <= missing_.ages.size());
  missing_.stream = body.stream;
  missing_.step = body.step;
  missing_.arrived_ns = now;
  for (std::size_t word = 0; word < kMaskWords; ++word)
    missing_.ranks[word] = word < packet.mask_word_count() ? packet.mask_word(word) : 0;
  missing_.age_count = body.age_count;
  for (std::size_t i = 0; i < missing_.age_count; ++i) missing_.ages[i] = packet.missing_age(i);
}

// ---- what leaves next ----

bool Session::poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  if (out.size() < datagram_bytes_) return false;
  transmit = {};
  if (state_ == SessionState::kJoining) {
    transmit.bytes = join_.poll_transmit(out);
  } else {
    while (has_call() && act_on_call(now)) continue;
    if (membership_.has_control()) {
      if (store_) store_->count_suspension(now);
      transmit.bytes = membership_.poll_transmit(out, link_.counters, now);
    } else if (state_ != SessionState::kRunning) {
      return false;
    } else if (transfers_.has_control()) {
      transmit.bytes = transfers_.poll_control(out);
    } else if (!poll_data(transmit, out, now)) {
      return false;
    }
  }
  if (transmit.bytes == 0) return false;
  CHECK(transmit.bytes + transmit.payload.size() <= datagram_bytes_);
  DCHECK(transmit.port_offset <= link_.shard_count());
  ++link_.counters.packets_sent;
  link_.counters.bytes_sent += transmit.bytes + transmit.payload.size();
  return true;
}

// Probes first: they unblock windows. Then the streams in their order, and a bare credit update
// only when nothing else carried it, or when the schedule waits for feedback that nobody has asked
// for.
bool Session::poll_data(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  const std::uint16_t shards = link_.shard_count();
  for (std::uint16_t shard = 0; shard < shards; ++shard)
    if (may_probe(shard) && poll_probe(shard, transmit, out, now)) return true;
  // Collectives go first: ranks wait for them.
  if (collectives_.has_queued() && collectives_.write_next(transmit, out, now)) return true;
  if (store_ ? store_->write_next(transmit, out, now) : gradients_.write_next(transmit, out, now))
    return true;
  if (transfers_.has_queued() && transfers_.write_next(transmit, out, now)) return true;
  for (std::uint16_t shard = 0; shard < shards; ++shard)
    if (poll_credit(shard, transmit, out, now)) return true;
  return false;
}

bool Session::poll_credit(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                          TimeNs now) noexcept {
  DCHECK(state_ == SessionState::kRunning);
  Flow& flow = link_.flows[shard];
  const bool wants_feedback = gradients_.wants_feedback(shard);
  if (!flow.credit_due() && !wants_feedback) return false;
  transmit.port_offset = static_cast<std::uint16_t>(1 + shard);
  transmit.priority = wants_feedback ? gradients_.feedback_priority(shard) : 0;
  wire::Credit body{.flow = flow.next_header(now)};
  body.flow.priority = transmit.priority;
  if (flow.take_report_flag(wants_feedback)) body.flow.flags |= wire::kFlagReport;
  transmit.bytes = wire::encode(out, link_.identity, body);
  return true;
}

bool Session::poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                         TimeNs now) noexcept {
  const bool pieces = pieces_use(shard);
  if (store_ && store_->write_probe(shard, transmit, out, now)) return true;
  Flow& flow = link_.flows[shard];
  Recovery::ProbePlan plan;
  for (const StreamId id : kProbeOrder) {
    if (id != StreamId::kGradients && !(pieces && stream(id).uses(shard))) continue;
    Stream& one = stream(id);
    if (!one.recovery().plan_probe(shard, flow, plan)) continue;
    DCHECK(link_.shard_of_chunk(plan.block * kChunksPerBlock) == shard);
    one.recovery().probe_sent(shard, plan, now, flow);
    ++link_.counters.probes;
    const Priority priority = one.block_priority(plan.block);
    wire::Probe body{.flow = flow.next_header(now),
                     .step = one.current_step(),
                     .block = plan.block,
                     .want = plan.want,
                     .stream = id};
    body.flow.priority = priority;
    transmit = {.bytes = wire::encode(out, link_.identity, body),
                .port_offset = static_cast<std::uint16_t>(1 + shard),
                .priority = priority};
    return true;
  }
  return false;
}

}  // namespace sluice::client

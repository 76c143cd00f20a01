// Data packets of a session: what comes in, and the choice of what leaves next.
#include <algorithm>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/session.h"

namespace sluice::client {
namespace {

// The stream that a packet of results, or an answer, is of. None: it is of the flow.
std::optional<StreamId> stream_of_packet(const wire::Packet& packet) noexcept {
  switch (packet.type()) {
    case wire::PacketType::kResult: return StreamId::kGradients;
    case wire::PacketType::kPieceResult:
      return wire::stream_of(packet.body<wire::PieceResult>().operation.kind);
    case wire::PacketType::kValues: return StreamId::kPulls;
    case wire::PacketType::kAnswer: return packet.body<wire::Answer>().stream;
    case wire::PacketType::kPartResult:
    case wire::PacketType::kPartAnswer:
    case wire::PacketType::kFloor:
    case wire::PacketType::kOutcome: return StreamId::kOperations;
    default: return {};
  }
}

Event credit_limits(const SessionOptions& options, const Flow& flow) {
  const auto round_trip_us = flow.rtt().smoothed_ns() / kMicrosecond;
  return {.kind = Event::Kind::kCreditLimits,
          .status = {StatusCode::kExhausted,
                     error_prefix(options) + "the receive buffer holds " +
                         std::to_string(flow.credit_packets()) +
                         " results, which limits the rate of a path with a round trip of " +
                         std::to_string(round_trip_us) + " us: " + options.more_credit}};
}

}  // namespace

Stream* Session::find(StreamId id) const noexcept {
  for (Stream* const one : streams_)
    if (one->id() == id) return one;
  return nullptr;
}

std::optional<std::uint16_t> Session::shard_of_packet(const wire::Packet& packet) const noexcept {
  std::uint32_t shard = 0;
  CHECK(link_.shard_count() != 0);
  switch (packet.type()) {
    case wire::PacketType::kPartResult:
    case wire::PacketType::kPartAnswer:
    case wire::PacketType::kFloor:
    case wire::PacketType::kOutcome: return groups_->shard_of(packet);
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
  const std::optional<StreamId> id = stream_of_packet(packet);
  const bool is_answer = packet.type() == wire::PacketType::kAnswer;
  const bool is_result = id.has_value() && !is_answer;
  const bool is_of_held = held_ != nullptr && is_answer && id == held_->id();
  Stream* const stream = is_of_held ? held_.get() : id ? find(*id) : nullptr;
  // All ranks must have joined before a shard sends anything; the status that says so was lost.
  // Of an appliance that is back, or another one, the status also says with which step.
  const bool may_go_on = changed_ || options_.epoch != 0 || facts_.policy.tolerates_stragglers();
  if (is_result && !may_go_on && membership_.note_running()) start(now);
  if (id && stream == nullptr) return is_result ? Verdict::kBadType : Verdict::kBadStream;
  if (state_ != SessionState::kRunning) return Verdict::kNotStarted;

  const std::optional<std::uint16_t> shard = shard_of_packet(packet);
  if (!shard) return Verdict::kWrongShard;
  CHECK(link_.joined());
  Flow& flow = link_.flows[*shard];
  const wire::FeedbackHeader& feedback = packet.feedback();
  const Flow::LossSignals signals = flow.on_feedback(feedback, now);
  if (!signals.valid) return Verdict::kBadField;
  tensor_stream().learn_open_step(feedback.open_step, now);

  Verdict verdict = Verdict::kCredit;
  if (is_answer) remember_missing(packet, now);
  if (stream != nullptr)
    verdict = is_answer ? stream->handle_answer(packet, now) : stream->handle_result(packet, now);
  if (resumption_ && !collectives_.exchanges() && link_.failure.ok()) advance_exchange(now);
  if (held_ && feedback.open_step != 0 && link_.failure.ok()) {
    exchanges_.over = membership_.resumed().exchange;
    end_exchange(now);
    if (store_ != nullptr)
      store_->go_on(now);
    else
      gradients_->go_on(feedback.open_step, now);
  }
  if (feedback.flags & wire::kFlagPulled) ++link_.counters.results_pulled;
  tensor_stream().confirm_arrived(*shard);
  if (!link_.failure.ok()) {
    fail(link_.failure, true, now);
    return verdict;
  }
  if (flow.credit_limits() && !options_.more_credit.empty()) {
    link_.events.push(credit_limits(options_, flow));
    options_.more_credit.clear();  // once is enough
  }
  if (verdict == Verdict::kCompleted) note_caught_up(now);
  if (membership_.drain() != wire::Drain::kNone) {
    consider_move(now);
    if (state_ != SessionState::kRunning) return verdict;
  }
  hint(*shard, signals, now);
  work(*shard, now);
  return verdict;
}

void Session::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
  bool used = false;
  for (Stream* const one : streams_) {
    if (!one->uses(shard)) continue;
    one->hint(shard, signals, now);
    used = true;
  }
  // What nobody waits for is recovered with the tensors' stream, which has every flow.
  if (!used) tensor_stream().hint(shard, signals, now);
}

void Session::work(std::uint16_t shard, TimeNs now) noexcept {
  DCHECK(shard < link_.shard_count() && state_ == SessionState::kRunning);
  while (const std::optional<std::uint32_t> lost = link_.flows[shard].take_lost(now))
    for (Stream* const one : streams_)
      if (one->recovers(shard)) one->lose(shard, *lost);
  for (Stream* const one : streams_)
    if (one->recovers(shard)) one->work(shard, now);
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
  const bool elsewhere = poll_move(transmit, out);
  if (elsewhere) {
  } else if (state_ == SessionState::kJoining) {
    transmit.bytes = join_.poll_transmit(out);
  } else {
    while (has_call() && act_on_call(now)) continue;
    if (asking_.has_value()) transmit.bytes = asking_->poll_transmit(out);
    if (transmit.bytes != 0) {
      former_.tell = moving_;
    } else if (moving_) {
      return false;
    } else if (membership_.has_control()) {
      for (Stream* const one : streams_) one->update_counters(now);
      transmit.bytes = membership_.poll_transmit(out, link_.counters, now);
    } else if (state_ != SessionState::kRunning) {
      return false;
    } else if (const auto one = std::ranges::find_if(streams_, &Stream::has_control);
               one != streams_.end()) {
      transmit.bytes = (*one)->poll_control(out);
    } else if (!poll_data(transmit, out, now)) {
      return false;
    }
  }
  if (transmit.bytes == 0) return false;
  if (!elsewhere) transmit.address = standby_.address();
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
  for (Flow& flow : link_.flows) flow.forget_pace();
  for (std::uint16_t shard = 0; shard < shards; ++shard)
    for (Stream* const one : probe_order_)
      if (one->poll_probe(shard, transmit, out, now)) return true;
  for (Stream* const one : send_order_)
    if (one->write_next(transmit, out, now)) return true;
  for (std::uint16_t shard = 0; shard < shards; ++shard)
    if (poll_credit(shard, transmit, out, now)) return true;
  return false;
}

bool Session::poll_credit(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                          TimeNs now) noexcept {
  DCHECK(state_ == SessionState::kRunning);
  Flow& flow = link_.flows[shard];
  const bool wants_feedback = tensor_stream().wants_feedback(shard);
  const bool asks_tail = flow.asks_about_tail();
  if (!flow.credit_due() && !wants_feedback && !asks_tail) return false;
  transmit.port_offset = static_cast<std::uint16_t>(1 + shard);
  if (wants_feedback) transmit.priority = tensor_stream().feedback_priority(shard);
  if (asks_tail) transmit.priority = std::max(transmit.priority, flow.tail_priority());
  wire::Credit body{.flow = flow.next_header(now, transmit.priority)};
  if (asks_tail) flow.asked_about_tail(now);
  if (asks_tail || flow.take_report_flag(wants_feedback, now)) body.flow.flags |= wire::kFlagReport;
  transmit.bytes = wire::encode(out, link_.identity, body);
  return true;
}

}  // namespace sluice::client

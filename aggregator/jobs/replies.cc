#include "aggregator/jobs/replies.h"

#include <algorithm>
#include <cstring>

#include "aggregator/jobs/text.h"

namespace sluice::agg {

ServerNonce server_nonce(const Request& request, const wire::HmacKey& boot_key) noexcept {
  std::array<std::uint8_t, 9 + sizeof(std::uint64_t) + sizeof(std::uint16_t) + 128> message{};
  const std::uint64_t nonce = request.join().nonce;
  const std::uint16_t rank = request.rank().value;
  const std::size_t address_bytes = std::min<std::size_t>(request.origin.address.size(), 128);
  std::uint8_t* at = message.data();
  CHECK(19 + address_bytes <= message.size());
  std::memcpy(at, "challenge", 9);
  std::memcpy(at + 9, &nonce, sizeof(nonce));
  std::memcpy(at + 17, &rank, sizeof(rank));
  if (address_bytes != 0) std::memcpy(at + 19, request.origin.address.data(), address_bytes);
  const wire::Digest digest = boot_key.digest({message.data(), 19 + address_bytes});
  ServerNonce result;
  static_assert(sizeof(result) <= sizeof(digest));
  std::memcpy(result.data(), digest.data(), result.size());
  return result;
}

ControlResult challenge(const Request& request, const wire::HmacKey& boot_key,
                        std::uint32_t epoch) {
  wire::Challenge body{.nonce = request.join().nonce, .epoch = epoch};
  const auto nonce = server_nonce(request, boot_key);
  std::memcpy(body.server_nonce, nonce.data(), nonce.size());
  const std::size_t bytes = wire::encode(request.reply, {.rank = request.rank().value}, body);
  CHECK(bytes <= request.packet.bytes().size());  // a stranger hears no more than it has said
  return {.verdict = Verdict::kJoin, .reply_bytes = bytes};
}

ControlResult refuse(const Request& request, const Refusal& refusal, bool proven) {
  CHECK(!refusal.ok());
  std::size_t room = kMaxTextBytes;
  const std::size_t fixed_bytes = sizeof(wire::CommonHeader) + sizeof(wire::Refuse);
  CHECK(proven || request.packet.bytes().size() >= fixed_bytes);
  if (!proven) room = std::min(room, request.packet.bytes().size() - fixed_bytes);
  CHECK(!refusal.text.empty());
  const std::size_t text_bytes = std::min(refusal.text.size(), room);
  const std::span text{reinterpret_cast<const std::uint8_t*>(refusal.text.data()), text_bytes};
  if (refusal.difference) {
    CHECK(proven);
    wire::Differs body = *refusal.difference;
    body.nonce = request.join().nonce;
    body.text_bytes = static_cast<std::uint16_t>(text_bytes);
    return {
        .verdict = Verdict::kJoinRefused,
        .reply_bytes = wire::encode(request.reply, {.rank = request.rank().value}, body, {}, text)};
  }
  const wire::Refuse body{.nonce = request.join().nonce,
                          .code = refusal.code,
                          .text_bytes = static_cast<std::uint16_t>(text_bytes)};
  const std::size_t bytes =
      wire::encode(request.reply, {.rank = request.rank().value}, body, {}, text);
  return {.verdict = Verdict::kJoinRefused, .reply_bytes = bytes};
}

ControlResult preparing(const Request& request, std::uint8_t percent) {
  const std::size_t bytes =
      wire::encode(request.reply, {.rank = request.rank().value},
                   wire::Preparing{.nonce = request.join().nonce, .percent = percent});
  return {.verdict = Verdict::kJoin, .reply_bytes = bytes};
}

ControlResult accept(const Request& request, const JobEntry& entry, const JobsOptions& options) {
  CHECK(entry.member(request.rank()).is(MemberPhase::kJoined) && entry.job != nullptr);
  CHECK(entry.member(request.rank()).cookie != 0);
  wire::Accept body{
      .nonce = request.join().nonce,
      .policy = entry.job->spec.policy,
      .member_timeout_ms = static_cast<std::uint32_t>(options.member_timeout_ns / kMillisecond),
      .resync_hold_ms = static_cast<std::uint32_t>(options.resync_hold_ns / kMillisecond),
      .shards = options.shard_count,
      .window = static_cast<std::uint16_t>(entry.job->spec.windows[0]),
      .world_size = entry.world_size(),
      .joined_count = entry.count(MemberPhase::kJoined),
      .rejoined = entry.member(request.rank()).rejoined,
      .kept = entry.was_kept};
  const Member& shared = entry.shared(request.rank());
  for (std::size_t stream = 0; stream < kStreamsOfJob; ++stream) {
    const Step open = entry.job->windows[stream].open_step.load(std::memory_order_acquire);
    body.open_steps[stream] = std::max<Step>(open, 1);
    const Step joined = shared.joined_from[stream].load(std::memory_order_acquire);
    body.first_steps[stream] = std::max<Step>(joined, 1);
  }
  const Rank rank = request.rank();
  const wire::Sender sender{
      .job = entry.id.value, .rank = rank.value, .cookie = entry.member(rank).cookie};
  return {.verdict = Verdict::kJoin,
          .reply_bytes = wire::encode(request.reply, sender, body),
          .bind = true,
          .job = entry.id,
          .rank = rank};
}

std::size_t write_status(const JobEntry& entry, Rank rank, std::uint32_t echo_us,
                         DurationNs resync_hold_ns, std::span<std::uint8_t> out, TimeNs now) {
  std::array<std::uint64_t, kMaskWords> missing{};
  for (std::uint16_t other = 0; other < entry.world_size(); ++other) {
    const MemberEntry& member = entry.member(Rank{other});
    // Whoever has ended is missed by a job that goes on without it and cannot move without it.
    const bool ended = member.is(MemberPhase::kLeft) && (!entry.goes_on() || entry.is_store());
    const bool away = !entry.forming() && (ended || (member.has_left() && member.moved));
    // Of a store that may move the rest is not in its view.
    const bool is_missing = entry.in_views() && !entry.forming()
                                ? !member.live() && !member.moved
                                : !member.is(MemberPhase::kJoined) && !away;
    if (is_missing) set_bit(missing.data(), Rank{other});
  }
  const std::size_t words = sluice::mask_words(entry.world_size());
  CHECK(words <= missing.size());
  const MemberEntry& member = entry.member(rank);
  CHECK(member.cookie != 0);
  wire::Status body{.echo_timestamp_us = echo_us,
                    .joined_count = entry.count(MemberPhase::kJoined),
                    .world_size = entry.world_size(),
                    .state = entry.state(),
                    .mask_words = static_cast<std::uint8_t>(words),
                    .left = member.has_left()};
  if (entry.job != nullptr) body.resume_step = entry.job->resumed_step();
  body.resume_from = entry.resume_from;
  body.resume_calls = entry.resume_calls;
  body.exchange = entry.exchange;
  body.exchange_over = entry.exchange_over;
  body.needs_state = member.needs_state;
  body.drain = entry.drain;
  body.view = entry.view;
  body.settled_view = entry.settled_view;
  const Resyncs& resyncs = entry.resyncs;
  if (entry.goes_on() && resyncs.state() == Resyncs::State::kOpen) {
    // A process that took the source's rank has nothing to give.
    const bool empty_handed =
        rank == resyncs.source() && !entry.can_give_state(rank, resyncs.target());
    const DurationNs left_ns = resync_hold_ns - resyncs.held_ns(now);
    if (!empty_handed) {
      body.transfer_step = resyncs.first_step();
      body.transfer_number = resyncs.number();
      body.hold_left_ms =
          static_cast<std::uint32_t>(std::max<DurationNs>(left_ns, 0) / kMillisecond);
      body.transfer_source = resyncs.source().value;
      body.transfer_target = resyncs.target().value;
    }
  }
  return wire::encode(out, {.job = entry.id.value, .rank = rank.value, .cookie = member.cookie},
                      body, {missing.data(), words});
}

std::size_t write_notice(const JobEntry& entry, Rank rank, std::span<std::uint8_t> out) {
  const MemberEntry& member = entry.member(rank);
  const bool evicted = member.is(MemberPhase::kEvicted);
  CHECK(evicted || entry.failed);
  const std::string& why = evicted ? member.notice : entry.notice_text;
  CHECK(!why.empty() && member.cookie != 0);
  const std::size_t text_bytes = std::min(why.size(), kMaxTextBytes);
  const wire::Notice body{.code = evicted ? wire::NoticeCode::kResyncHold : entry.notice_code,
                          .rank = evicted ? rank.value : entry.notice_rank.value,
                          .text_bytes = static_cast<std::uint16_t>(text_bytes)};
  return wire::encode(out, {.job = entry.id.value, .rank = rank.value, .cookie = member.cookie},
                      body, {}, {reinterpret_cast<const std::uint8_t*>(why.data()), text_bytes});
}

std::size_t write_answer(const JobEntry& entry, std::uint32_t echo_us, DurationNs resync_hold_ns,
                         const Request& request) {
  const Rank rank = request.rank();
  const MemberEntry& member = entry.member(rank);
  if (member.is(MemberPhase::kEvicted) || (entry.failed && !member.has_left()))
    return write_notice(entry, rank, request.reply);
  return write_status(entry, rank, echo_us, resync_hold_ns, request.reply, request.now);
}

std::size_t write_replaced(const JobEntry& entry, const Request& request) {
  const Rank rank = request.rank();
  CHECK(request.packet.common().cookie == entry.member(rank).stale_cookie);
  const std::string why = text(
      "job '%s': rank %u was silent for more than %.0f s and is now held by %s; this process "
      "is no member any more",
      entry.name.c_str(), unsigned{rank.value}, seconds(kTakeoverSilence),
      entry.member(rank).address.c_str());
  const wire::Notice body{.code = wire::NoticeCode::kReplaced,
                          .rank = rank.value,
                          .text_bytes = static_cast<std::uint16_t>(why.size())};
  return wire::encode(
      request.reply,
      {.job = entry.id.value, .rank = rank.value, .cookie = request.packet.common().cookie}, body,
      {}, {reinterpret_cast<const std::uint8_t*>(why.data()), why.size()});
}

}  // namespace sluice::agg

// A join from its first byte to its answer: size test, challenge, proof, and the seat.
#include <cstring>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"
#include "aggregator/wire/auth.h"

namespace sluice::agg {

ControlResult Jobs::join(const Request& request) {
  const wire::Join& join = request.join();
  if (join.has_proof == 0) {
    const std::size_t arrived_bytes = request.packet.bytes().size();
    Refusal refusal{.code = wire::RefuseCode::kMtu};
    if (request.origin.max_datagram_bytes != 0 &&
        join.datagram_bytes > request.origin.max_datagram_bytes) {
      refusal.text = text(
          "this job needs datagrams of %u bytes, the appliance's port carries %zu: "
          "lower the chunk size or raise the port's mtu",
          unsigned{join.datagram_bytes}, request.origin.max_datagram_bytes);
      return refuse(request, refusal, false);
    }
    if (arrived_bytes < join.datagram_bytes) {
      refusal.text = text(
          "datagrams of %zu bytes arrive, those of %u that this job needs do not: "
          "lower the chunk size or raise the MTU on the path",
          arrived_bytes, unsigned{join.datagram_bytes});
      return refuse(request, refusal, false);
    }
    return challenge(request);
  }

  // A nonce that is not ours belongs to another address or to the appliance before its restart: an
  // honest worker simply proves itself again.
  if (!wire::same_digest(server_nonce(request), join.server_nonce)) return challenge(request);
  if (!wire::same_digest(wire::join_proof(secret_, request.rank().value, join), join.proof)) {
    const Refusal refusal{
        .code = wire::RefuseCode::kBadSecret,
        .text = text("wrong secret for job '%s': rank %u at %s has another one than the appliance "
                     "(secret, SLUICE_SECRET)",
                     printable(request.name()).c_str(), unsigned{request.rank().value},
                     std::string(request.origin.address).c_str())};
    return refuse(request, refusal, false);
  }

  Refusal refusal;
  if (!check_request(request, refusal)) return refuse(request, refusal, true);
  Entry* entry = find(request.name(), join.ordinal);
  if (entry != nullptr && !check_agreement(*entry, request, refusal)) {
    if (refusal.code != wire::RefuseCode{}) return refuse(request, refusal, true);
    replace(*entry, request);
    entry = nullptr;
  }
  if (entry == nullptr) {
    if (is_echo(request)) return {.verdict = Verdict::kJoin};
    entry = create(request, refusal);
    if (entry == nullptr && refusal.code != wire::RefuseCode{})
      return refuse(request, refusal, true);
    // Memory is on its way back from the shards: no answer, the worker asks again.
    if (entry == nullptr) return {.verdict = Verdict::kJoin};
  }
  entry->asked_ns = request.now;
  if (entry->memory == Entry::Memory::kMaking) return prepare(*entry, request);
  return admit(*entry, request);
}

// The job's memory is being made, and the entry has no members yet: who asks comes again.
ControlResult Jobs::prepare(Entry& entry, const Request& request) const {
  const std::size_t made_bytes = entry.progress->bytes.load(std::memory_order_relaxed);
  const auto percent = static_cast<std::uint8_t>(
      std::min<std::uint64_t>(100, std::uint64_t{made_bytes} * 100 / entry.memory_bytes));
  const std::size_t bytes =
      wire::encode(request.reply, {.rank = request.rank().value},
                   wire::Preparing{.nonce = request.join().nonce, .percent = percent});
  return {.verdict = Verdict::kJoin, .reply_bytes = bytes};
}

// Binds the challenge to where the request came from, without remembering anything.
std::array<std::uint8_t, wire::kNonceBytes> Jobs::server_nonce(
    const Request& request) const noexcept {
  std::array<std::uint8_t, 9 + sizeof(std::uint64_t) + sizeof(std::uint16_t) + 128> message{};
  const std::uint64_t nonce = request.join().nonce;
  const std::uint16_t rank = request.rank().value;
  const std::size_t address_bytes = std::min<std::size_t>(request.origin.address.size(), 128);
  std::uint8_t* at = message.data();
  std::memcpy(at, "challenge", 9);
  std::memcpy(at + 9, &nonce, sizeof(nonce));
  std::memcpy(at + 17, &rank, sizeof(rank));
  if (address_bytes != 0) std::memcpy(at + 19, request.origin.address.data(), address_bytes);
  const wire::Digest digest = boot_key_.digest({message.data(), 19 + address_bytes});
  std::array<std::uint8_t, wire::kNonceBytes> result;
  std::memcpy(result.data(), digest.data(), result.size());
  return result;
}

Cookie Jobs::make_cookie(const Entry& entry, Rank rank, std::uint64_t nonce) noexcept {
  struct [[gnu::packed]] {
    char purpose[6] = {'c', 'o', 'o', 'k', 'i', 'e'};
    std::uint16_t rank;
    std::uint64_t serial;
    std::uint64_t nonce;
    std::uint64_t use;
  } message{.rank = rank.value, .serial = entry.serial, .nonce = nonce, .use = next_serial_++};
  const wire::Digest digest =
      boot_key_.digest({reinterpret_cast<const std::uint8_t*>(&message), sizeof(message)});
  Cookie cookie;
  std::memcpy(&cookie, digest.data(), sizeof(cookie));
  return cookie == 0 ? 1 : cookie;
}

ControlResult Jobs::challenge(const Request& request) const {
  wire::Challenge body{.nonce = request.join().nonce};
  const auto nonce = server_nonce(request);
  std::memcpy(body.server_nonce, nonce.data(), nonce.size());
  const std::size_t bytes = wire::encode(request.reply, {.rank = request.rank().value}, body);
  return {.verdict = Verdict::kJoin, .reply_bytes = bytes};
}

ControlResult Jobs::refuse(const Request& request, const Refusal& refusal, bool proven) const {
  std::size_t room = kMaxTextBytes;
  const std::size_t fixed_bytes = sizeof(wire::CommonHeader) + sizeof(wire::Refuse);
  if (!proven) room = std::min(room, request.packet.bytes().size() - fixed_bytes);
  const std::size_t text_bytes = std::min(refusal.text.size(), room);
  const wire::Refuse body{.nonce = request.join().nonce,
                          .code = refusal.code,
                          .text_bytes = static_cast<std::uint16_t>(text_bytes)};
  const std::size_t bytes =
      wire::encode(request.reply, {.rank = request.rank().value}, body, {},
                   {reinterpret_cast<const std::uint8_t*>(refusal.text.data()), text_bytes});
  return {.verdict = Verdict::kJoinRefused, .reply_bytes = bytes};
}

// The seat of a rank in a job that agrees with the request.
ControlResult Jobs::admit(Entry& entry, const Request& request) {
  Member& member = entry.members[request.rank().value];
  const std::uint64_t nonce = request.join().nonce;
  if (member.phase == Member::Phase::kJoined && member.nonce == nonce) {
    member.heard_control_ns = request.now;
    member.address = request.origin.address;
    return accept(entry, request);  // its answer was lost
  }
  if (member.phase == Member::Phase::kGone && member.nonce == nonce &&
      entry.state == wire::JobState::kForming) {
    revive(entry, request.rank(), request.now);
    return accept(entry, request);
  }
  if (member.has_left() && member.nonce == nonce)
    return {.verdict = Verdict::kJoin};  // a late copy of the request of a process that left

  const unsigned rank = request.rank().value;
  Refusal refusal{.code = wire::RefuseCode::kRankTaken};
  if (member.phase == Member::Phase::kExpelled && member.nonce == nonce) {
    refusal = {.code = wire::RefuseCode::kEnded, .text = member.notice};
    return refuse(request, refusal, true);
  }
  if (member.stale_cookie != 0 && member.stale_nonce == nonce) {
    refusal.text = text("rank %u of job '%s' was taken over by the process at %s", rank,
                        entry.name.c_str(), member.address.c_str());
    return refuse(request, refusal, true);
  }
  if (member.phase == Member::Phase::kJoined) {
    const DurationNs silent_ns = request.now - last_heard(entry, request.rank());
    if (silent_ns <= kTakeoverSilence) {
      // Of the last one that lives nobody could take the state over: only its silence ends it.
      if (entry.goes_on() && entry.live_count() > 1 && doubt(entry, request.rank(), request.now))
        return {.verdict = Verdict::kJoin};  // asked for first: the worker asks again
      refusal.text = text(
          "rank %u of job '%s' is held by %s, heard %.1f s ago, and %s asks for it: give each "
          "process its own rank; a silent process can be replaced after %.0f s",
          rank, entry.name.c_str(), member.address.c_str(), seconds(silent_ns),
          std::string(request.origin.address).c_str(), seconds(kTakeoverSilence));
      return refuse(request, refusal, true);
    }
  }
  const bool unheard = member.phase == Member::Phase::kGone && entry.is_synchronous();
  if (unheard ||
      (member.phase == Member::Phase::kLeft && entry.state == wire::JobState::kRunning)) {
    // The next job of the same program: the other ranks may be about to leave as well.
    if (request.now - member.left_ns < kRejoinGrace) return {.verdict = Verdict::kJoin};
    refusal.text = text(
        "rank %u of job '%s' left %.1f s ago and %u of %u ranks are still in it: use another job "
        "name or ordinal",
        rank, entry.name.c_str(), seconds(request.now - member.left_ns),
        unsigned{entry.count(Member::Phase::kJoined)}, unsigned{entry.world_size()});
    return refuse(request, refusal, true);
  }
  if (entry.goes_on()) return admit_to_running(entry, request);
  occupy(entry, request);
  start_if_complete(entry, request.now);
  return accept(entry, request);
}

// A rank of a job that went on without it, or does so now. Not answered before shard 0 knows the
// process: the worker asks again.
ControlResult Jobs::admit_to_running(Entry& entry, const Request& request) {
  const Rank rank = request.rank();
  Member& member = entry.members[rank.value];
  const bool same = member.nonce == request.join().nonce;
  const ControlResult later{.verdict = Verdict::kJoin, .bind = same, .job = entry.id, .rank = rank};
  if (member.phase == Member::Phase::kReturning) {
    readmit_again(entry, rank, request.now);
    return later;
  }
  if (member.live()) give_up(entry, rank);  // silent for too long
  if (!same) occupy(entry, request);
  member.address = request.origin.address;
  member.rejoined = true;
  member.needs_state = true;
  readmit(entry, rank, request.now);
  return {.verdict = Verdict::kJoin, .bind = true, .job = entry.id, .rank = rank};
}

void Jobs::occupy(Entry& entry, const Request& request) {
  Member& member = entry.members[request.rank().value];
  member.stale_cookie = member.cookie;
  member.stale_nonce = member.nonce;
  member.cookie = make_cookie(entry, request.rank(), request.join().nonce);
  member.nonce = request.join().nonce;
  member.phase = Member::Phase::kJoined;
  member.address = request.origin.address;
  member.heard_control_ns = request.now;
  member.next_ping_ns = request.now;
  member.suspected = false;
  member.resyncs_done = 0;

  agg::Member& shared = entry.job->members[request.rank().value];
  shared.last_heard_ns.store(attendance_.clock(request.now), std::memory_order_relaxed);
  shared.stale_cookie.store(member.stale_cookie, std::memory_order_relaxed);
  shared.cookie.store(member.cookie, std::memory_order_release);  // restarts the shards' flows
  shared.reachable.store(true, std::memory_order_release);
}

// A member of a forming job that was only frozen, and whose rank nobody took; see readmit() for
// running ones.
void Jobs::revive(Entry& entry, Rank rank, TimeNs now) {
  Member& member = entry.members[rank.value];
  member.phase = Member::Phase::kJoined;
  member.heard_control_ns = now;
  entry.job->members[rank.value].reachable.store(true, std::memory_order_release);
  start_if_complete(entry, now);
}

void Jobs::start_if_complete(Entry& entry, TimeNs now) {
  if (entry.state != wire::JobState::kForming ||
      entry.count(Member::Phase::kJoined) != entry.world_size())
    return;
  entry.job->start(attendance_.clock(now));
  entry.state = wire::JobState::kRunning;
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank)
    queue(entry, Rank{rank}, wire::PacketType::kStatus);
}

ControlResult Jobs::accept(const Entry& entry, const Request& request) const {
  wire::Accept body{
      .nonce = request.join().nonce,
      .policy = entry.job->spec.policy,
      .member_timeout_ms = static_cast<std::uint32_t>(options_.member_timeout_ns / kMillisecond),
      .resync_hold_ms = static_cast<std::uint32_t>(options_.resync_hold_ns / kMillisecond),
      .shards = options_.shard_count,
      .window = static_cast<std::uint16_t>(entry.job->spec.windows[0]),
      .world_size = entry.world_size(),
      .joined_count = entry.count(Member::Phase::kJoined),
      .rejoined = entry.members[request.rank().value].rejoined};
  const agg::Member& shared = entry.job->members[request.rank().value];
  for (std::size_t stream = 0; stream < kStreamCount; ++stream) {
    const Step open = entry.job->windows[stream].open_step.load(std::memory_order_acquire);
    body.open_steps[stream] = std::max<Step>(open, 1);
    const Step joined = shared.joined_from[stream].load(std::memory_order_acquire);
    body.first_steps[stream] = std::max<Step>(joined, 1);
  }
  const Rank rank = request.rank();
  const wire::Sender sender{
      .job = entry.id.value, .rank = rank.value, .cookie = entry.members[rank.value].cookie};
  return {.verdict = Verdict::kJoin,
          .reply_bytes = wire::encode(request.reply, sender, body),
          .bind = true,
          .job = entry.id,
          .rank = rank};
}

}  // namespace sluice::agg

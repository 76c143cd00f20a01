// A join from its first byte to its answer: size test, challenge, proof, and the rank.
#include <algorithm>
#include <cstring>

#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"
#include "aggregator/wire/auth.h"

namespace sluice::agg {

bool is_foreign_join(std::span<const std::uint8_t> datagram) noexcept {
  wire::CommonHeader common;
  if (datagram.size() < sizeof common) return false;
  std::memcpy(&common, datagram.data(), sizeof common);
  return common.magic == wire::kMagic && common.version != wire::kVersion &&
         common.type == wire::PacketType::kJoin;
}

std::size_t refuse_version(std::span<const std::uint8_t> request, std::span<std::uint8_t> reply) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Refuse);
  if (!is_foreign_join(request) || request.size() < kFixedBytes) return 0;
  CHECK(reply.size() >= kMaxDatagramBytes);
  wire::CommonHeader common;
  std::memcpy(&common, request.data(), sizeof common);
  wire::Refuse body{.code = wire::RefuseCode::kBadVersion};
  static_assert(offsetof(wire::Join, nonce) == 0);
  std::memcpy(&body.nonce, request.data() + sizeof common, sizeof body.nonce);
  const std::string why = text(
      "it speaks version %u of the protocol, the appliance version %u: use client and "
      "appliance of one release",
      unsigned{common.version}, unsigned{wire::kVersion});
  body.text_bytes = static_cast<std::uint16_t>(std::min(why.size(), request.size() - kFixedBytes));
  const std::size_t bytes =
      wire::encode(reply, {.rank = common.rank}, body, {},
                   {reinterpret_cast<const std::uint8_t*>(why.data()), body.text_bytes});
  CHECK(bytes <= request.size());  // a stranger hears no more than it has said
  return bytes;
}

ControlResult Jobs::join(const Request& request) {
  const JoinRequest asked{.join = request.join(),
                          .rank = request.rank(),
                          .address = request.origin.address,
                          .max_datagram_bytes = request.origin.max_datagram_bytes,
                          .now = request.now,
                          .prints = request.packet.payload()};
  const wire::Join& join = asked.join;
  if (join.has_proof == 0) {
    const Refusal refusal = check_size(asked, request.packet.bytes().size());
    return refusal.ok() ? challenge(request) : refuse(request, refusal, false);
  }

  // A nonce that is not ours belongs to another address or to the appliance before its restart: an
  // honest worker simply proves itself again.
  if (!wire::same_digest(server_nonce(request), join.server_nonce)) return challenge(request);
  if (!wire::same_digest(wire::join_proof(secret_, request.rank().value, join), join.proof))
    return refuse(request, wrong_secret(asked), false);

  JobEntry* entry = find(asked.name(), join.ordinal);
  JobDecision decision = decide_job(asked, options_, entry, usage(asked), clock_);
  if (decision.kind == JobDecision::Kind::kReplace) {
    replace(*entry, request);
    entry = nullptr;
    decision = decide_job(asked, options_, entry, usage(asked), clock_);
  }
  CHECK(entry != nullptr || (decision.kind != JobDecision::Kind::kJoin &&
                             decision.kind != JobDecision::Kind::kReplace));
  if (entry == nullptr && is_echo(asked)) return {.verdict = Verdict::kJoin};
  switch (decision.kind) {
    case JobDecision::Kind::kRefuse: return refuse(request, decision.refusal, true);
    case JobDecision::Kind::kJoin: return take_rank(*entry, asked, request);
    case JobDecision::Kind::kAskMembers:
      if (!is_asked(*entry, asked)) ask_members(*entry, asked);
      return {.verdict = Verdict::kJoin};  // the worker asks again
    case JobDecision::Kind::kAdopt: adopt(*entry, asked); return take_rank(*entry, asked, request);
    case JobDecision::Kind::kMakeRoom:
      if (all_ask(asked)) make_room(asked);
      return preparing(request, 0);
    case JobDecision::Kind::kReplace:
    case JobDecision::Kind::kLater: return {.verdict = Verdict::kJoin};
    case JobDecision::Kind::kFound: break;
  }
  entry = found(asked, std::move(decision.spec));
  if (entry == nullptr)
    return refuse(request,
                  {.code = wire::RefuseCode::kLimit,
                   .text = text("all %zu job ids of this appliance are in use: wait for a job to "
                                "end",
                                kMaxJobs)},
                  true);
  return take_rank(*entry, asked, request);
}

Refusal Jobs::wrong_secret(const JoinRequest& asked) const {
  const char* difference =
      "another one than the appliance has: give the appliance's as the option `secret` (only "
      "Python reads SLUICE_SECRET)";
  if (options_.secret.empty())
    difference =
        "one, and the appliance has none: give none, or the appliance one "
        "(appliance.secret_file)";
  else if (wire::same_digest(wire::join_proof("", asked.rank.value, asked.join), asked.join.proof))
    difference =
        "none, and the appliance has one: give it as the option `secret` (only Python reads "
        "SLUICE_SECRET)";
  return {.code = wire::RefuseCode::kBadSecret,
          .text = text("wrong secret for job '%s': rank %u at %s gave %s",
                       printable(asked.name()).c_str(), unsigned{asked.rank.value},
                       std::string(asked.address).c_str(), difference)};
}

// Another run wants the job's name. Dead processes' hosts answer a ping with a hint, living ones
// are heard within a keepalive; silence ends by itself. Nobody becomes a suspect by it.
void Jobs::ask_members(JobEntry& entry, const JoinRequest& asked) {
  CHECK(!entry.ended() && entry.run_id != asked.join.run_id);
  entry.rival_run_id = asked.join.run_id;
  entry.rival_ns = asked.now;
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank)
    if (entry.member(Rank{rank}).is(MemberPhase::kJoined))
      queue(entry, Rank{rank}, wire::PacketType::kPing);
}

// The job's memory is being made, and the entry has no members yet: who asks comes again.
ControlResult Jobs::prepare(const JobEntry& entry, const Request& request) const {
  CHECK(entry.memory() == JobMemory::kMaking);
  CHECK(entry.progress != nullptr && entry.memory_bytes != 0);
  const std::size_t made_bytes = entry.progress->bytes.load(std::memory_order_relaxed);
  const auto percent = static_cast<std::uint8_t>(
      std::min<std::uint64_t>(100, std::uint64_t{made_bytes} * 100 / entry.memory_bytes));
  return preparing(request, percent);
}

ControlResult Jobs::preparing(const Request& request, std::uint8_t percent) const {
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
  CHECK(19 + address_bytes <= message.size());
  std::memcpy(at, "challenge", 9);
  std::memcpy(at + 9, &nonce, sizeof(nonce));
  std::memcpy(at + 17, &rank, sizeof(rank));
  if (address_bytes != 0) std::memcpy(at + 19, request.origin.address.data(), address_bytes);
  const wire::Digest digest = boot_key_.digest({message.data(), 19 + address_bytes});
  std::array<std::uint8_t, wire::kNonceBytes> result;
  static_assert(sizeof(result) <= sizeof(digest));
  std::memcpy(result.data(), digest.data(), result.size());
  return result;
}

Cookie Jobs::make_cookie(const JobEntry& entry, Rank rank, std::uint64_t nonce) noexcept {
  CHECK(entry.serial != 0);  // or another job's would be the same
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
  CHECK(bytes <= request.packet.bytes().size());  // a stranger hears no more than it has said
  return {.verdict = Verdict::kJoin, .reply_bytes = bytes};
}

ControlResult Jobs::refuse(const Request& request, const Refusal& refusal, bool proven) const {
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

// Who gets a rank of a job that the request agrees with.
ControlResult Jobs::take_rank(JobEntry& entry, const JoinRequest& asked, const Request& request) {
  CHECK(entry.listed && asked.rank.value < entry.world_size());
  entry.asked_ns = request.now;
  if (entry.memory() == JobMemory::kMaking) return prepare(entry, request);
  const RankDecision decision = decide_rank(asked, entry, clock_);
  switch (decision.kind) {
    case RankDecision::Kind::kRefuse: return refuse(request, decision.refusal, true);
    case RankDecision::Kind::kIgnore: return {.verdict = Verdict::kJoin};
    case RankDecision::Kind::kAskHolder:
      suspect(entry, asked.rank, request.now);
      return {.verdict = Verdict::kJoin};  // the worker asks again
    case RankDecision::Kind::kAcceptAgain:
      entry.member(asked.rank).liveness.hear(request.now);
      entry.member(asked.rank).address = asked.address;
      break;
    case RankDecision::Kind::kRevive: revive(entry, asked.rank, request.now); break;
    case RankDecision::Kind::kTakeOfRunning: return admit_to_running(entry, request);
    case RankDecision::Kind::kTake:
      occupy(entry, request);
      start_if_complete(entry, request.now);
      break;
  }
  return accept(entry, request);
}

// A rank of a job that went on without it, or does so now. Not answered before shard 0 knows the
// process: the worker asks again.
ControlResult Jobs::admit_to_running(JobEntry& entry, const Request& request) {
  CHECK(entry.goes_on() && entry.running());
  const Rank rank = request.rank();
  MemberEntry& member = entry.member(rank);
  const bool same = member.nonce == request.join().nonce;
  const ControlResult later{.verdict = Verdict::kJoin, .bind = same, .job = entry.id, .rank = rank};
  if (member.is(MemberPhase::kReturning)) {
    repeat_rejoin(entry, rank, request.now);
    return later;
  }
  if (member.live()) remove_member(entry, rank);  // silent for too long
  if (entry.is_kept())
    entry.loss = text("job '%s': its other workers are still to come", entry.name.c_str());
  if (!same) occupy(entry, request);
  member.address = request.origin.address;
  member.rejoined = true;
  member.needs_state = !entry.is_store();  // else its pulls bring all
  rejoin(entry, rank, request.now);
  return {.verdict = Verdict::kJoin, .bind = true, .job = entry.id, .rank = rank};
}

void Jobs::occupy(JobEntry& entry, const Request& request) {
  MemberEntry& member = entry.member(request.rank());
  member.stale_cookie = member.cookie;
  member.stale_nonce = member.nonce;
  member.cookie = make_cookie(entry, request.rank(), request.join().nonce);
  CHECK(member.cookie != member.stale_cookie);
  member.nonce = request.join().nonce;
  member.change_to(MemberPhase::kJoined);
  member.address = request.origin.address;
  member.liveness = {};
  member.liveness.hear(request.now);
  member.resyncs_done = 0;

  Member& shared = entry.shared(request.rank());
  shared.last_heard_ns.store(clock_.caller_time(request.now), std::memory_order_relaxed);
  shared.stale_cookie.store(member.stale_cookie, std::memory_order_relaxed);
  shared.cookie.store(member.cookie, std::memory_order_release);  // restarts the shards' flows
  shared.reachable.store(true, std::memory_order_release);
}

// A member of a forming job that was only frozen, and whose rank nobody took; see rejoin() for
// running ones.
void Jobs::revive(JobEntry& entry, Rank rank, TimeNs now) {
  CHECK(entry.forming() || entry.is_synchronous());
  MemberEntry& member = entry.member(rank);
  member.change_to(MemberPhase::kJoined);
  member.liveness.hear(now);
  entry.shared(rank).reachable.store(true, std::memory_order_release);
  start_if_complete(entry, now);
}

void Jobs::start_if_complete(JobEntry& entry, TimeNs now) {
  if (!entry.forming() || entry.count(MemberPhase::kJoined) != entry.world_size()) return;
  CHECK(entry.job != nullptr && entry.memory() == JobMemory::kHeld);
  entry.job->start(clock_.caller_time(now));
  entry.run();
  entry.initial_ns = now;
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank)
    queue(entry, Rank{rank}, wire::PacketType::kStatus);
}

ControlResult Jobs::accept(const JobEntry& entry, const Request& request) const {
  CHECK(entry.member(request.rank()).is(MemberPhase::kJoined) && entry.job != nullptr);
  CHECK(entry.member(request.rank()).cookie != 0);
  wire::Accept body{
      .nonce = request.join().nonce,
      .policy = entry.job->spec.policy,
      .member_timeout_ms = static_cast<std::uint32_t>(options_.member_timeout_ns / kMillisecond),
      .resync_hold_ms = static_cast<std::uint32_t>(options_.resync_hold_ns / kMillisecond),
      .shards = options_.shard_count,
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

}  // namespace sluice::agg

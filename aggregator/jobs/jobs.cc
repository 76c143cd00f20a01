#include "aggregator/jobs/jobs.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

constexpr DurationNs kAwaitedAfter = 5 * kSecond;

}  // namespace

Jobs::Jobs(JobsOptions options)
    : options_(std::move(options)),
      secret_(options_.secret),
      boot_key_(options_.boot_key),
      entries_(kMaxJobs) {
  CHECK(options_.shard_count >= 1 && options_.shard_count <= kMaxShards);
}

Jobs::~Jobs() = default;

ControlResult Jobs::handle(const wire::Packet& packet, const Origin& origin,
                           std::span<std::uint8_t> reply, TimeNs now) {
  const Request request{
      .packet = packet, .origin = origin, .reply = reply, .now = clock_.advance(now)};
  ControlResult result{.verdict = Verdict::kBadType};
  switch (packet.type()) {
    case wire::PacketType::kJoin: result = join(request); break;
    case wire::PacketType::kKeepalive: result = keepalive(request); break;
    case wire::PacketType::kLeave: result = leave(request); break;
    case wire::PacketType::kResync: result = resync(request); break;
    default: break;
  }
  result = validate_path(request, result);
  CHECK(result.reply_bytes <= reply.size());
  verdicts_.count(result.verdict);
  return result;
}

// Only a path that has answered becomes the member's, or hears more than a ping as long as what it
// sent. The request itself has been carried out, whatever path it came by.
ControlResult Jobs::validate_path(const Request& request, ControlResult result) {
  const PathKey& path = request.origin.path;
  CHECK(!result.bind || entries_[result.job.value] != nullptr);
  MemberEntry* member =
      result.bind ? &entries_[result.job.value]->members[result.rank.value] : nullptr;
  if (request.packet.type() == wire::PacketType::kJoin) {
    if (member != nullptr) result.bind = member->paths.join(member->cookie, path, request.now);
    return result;
  }
  if (result.reply_bytes == 0 && member == nullptr) return result;

  const wire::CommonHeader& common = request.packet.common();
  const bool echoed = request.packet.type() == wire::PacketType::kKeepalive &&
                      is_path_token(request.packet.body<wire::Keepalive>().token, boot_key_,
                                    common.cookie, path, request.now);
  auto validation = echoed || path == PathKey{} ? MemberPaths::Validation::kProven
                                                : MemberPaths::Validation::kAsk;
  // A process whose rank was taken over has no paths any more, only the token.
  if (member != nullptr) validation = member->paths.judge(path, echoed, request.now);
  if (validation == MemberPaths::Validation::kProven) return result;
  result.bind = false;
  result.reply_bytes = 0;
  const std::size_t ping_bytes = sizeof(wire::CommonHeader) + sizeof(wire::Ping);
  if (validation == MemberPaths::Validation::kAsk && request.packet.bytes().size() >= ping_bytes) {
    const wire::Ping ping{.timestamp_us = wire_time_us(clock_.caller_time(request.now)),
                          .token = path_token(boot_key_, common.cookie, path, request.now)};
    result.reply_bytes = wire::encode(
        request.reply, {.job = common.job, .rank = common.rank, .cookie = common.cookie}, ping);
    CHECK(result.reply_bytes <= request.packet.bytes().size());  // no more than it has sent
  }
  return result;
}

Identity Jobs::identify(const wire::Packet& packet) const noexcept {
  const wire::CommonHeader& common = packet.common();
  if (common.job >= entries_.size() || entries_[common.job] == nullptr)
    return {.why = Verdict::kUnknownJob};
  JobEntry* entry = entries_[common.job].get();
  CHECK(entry->id.value == common.job);
  if (common.rank >= entry->world_size()) return {.why = Verdict::kBadRank};
  MemberEntry& member = entry->members[common.rank];
  if (common.cookie == 0) return {.why = Verdict::kBadCookie};
  if (common.cookie == member.cookie) return {.entry = entry, .member = &member};
  if (common.cookie == member.stale_cookie)
    return {.entry = entry, .why = Verdict::kStaleCookie, .replaced = true};
  return {.why = Verdict::kBadCookie};
}

// A member spoke, and may have been removed too early.
void Jobs::hear(JobEntry& entry, const Request& request) {
  const Rank rank = request.rank();
  MemberEntry& member = entry.member(rank);
  CHECK(!member.is(MemberPhase::kFree) && member.cookie != 0);
  member.liveness.hear(request.now);
  member.address = request.origin.address;
  if (entry.job != nullptr)
    entry.shared(rank).last_heard_ns.store(clock_.caller_time(request.now),
                                           std::memory_order_relaxed);
  if (member.is(MemberPhase::kReturning)) repeat_rejoin(entry, rank, request.now);
  if (!member.is(MemberPhase::kGone)) return;
  if (entry.forming() || entry.is_synchronous()) revive(entry, rank, request.now);
  if (entry.goes_on()) rejoin(entry, rank, request.now);
}

ControlResult Jobs::keepalive(const Request& request) {
  const Identity speaker = identify(request.packet);
  const Rank rank = request.rank();
  if (speaker.replaced)  // it proved itself once; it must learn that its rank has moved on
    return {.verdict = Verdict::kStaleCookie,
            .reply_bytes = write_replaced(*speaker.entry, rank, request)};
  if (speaker.member == nullptr) return {.verdict = speaker.why};

  JobEntry& entry = *speaker.entry;
  hear(entry, request);
  const auto& body = request.packet.body<wire::Keepalive>();
  speaker.member->suspended_ns = body.suspended_ns;
  speaker.member->oldest_request_iterations = body.oldest_request_iterations;
  return {.verdict = Verdict::kKeepalive,
          .reply_bytes = write_answer(entry, rank, body.timestamp_us, request),
          .bind = true,
          .job = entry.id,
          .rank = rank};
}

ControlResult Jobs::leave(const Request& request) {
  const Identity speaker = identify(request.packet);
  if (speaker.member == nullptr) return {.verdict = speaker.why};
  JobEntry& entry = *speaker.entry;
  MemberEntry& member = *speaker.member;
  member.liveness.hear(request.now);
  member.address = request.origin.address;
  if (!member.has_left())
    carry_out_leave(entry, request.rank(), request.packet.body<wire::Leave>(), request.now);
  CHECK(member.has_left() && (entry.ended() || !entry.resyncs.is_target(request.rank())));
  return {.verdict = Verdict::kLeave,
          .reply_bytes = write_status(entry, request.rank(), 0, request.reply, request.now),
          .bind = true,
          .job = entry.id,
          .rank = request.rank()};
}

void Jobs::carry_out_leave(JobEntry& entry, Rank rank, const wire::Leave& leave, TimeNs now) {
  MemberEntry& member = entry.member(rank);
  CHECK(!member.has_left() && !member.is(MemberPhase::kFree));
  const bool abnormal = leave.reason == wire::LeaveReason::kAbnormal;
  const DurationNs silent_ns = now - last_heard(entry, rank);
  member.left_ns = now;
  if (entry.goes_on() && (abnormal || member.lost())) {
    const bool was_live = member.live();
    member.change_to(MemberPhase::kAborted);
    if (!was_live) return;
    remove_member(entry, rank);
    note_loss(entry, rank, wire::NoticeCode::kMemberLeft,
              describe_loss(entry, rank, "left with an error", silent_ns), now);
    return;
  }
  member.change_to(MemberPhase::kLeft);
  if (entry.job != nullptr) entry.shared(rank).reachable.store(false, std::memory_order_release);

  if (entry.running()) {
    if (abnormal) {
      fail(entry, wire::NoticeCode::kMemberLeft, rank,
           describe_loss(entry, rank, "left with an error", silent_ns), now);
      return;
    }
    Member& shared = entry.shared(rank);
    const bool uneven = leave.reason == wire::LeaveReason::kUneven;
    for (std::size_t stream = 0; stream < kStreamsOfJob; ++stream) {
      const Step from = std::max(Step{leave.first_steps[stream]}, Step{1});
      if (stream == index_of(StreamId::kGradients) && entry.is_synchronous() && !uneven)
        member.missing_from = from;  // no step is complete without it: see check_ends()
      else
        shared.left_from[stream].store(from, std::memory_order_release);
    }
    command(ShardCommand::Kind::kMemberGone, entry, rank);
    forget_resync(entry, rank);
  }
  if (!entry.ended() && entry.live_count() == 0 && !keep(entry, now)) retire(entry, now);
}

bool Jobs::poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  while (!outgoing_.empty()) {
    const Outgoing mail = outgoing_.front();
    outgoing_.pop_front();
    JobEntry* entry = entries_[mail.job.value].get();
    if (entry == nullptr || entry->serial != mail.serial) continue;
    MemberEntry& member = entry->member(mail.rank);
    CHECK(member.cookie != 0);
    const wire::Sender sender{
        .job = mail.job.value, .rank = mail.rank.value, .cookie = member.cookie};
    transmit = {.buffer = out, .job = mail.job, .rank = mail.rank};
    // Its reader may have gone since, and another process may hold the rank.
    const bool has_notice = entry->failed || member.is(MemberPhase::kEvicted);
    if (mail.type == wire::PacketType::kNotice && !has_notice) continue;
    switch (mail.type) {
      case wire::PacketType::kPing:
        member.liveness.note_ping(now);
        transmit.bytes =
            wire::encode(out, sender, wire::Ping{.timestamp_us = wire_time_us(clock_ns)});
        break;
      case wire::PacketType::kNotice: transmit.bytes = write_notice(*entry, mail.rank, out); break;
      default: transmit.bytes = write_status(*entry, mail.rank, 0, out, now); break;
    }
    if (transmit.bytes != 0) return true;
  }
  return false;
}

bool Jobs::poll_command(ShardCommand& command) {
  if (commands_.empty()) return false;
  command = commands_.front();
  CHECK(command.job != nullptr);
  commands_.pop_front();
  return true;
}

std::vector<const Job*> Jobs::jobs() const {
  std::vector<const Job*> result;
  for (const auto& entry : entries_)
    if (entry != nullptr && entry->job != nullptr) result.push_back(entry->job.get());
  return result;
}

std::vector<JobView> Jobs::views() const {
  std::vector<JobView> result;
  for (const auto& entry : entries_)
    if (entry != nullptr)
      result.push_back({.id = entry->id,
                        .name = entry->name,
                        .ordinal = entry->ordinal,
                        .state = entry->state(),
                        .joined_count = entry->count(MemberPhase::kJoined),
                        .world_size = entry->world_size(),
                        .job = entry->job.get(),
                        .preparing = entry->memory() == JobMemory::kMaking,
                        .was_kept = entry->was_kept,
                        .notice = entry->notice_text,
                        .loss = entry->loss});
  return result;
}

std::vector<MemberView> Jobs::members(JobId job, TimeNs clock_ns) const {
  const TimeNs now = clock_.active_time(clock_ns);
  std::vector<MemberView> result;
  if (job.value >= entries_.size() || entries_[job.value] == nullptr) return result;
  const JobEntry& entry = *entries_[job.value];
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank) {
    const MemberEntry& member = entry.members[rank];
    result.push_back(
        {.rank = Rank{rank},
         .address = member.address,
         .joined = member.is(MemberPhase::kJoined),
         .gone = member.lost(),
         .left = member.is(MemberPhase::kLeft),
         .silent_ns = member.is(MemberPhase::kFree) ? 0 : now - last_heard(entry, Rank{rank}),
         .suspended_ns = member.suspended_ns,
         .oldest_request_iterations = member.oldest_request_iterations});
  }
  return result;
}

std::string Jobs::describe_awaited(JobId job, TimeNs clock_ns) const {
  const JobEntry* entry = job.value < entries_.size() ? entries_[job.value].get() : nullptr;
  if (entry == nullptr || !entry->forming() || entry->unclaimed() ||
      clock_.active_time(clock_ns) - entry->asked_ns < kAwaitedAfter)
    return {};
  std::array<std::uint64_t, kMaskWords> missing{};
  for (std::uint16_t rank = 0; rank < entry->world_size(); ++rank)
    if (!entry->member(Rank{rank}).is(MemberPhase::kJoined)) set_bit(missing.data(), Rank{rank});
  return text("%u of %u ranks here; waiting for %s", unsigned{entry->count(MemberPhase::kJoined)},
              unsigned{entry->world_size()}, list_ranks(missing.data(), missing.size()).c_str());
}

std::size_t Jobs::memory_bytes() const noexcept {
  std::size_t total_bytes = 0;
  for (const auto& entry : entries_)
    if (entry != nullptr && entry->memory() != JobMemory::kNone) total_bytes += entry->memory_bytes;
  return total_bytes;
}

}  // namespace sluice::agg

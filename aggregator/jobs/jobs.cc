#include "aggregator/jobs/jobs.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/jobs/job_control.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

constexpr DurationNs kAwaitedAfter = 5 * kSecond;

}  // namespace

Jobs::Jobs(JobsOptions options)
    : context_(std::make_unique<ControlContext>(std::move(options))), controls_(kMaxJobs) {
  CHECK(context_->options->shard_count >= 1 && context_->options->shard_count <= kMaxShards);
}

Jobs::~Jobs() = default;

// ---- requests ----

ControlResult Jobs::handle(const wire::Packet& packet, const Origin& origin,
                           std::span<std::uint8_t> reply, TimeNs now) {
  const Request request{
      .packet = packet, .origin = origin, .reply = reply, .now = context_->clock.advance(now)};
  ControlResult result{.verdict = Verdict::kBadType};
  switch (packet.type()) {
    case wire::PacketType::kJoin: result = join(request); break;
    case wire::PacketType::kKeepalive:
    case wire::PacketType::kMakeGroup:
    case wire::PacketType::kResync: result = hear(request); break;
    case wire::PacketType::kLeave: result = leave(request); break;
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
  JobControl* control = result.bind ? find(result.job.value) : nullptr;
  CHECK(!result.bind || control != nullptr);
  MemberEntry* member = control != nullptr ? &control->member(result.rank) : nullptr;
  if (request.packet.type() == wire::PacketType::kJoin) {
    if (member != nullptr) result.bind = member->paths.join(member->cookie, path, request.now);
    return result;
  }
  if (result.reply_bytes == 0 && member == nullptr) return result;

  const wire::HmacKey& key = context_->boot_key;
  const wire::CommonHeader& common = request.packet.common();
  const bool echoed = request.packet.type() == wire::PacketType::kKeepalive &&
                      is_path_token(request.packet.body<wire::Keepalive>().token, key,
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
    const wire::Ping ping{.timestamp_us = wire_time_us(context_->clock.caller_time(request.now)),
                          .token = path_token(key, common.cookie, path, request.now)};
    result.reply_bytes = wire::encode(
        request.reply, {.job = common.job, .rank = common.rank, .cookie = common.cookie}, ping);
    CHECK(result.reply_bytes <= request.packet.bytes().size());  // no more than it has sent
  }
  return result;
}

Jobs::Speaker Jobs::identify(const wire::Packet& packet) const noexcept {
  const wire::CommonHeader& common = packet.common();
  JobControl* control = find(common.job);
  if (control == nullptr) return {.why = Verdict::kUnknownJob};
  if (common.rank >= control->entry().world_size()) return {.why = Verdict::kBadRank};
  MemberEntry& member = control->member(Rank{common.rank});
  if (common.cookie == 0) return {.why = Verdict::kBadCookie};
  if (common.cookie == member.cookie) return {.control = control, .member = &member};
  if (common.cookie == member.stale_cookie)
    return {.control = control, .why = Verdict::kStaleCookie, .replaced = true};
  return {.why = Verdict::kBadCookie};
}

ControlResult Jobs::hear(const Request& request) {
  const Speaker speaker = identify(request.packet);
  if (speaker.replaced)  // it proved itself once; it must learn that its rank has moved on
    return {.verdict = Verdict::kStaleCookie,
            .reply_bytes = write_replaced(speaker.control->entry(), request)};
  if (speaker.member == nullptr) return {.verdict = speaker.why};

  JobControl& control = *speaker.control;
  control.hear(request);
  Verdict verdict = Verdict::kKeepalive;
  std::uint32_t echo_us = 0;
  if (request.packet.type() == wire::PacketType::kResync) {
    verdict = control.resync(request.rank(), request.packet.body<wire::Resync>(), request.now);
  } else if (request.packet.type() == wire::PacketType::kMakeGroup) {
    if (const std::size_t bytes = control.make_group(request); bytes != 0)
      return {.verdict = Verdict::kGroup,
              .reply_bytes = bytes,
              .bind = true,
              .job = control.entry().id,
              .rank = request.rank()};
    verdict = Verdict::kNotAllowed;
  } else {
    const auto& body = request.packet.body<wire::Keepalive>();
    speaker.member->suspended_ns = body.suspended_ns;
    speaker.member->oldest_request_iterations = body.oldest_request_iterations;
    echo_us = body.timestamp_us;
  }
  return {.verdict = verdict,
          .reply_bytes =
              write_answer(control.entry(), echo_us, context_->options->resync_hold_ns, request),
          .bind = true,
          .job = control.entry().id,
          .rank = request.rank()};
}

ControlResult Jobs::leave(const Request& request) {
  const Speaker speaker = identify(request.packet);
  if (speaker.member == nullptr) return {.verdict = speaker.why};
  const JobEntry& entry = speaker.control->entry();
  MemberEntry& member = *speaker.member;
  const Rank rank = request.rank();
  member.liveness.hear(request.now);
  member.address = request.origin.address;
  if (!member.has_left())
    speaker.control->leave(rank, request.packet.body<wire::Leave>(), request.packet.text(),
                           request.now);
  CHECK(member.has_left() && (entry.ended() || !entry.resyncs.is_target(rank)));
  return {.verdict = Verdict::kLeave,
          .reply_bytes = write_status(entry, rank, 0, context_->options->resync_hold_ns,
                                      request.reply, request.now),
          .bind = true,
          .job = entry.id,
          .rank = rank};
}

void Jobs::suspect(JobId job, Rank rank, TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  JobControl* control = find(job.value);
  if (control == nullptr || control->entry().ended() || rank.value >= control->entry().world_size())
    return;
  control->suspect_anew(rank, now);
}

Verdict Jobs::suspect_quoted(const wire::CommonHeader& quoted, TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  JobControl* control = find(quoted.job);
  if (control == nullptr) return Verdict::kUnknownJob;
  const JobEntry& entry = control->entry();
  if (quoted.rank >= entry.world_size()) return Verdict::kBadRank;
  const MemberEntry& member = entry.members[quoted.rank];
  if (quoted.cookie == 0 || quoted.cookie != member.cookie) return Verdict::kBadCookie;
  if (!entry.ended() && !member.liveness.was_cleared(now)) control->suspect(Rank{quoted.rank}, now);
  return Verdict::kAccepted;
}

// ---- what the operator does ----

Status Jobs::kick(JobId job, std::optional<Rank> rank, TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  JobControl* control = find(job.value);
  return control == nullptr ? Status(StatusCode::kNotFound, "no such job: it has ended")
                            : control->kick(rank, now);
}

void Jobs::change_options(JobsOptions options) {
  CHECK(options.shard_count == context_->options->shard_count &&
        options.boot_key == context_->options->boot_key);
  context_->use(std::move(options));
}

// ---- shards, memory and time ----

void Jobs::handle_event(const ShardEvent& event, TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  const auto found = std::find_if(controls_.begin(), controls_.end(), [&](const auto& control) {
    return control != nullptr && control->entry().job != nullptr &&
           control->entry().job.get() == event.job;
  });
  if (found != controls_.end()) (*found)->handle_event(event, now);
}

void Jobs::handle_memory(MemoryOrder order, TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  JobControl* control = find(order.spec.id.value);
  CHECK(control != nullptr);  // it stays while its memory is out
  control->handle_memory(std::move(order), now);
}

void Jobs::tick(TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  for (auto& control : controls_) {
    if (control == nullptr) continue;
    control->tick(now);
    if (control->is_over(now)) control.reset();
  }
}

void Jobs::shutdown(TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  for (auto& control : controls_) {
    if (control == nullptr || control->entry().ended()) continue;
    control->fail(wire::NoticeCode::kShutdown, Rank{},
                  text("job '%s': the appliance is shutting down; start the job again when it is "
                       "back",
                       control->entry().name.c_str()),
                  now);
    CHECK(control->entry().ended());
  }
}

void Jobs::drain(TimeNs clock_ns) {
  context_->clock.advance(clock_ns);
  context_->draining = true;
  for (auto& control : controls_)
    if (control != nullptr) control->drain(wire::Drain::kAsked);
}

bool Jobs::is_empty() const noexcept {
  return std::ranges::all_of(controls_, [](const auto& control) {
    return control == nullptr || control->entry().ended() || control->entry().live_count() == 0;
  });
}

// ---- what waits for the caller ----

bool Jobs::poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs clock_ns) {
  const TimeNs now = context_->clock.advance(clock_ns);
  for (auto& mails = context_->outbox.mail; !mails.empty();) {
    const Outbox::Mail mail = mails.front();
    mails.pop_front();
    JobControl* control = find(mail.job.value);
    if (control == nullptr || control->entry().serial != mail.serial) continue;
    const JobEntry& entry = control->entry();
    MemberEntry& member = control->member(mail.rank);
    CHECK(member.cookie != 0);
    const wire::Sender sender{
        .job = mail.job.value, .rank = mail.rank.value, .cookie = member.cookie};
    transmit = {.buffer = out, .job = mail.job, .rank = mail.rank};
    // Its reader may have gone since, and another process may hold the rank.
    const bool has_notice = entry.failed || member.is(MemberPhase::kEvicted);
    if (mail.type == wire::PacketType::kNotice && !has_notice) continue;
    switch (mail.type) {
      case wire::PacketType::kPing:
        member.liveness.note_ping(now);
        transmit.bytes =
            wire::encode(out, sender, wire::Ping{.timestamp_us = wire_time_us(clock_ns)});
        break;
      default:
        // A status that has waited would say that the job has ended, and not why.
        transmit.bytes =
            has_notice && !member.has_left()
                ? write_notice(entry, mail.rank, out)
                : write_status(entry, mail.rank, 0, context_->options->resync_hold_ns, out, now);
        break;
    }
    if (transmit.bytes != 0) return true;
  }
  return false;
}

bool Jobs::poll_command(ShardCommand& command) {
  auto& commands = context_->outbox.commands;
  if (commands.empty()) return false;
  command = commands.front();
  CHECK(command.job != nullptr);
  commands.pop_front();
  return true;
}

bool Jobs::poll_memory(MemoryOrder& order) {
  auto& orders = context_->outbox.orders;
  if (orders.empty()) return false;
  order = std::move(orders.front());
  orders.pop_front();
  CHECK(order.serial != 0);
  return true;
}

// ---- what metrics and tests see ----

std::vector<const Job*> Jobs::jobs() const {
  std::vector<const Job*> result;
  for (const auto& control : controls_)
    if (control != nullptr && control->entry().job != nullptr)
      result.push_back(control->entry().job.get());
  return result;
}

std::vector<JobView> Jobs::views() const {
  std::vector<JobView> result;
  for (const auto& control : controls_) {
    if (control == nullptr) continue;
    const JobEntry& entry = control->entry();
    result.push_back({.id = entry.id,
                      .name = entry.name,
                      .ordinal = entry.ordinal,
                      .state = entry.state(),
                      .joined_count = entry.count(MemberPhase::kJoined),
                      .world_size = entry.world_size(),
                      .job = entry.job.get(),
                      .preparing = entry.memory() == JobMemory::kMaking,
                      .was_kept = entry.was_kept,
                      .notice = entry.notice_text,
                      .loss = entry.loss});
  }
  return result;
}

std::vector<MemberView> Jobs::members(JobId job, TimeNs clock_ns) const {
  const TimeNs now = context_->clock.active_time(clock_ns);
  std::vector<MemberView> result;
  const JobControl* control = find(job.value);
  if (control == nullptr) return result;
  const JobEntry& entry = control->entry();
  for (std::uint16_t index = 0; index < entry.world_size(); ++index) {
    const Rank rank{index};
    const MemberEntry& member = entry.member(rank);
    result.push_back({.rank = rank,
                      .address = member.address,
                      .joined = member.is(MemberPhase::kJoined),
                      .gone = member.lost(),
                      .left = member.is(MemberPhase::kLeft),
                      .silent_ns = member.is(MemberPhase::kFree)
                                       ? 0
                                       : now - entry.last_heard_ns(rank, context_->clock),
                      .suspended_ns = member.suspended_ns,
                      .oldest_request_iterations = member.oldest_request_iterations});
  }
  return result;
}

std::string Jobs::describe_awaited(JobId job, TimeNs clock_ns) const {
  const JobControl* control = find(job.value);
  if (control == nullptr) return {};
  const JobEntry& entry = control->entry();
  if (!entry.forming() || entry.unclaimed() ||
      context_->clock.active_time(clock_ns) - entry.asked_ns < kAwaitedAfter)
    return {};
  std::array<std::uint64_t, kMaskWords> missing{};
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank)
    if (!entry.member(Rank{rank}).is(MemberPhase::kJoined)) set_bit(missing.data(), Rank{rank});
  return text("%u of %u ranks here; waiting for %s", unsigned{entry.count(MemberPhase::kJoined)},
              unsigned{entry.world_size()}, list_ranks(missing.data(), missing.size()).c_str());
}

std::size_t Jobs::memory_bytes() const noexcept {
  std::size_t total_bytes = 0;
  for (const auto& control : controls_)
    if (control != nullptr && control->entry().memory() != JobMemory::kNone)
      total_bytes += control->entry().memory_bytes;
  return total_bytes;
}

std::uint64_t Jobs::furthest_searches() const noexcept { return context_->furthest_searches; }

}  // namespace sluice::agg

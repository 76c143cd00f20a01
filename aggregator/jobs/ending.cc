// How a job ends, what its members are told, and when its memory goes back.
#include <algorithm>
#include <array>
#include <cinttypes>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

std::string describe_operation(const wire::Operation& operation) {
  if (operation.kind == CollectiveKind::kBarrier) return "a barrier";
  return text("a broadcast of %u bytes from rank %u", operation.size_bytes,
              unsigned{operation.root});
}

}  // namespace

std::string Jobs::describe_loss(const JobEntry& entry, Rank rank, std::string_view what,
                                DurationNs silent_ns) const {
  const std::string lost = text(
      "job '%s': rank %u at %s %s, last heard %.1f s ago", entry.name.c_str(), unsigned{rank.value},
      entry.member(rank).address.c_str(), std::string(what).c_str(), seconds(silent_ns));
  if (entry.goes_on()) return describe_shrinking(entry, lost);
  if (entry.forming()) return lost + "; nobody is left that waits for the job to start: join again";
  return lost +
         "; a synchronous job needs all ranks: look at that rank's log and start the job again";
}

// Ends the job with a notice to all who are still in it.
void Jobs::fail(JobEntry& entry, wire::NoticeCode code, Rank about, std::string why, TimeNs now) {
  CHECK(!why.empty());
  if (entry.ended()) return;
  entry.listed = entry.running();  // nothing to refuse a new try for
  entry.end(now);
  entry.failed = true;
  entry.notice_code = code;
  entry.notice_rank = about;
  entry.notice_text = std::move(why);
  if (entry.job != nullptr) entry.job->ended.store(true, std::memory_order_release);
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank)
    if (entry.members[rank].live()) queue(entry, Rank{rank}, wire::PacketType::kNotice);
  if (!entry.listed) release(entry);
}

// Another run takes the name: all members of this one are silent, left or gone.
void Jobs::replace(JobEntry& entry, const Request& request) {
  CHECK(entry.listed && entry.run_id != request.join().run_id);
  fail(entry, wire::NoticeCode::kReplaced, request.rank(),
       text("job '%s': run %016" PRIx64 " was silent for more than %.0f s and gave way to run "
            "%016" PRIx64 " (rank %u at %s)",
            entry.name.c_str(), entry.run_id, seconds(kTakeoverSilence), request.join().run_id,
            unsigned{request.rank().value}, std::string(request.origin.address).c_str()),
       request.now);
  entry.listed = false;
  release(entry);
}

// All members have left: a normal end. The name is free at once.
void Jobs::retire(JobEntry& entry, TimeNs now) {
  CHECK(entry.live_count() == 0 && !entry.ended());
  entry.end(now);
  entry.listed = false;
  release(entry);
}

// Asks the shards to let go; the last one's kJobReleased sends the memory back. What is still being
// made is not wanted any more.
void Jobs::release(JobEntry& entry) {
  if (entry.memory() == JobMemory::kMaking)
    entry.progress->unwanted.store(true, std::memory_order_relaxed);
  if (entry.memory() != JobMemory::kHeld) return;
  entry.change_to(JobMemory::kLeaving);
  CHECK(entry.ended());
  entry.releases_left = options_.shard_count;
  entry.job->ended.store(true, std::memory_order_release);
  command(ShardCommand::Kind::kRemoveJob, entry);
}

// After a failure the job stays until its members know, or could have asked for long enough.
void Jobs::expire(JobEntry& entry, TimeNs now) {
  CHECK(entry.ended());
  if (entry.count(MemberPhase::kJoined) != 0 && now - entry.ended_ns < kNoticeRepeat) return;
  entry.listed = entry.listed && now - entry.ended_ns < kNoticeRepeat;
  release(entry);
}

void Jobs::handle_event(const ShardEvent& event, TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry != nullptr && entry->job != nullptr && entry->job.get() == event.job;
  });
  if (found == entries_.end()) return;
  JobEntry& entry = **found;
  CHECK(event.rank.value < entry.world_size());
  switch (event.kind) {
    case ShardEvent::Kind::kJobReleased:
      CHECK(entry.memory() == JobMemory::kLeaving && entry.releases_left != 0);
      if (--entry.releases_left == 0) give_back(entry, std::move(entry.job));
      break;
    case ShardEvent::Kind::kCollectiveMismatch:
      fail(entry, wire::NoticeCode::kCollective, event.rank,
           text("job '%s': ranks disagree about collective %u: the first packet said %s, rank %u "
                "at %s says %s; all ranks must call the same collectives in the same order",
                entry.name.c_str(), event.step, describe_operation(event.expected).c_str(),
                unsigned{event.rank.value}, entry.members[event.rank.value].address.c_str(),
                describe_operation(event.actual).c_str()),
           now);
      break;
    case ShardEvent::Kind::kMemberAdmitted: admitted(entry, event.rank, now); break;
    case ShardEvent::Kind::kTransferOpened: transfer_opened(entry, event.step); break;
    case ShardEvent::Kind::kTransferLost: transfer_lost(entry, event.step, now); break;
    case ShardEvent::Kind::kStepLimit:
      fail(entry, wire::NoticeCode::kStepLimit, event.rank,
           text("job '%s': stream %u has used its last step number %u: start a new job from a "
                "checkpoint",
                entry.name.c_str(), static_cast<unsigned>(event.stream), event.step),
           now);
      break;
  }
}

void Jobs::shutdown(TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  for (auto& entry : entries_) {
    if (entry == nullptr || entry->ended()) continue;
    fail(*entry, wire::NoticeCode::kShutdown, Rank{},
         text("job '%s': the appliance is shutting down; start the job again when it is back",
              entry->name.c_str()),
         now);
    CHECK(entry->ended());
  }
}

void Jobs::command(ShardCommand::Kind kind, const JobEntry& entry, Rank rank, Step first) {
  CHECK(entry.job != nullptr && rank.value < entry.world_size());
  commands_.push_back({.kind = kind,
                       .job = entry.job.get(),
                       .rank = rank,
                       .admission = entry.member(rank).admission,
                       .first = first});
}

void Jobs::queue(const JobEntry& entry, Rank rank, wire::PacketType type) {
  CHECK(entry.member(rank).cookie != 0);
  outgoing_.push_back({.job = entry.id, .rank = rank, .serial = entry.serial, .type = type});
}

std::size_t Jobs::write_status(const JobEntry& entry, Rank rank, std::uint32_t echo_us,
                               std::span<std::uint8_t> out, TimeNs now) const noexcept {
  std::array<std::uint64_t, kMaskWords> missing{};
  for (std::uint16_t other = 0; other < entry.world_size(); ++other) {
    const MemberEntry& member = entry.member(Rank{other});
    const bool finished = member.is(MemberPhase::kLeft) && !entry.forming();
    if (!member.is(MemberPhase::kJoined) && !finished) set_bit(missing.data(), Rank{other});
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
  const Resyncs& resyncs = entry.resyncs;
  if (entry.goes_on() && resyncs.state() == Resyncs::State::kOpen) {
    // A process that took the source's rank has nothing to give.
    const bool empty_handed =
        rank == resyncs.source() && !can_give_state(entry, rank, resyncs.target());
    const DurationNs left_ns = options_.resync_hold_ns - resyncs.held_ns(now);
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

// How the job stands; to those who are no part of it any more, why.
std::size_t Jobs::write_answer(const JobEntry& entry, Rank rank, std::uint32_t echo_us,
                               const Request& request) const {
  const MemberEntry& member = entry.member(rank);
  if (member.is(MemberPhase::kEvicted) || (entry.failed && !member.has_left()))
    return write_notice(entry, rank, request.reply);
  return write_status(entry, rank, echo_us, request.reply, request.now);
}

std::size_t Jobs::write_notice(const JobEntry& entry, Rank rank,
                               std::span<std::uint8_t> out) const {
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

// To a process whose rank was taken over, under the cookie that it still uses.
std::size_t Jobs::write_replaced(const JobEntry& entry, Rank rank, const Request& request) const {
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

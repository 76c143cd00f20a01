// What the control side remembers of one job, beside what it shares with the shards.
//
// Private to this folder. An Entry outlives its Job: the shards let go of the memory as soon as the
// job is over, while members that missed the news can still ask for 10 s how it ended.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/jobs/jobs.h"

namespace sluice::agg {

inline constexpr DurationNs kNoticeRepeat = 10 * kSecond;        // after the end of a job
inline constexpr DurationNs kSuspectPing = 200 * kMillisecond;   // between the quick pings
inline constexpr unsigned kSuspectPings = 3;                     // unanswered: dead
inline constexpr DurationNs kClearedFor = kSecond;               // after an answer to the pings
inline constexpr DurationNs kSuspectGrace = 100 * kMillisecond;  // packets already under way
inline constexpr DurationNs kShardAnswer = kSecond;      // then its event was lost: ask it again
inline constexpr DurationNs kRejoinGrace = 3 * kSecond;  // a finished rank waits for the others

struct Jobs::Member {
  // kFree: nobody has joined. kGone: died or fell silent. kLeft: ended its part by itself. In a
  // forming job all three leave the rank to whoever asks. In a job that goes on without a rank also
  // kReturning: holds the rank again, the shards do not know yet. kAborted: left with an error.
  // In a synchronous job that runs, kGone means that nobody waits for it, so it may have finished.
  // kExpelled: given up by the appliance, which has told it why.
  enum class Phase : std::uint8_t { kFree, kJoined, kReturning, kGone, kLeft, kAborted, kExpelled };

  Phase phase = Phase::kFree;
  Cookie cookie = 0;  // kept after the end, so that notices and repeated leaves are answered
  Cookie stale_cookie = 0;
  std::uint64_t nonce = 0;  // of the join that holds the rank
  std::uint64_t stale_nonce = 0;
  std::string address;
  MemberPaths paths;
  TimeNs heard_control_ns = 0;
  TimeNs next_ping_ns = 0;
  TimeNs left_ns = 0;
  // kLeft, in a synchronous job: the gradient step that it has not contributed to and that nobody
  // else must begin. 0: uneven ends are meant.
  Step missing_from = 0;
  wire::NoticeCode lost_by{};  // kGone: how it was lost, at `left_ns`
  bool suspected = false;
  TimeNs suspected_ns = 0;        // valid while `suspected`, like the fields below
  unsigned suspect_pings = 0;     // that have been handed out to be sent
  TimeNs suspect_pinged_ns = 0;   // when the last one was
  bool suspect_ping_due = false;  // one waits to be handed out
  bool cleared = false;           // of a suspicion, at `cleared_ns`
  TimeNs cleared_ns = 0;
  std::string notice;                // why it was expelled
  std::uint32_t admissions_due = 0;  // kMemberJoined commands that shard 0 has not answered
  bool rejoined = false;             // came when the job ran already
  bool needs_state = false;          // rejoined, and has not reported the end of a resync
  TimeNs readmitted_ns = 0;          // when the shards were told of its return
  TimeNs admitted_ns = 0;            // when it rejoined
  std::uint32_t resyncs_done = 0;    // the highest number that it reported as done

  // A ping is on its way. Only those that were really sent speak against a suspect.
  void note_ping(TimeNs now) noexcept {
    if (!suspected || !suspect_ping_due) return;
    suspect_ping_due = false;
    suspect_pinged_ns = now;
    ++suspect_pings;
  }

  bool has_left() const noexcept { return phase == Phase::kLeft || phase == Phase::kAborted; }
  bool live() const noexcept { return phase == Phase::kJoined || phase == Phase::kReturning; }
  // Lost by a job that goes on: any process of the run may take the rank.
  bool lost() const noexcept {
    return phase == Phase::kGone || phase == Phase::kAborted || phase == Phase::kExpelled;
  }
};

// One transfer at a time; the others wait in line.
struct Jobs::Resyncs {
  struct Wish {
    Rank target;
    std::uint32_t number = 0;
  };
  std::deque<Wish> line;
  bool active = false;
  Wish current;  // valid while `active`, like the fields below
  Rank source;
  TimeNs started_ns = 0;           // the window is held from here on
  Step first_step = 0;             // of stream kState; 0: shard 0 has not opened it yet
  TimeNs opened_ns = 0;            // when shard 0 was told of it
  TimeNs next_lost_ns = 0;         // when shard 0 is told (again) that nobody is left to give
  std::uint32_t openings_due = 0;  // kOpenTransfer commands that shard 0 has not answered

  bool waits(Rank rank) const noexcept {
    for (const Wish& wish : line)
      if (wish.target == rank) return true;
    return false;
  }
};

struct Jobs::Entry {
  // kMaking: ordered, and the job is null. kHeld: by the shards. kLeaving: they were asked to let
  // go. kGoing: ordered to be given back, and the job is null. kNone: it takes nothing any more.
  enum class Memory : std::uint8_t { kNone, kMaking, kHeld, kLeaving, kGoing };

  JobId id;
  std::uint64_t serial = 0;
  std::string name;
  std::uint16_t ordinal = 0;
  std::uint64_t run_id = 0;
  wire::StreamLayout gradients;  // as the first member gave it
  AveragingChoice averaging{};   // likewise
  Rank layout_rank;              // that member
  std::uint16_t datagram_bytes = 0;
  JobSpec spec;
  std::vector<Member> members;
  Memory memory = Memory::kNone;
  std::unique_ptr<Job> job;  // while kHeld and kLeaving
  std::size_t memory_bytes = 0;
  std::size_t releases_left = 0;            // shards that still hold the job while kLeaving
  std::shared_ptr<BuildProgress> progress;  // of its making
  TimeNs asked_ns = 0;                      // the last join for it
  std::string no_memory;                    // why it was not made; empty: it was, or may be
  bool listed = true;                       // a join under this name finds it
  Resyncs resyncs;
  std::string loss;  // see JobView

  wire::JobState state = wire::JobState::kForming;
  bool failed = false;  // ended with the notice below
  wire::NoticeCode notice_code{};
  Rank notice_rank;
  std::string notice_text;
  TimeNs ended_ns = 0;

  std::uint16_t world_size() const noexcept { return static_cast<std::uint16_t>(members.size()); }
  std::uint16_t count(Member::Phase phase) const noexcept {
    std::uint16_t total = 0;
    for (const Member& member : members) total += member.phase == phase;
    return total;
  }
  // Processes that hold a rank, whether or not the shards know it yet.
  std::uint16_t live_count() const noexcept {
    std::uint16_t total = 0;
    for (const Member& member : members) total += member.live();
    return total;
  }
  // A running job of which every step needs every rank that has not ended its part.
  bool is_synchronous() const noexcept {
    return state == wire::JobState::kRunning && job != nullptr &&
           !job->spec.policy.tolerates_stragglers();
  }
  // Nobody has held a rank of it yet.
  bool unclaimed() const noexcept { return count(Member::Phase::kFree) == members.size(); }
  // Memory that is on its way back to the system.
  bool memory_returns() const noexcept {
    return memory == Memory::kLeaving || memory == Memory::kGoing ||
           (memory == Memory::kMaking && state == wire::JobState::kEnded);
  }
  // Whether losing a rank leaves the job running.
  bool goes_on() const noexcept {
    return state == wire::JobState::kRunning && job != nullptr &&
           job->spec.policy.tolerates_stragglers();
  }
};

struct Jobs::Request {
  const wire::Packet& packet;
  const Origin& origin;
  std::span<std::uint8_t> reply;
  TimeNs now;

  Rank rank() const noexcept { return Rank{packet.common().rank}; }
  const wire::Join& join() const noexcept { return packet.body<wire::Join>(); }
  std::string_view name() const noexcept { return {join().name, join().name_bytes}; }
};

struct Jobs::Refusal {
  wire::RefuseCode code{};
  std::string text;
};

struct Jobs::Standing {
  Entry* entry = nullptr;
  Member* member = nullptr;
  Verdict why{};          // when `member` is null
  bool replaced = false;  // the cookie was good until the rank was taken over
};

}  // namespace sluice::agg

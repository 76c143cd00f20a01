// What the control side remembers of one job and its members, beside what it shares with the
// shards.
//
// Private to this folder. A JobEntry outlives its Job: the shards let go of the memory as soon as
// the job is over, while members that missed the end can still ask for 10 s how it ended. Phases
// change by change_to(), which knows what may follow what.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/jobs/jobs.h"
#include "aggregator/jobs/liveness.h"
#include "aggregator/jobs/resyncs.h"

namespace sluice::agg {

inline constexpr DurationNs kNoticeRepeat = 10 * kSecond;  // after the end of a job
// A store that is kept this long, or a job that waits this long for its ranks, gives way to one
// that finds no room.
inline constexpr DurationNs kYieldAfter = 120 * kSecond;
inline constexpr DurationNs kRejoinGrace = 3 * kSecond;  // a finished rank waits for the others

// kFree: nobody has joined. kGone: died or fell silent. kLeft: ended its part by itself. In a
// forming job all three leave the rank to whoever asks. In a job that goes on without a rank also
// kReturning: holds the rank again, the shards do not know yet. kAborted: left with an error. In a
// synchronous job that runs, kGone means that nobody waits for it, so it may have finished. Of a
// store that is kept, who has left is kAborted too.
// kEvicted: removed by the appliance, which has told it why.
enum class MemberPhase : std::uint8_t {
  kFree,
  kJoined,
  kReturning,
  kGone,
  kLeft,
  kAborted,
  kEvicted
};

// Whether `next` may follow `phase`. kJoined follows itself where another process takes the rank.
constexpr bool may_follow(MemberPhase phase, MemberPhase next) noexcept {
  const auto one_of = [next](auto... phases) { return ((next == phases) || ...); };
  using enum MemberPhase;
  switch (phase) {
    case kFree: return next == kJoined;
    case kLeft: return one_of(kJoined, kAborted);
    case kAborted: return next == kJoined;
    case kJoined: return next != kFree;
    case kReturning: return one_of(kReturning, kJoined, kLeft, kAborted);
    case kGone: return one_of(kJoined, kReturning, kLeft, kAborted);
    case kEvicted: return one_of(kJoined, kLeft, kAborted);
  }
  return false;
}

// A job's memory. kMaking: ordered, and the job is null. kHeld: by the shards. kLeaving: they were
// asked to let go. kGoing: ordered to be given back, and the job is null. kNone: it takes nothing,
// yet or any more.
enum class JobMemory : std::uint8_t { kNone, kMaking, kHeld, kLeaving, kGoing };

constexpr bool may_follow(JobMemory memory, JobMemory next) noexcept {
  switch (memory) {
    case JobMemory::kNone: return next == JobMemory::kMaking;
    case JobMemory::kMaking:
      return next == JobMemory::kHeld || next == JobMemory::kGoing || next == JobMemory::kNone;
    case JobMemory::kHeld: return next == JobMemory::kLeaving;
    case JobMemory::kLeaving: return next == JobMemory::kGoing;
    case JobMemory::kGoing: return next == JobMemory::kNone;
  }
  return false;
}

struct MemberEntry {
  Cookie cookie = 0;  // kept after the end, so that notices and repeated leaves are answered
  Cookie stale_cookie = 0;
  std::uint64_t nonce = 0;  // of the join that holds the rank
  std::uint64_t stale_nonce = 0;
  std::string address;
  MemberPaths paths;
  Liveness liveness;
  TimeNs left_ns = 0;
  // kLeft, in a synchronous job: the gradient step that it has not contributed to and that nobody
  // else must begin. 0: uneven ends are meant.
  Step missing_from = 0;
  wire::NoticeCode lost_by{};        // kGone: how it was lost, at `left_ns`
  std::string notice;                // why it was evicted
  std::uint32_t admissions_due = 0;  // kMemberJoined commands that shard 0 has not answered
  std::uint32_t admission = 0;       // number of the last one
  bool rejoined = false;             // came when the job ran already
  bool needs_state = false;          // rejoined, and has not reported the end of a resync
  TimeNs rejoined_ns = 0;            // when the shards were told of its return
  TimeNs admitted_ns = 0;            // when it rejoined
  std::uint32_t resyncs_done = 0;    // the highest number that it reported as done
  std::uint64_t suspended_ns = 0;    // of a store's worker, as its last keepalive said
  std::uint32_t oldest_request_iterations = 0;  // likewise

  MemberPhase phase() const noexcept { return phase_; }
  bool is(MemberPhase phase) const noexcept { return phase_ == phase; }
  void change_to(MemberPhase next) noexcept {
    CHECK(may_follow(phase_, next));
    phase_ = next;
  }

  bool has_left() const noexcept { return is(MemberPhase::kLeft) || is(MemberPhase::kAborted); }
  bool live() const noexcept { return is(MemberPhase::kJoined) || is(MemberPhase::kReturning); }
  // Lost by a job that goes on: any process of the run may take the rank.
  bool lost() const noexcept {
    return is(MemberPhase::kGone) || is(MemberPhase::kAborted) || is(MemberPhase::kEvicted);
  }

 private:
  MemberPhase phase_ = MemberPhase::kFree;
};

struct JobEntry {
  JobId id;
  std::uint64_t serial = 0;
  std::string name;
  std::uint16_t ordinal = 0;
  std::uint64_t run_id = 0;
  wire::StreamLayout gradients;      // as the first member gave it
  AveragingChoice averaging{};       // likewise
  Dtype wire{};                      // likewise
  StoreOptions store;                // likewise
  StoreKeep keep{};                  // likewise
  PruneOptions prune;                // likewise
  std::uint32_t tensor_count = 0;    // likewise
  std::uint32_t print_tensors = 0;   // likewise
  std::vector<std::uint8_t> prints;  // likewise
  Rank layout_rank;                  // that member
  std::uint16_t datagram_bytes = 0;
  JobSpec spec;
  std::vector<MemberEntry> members;
  std::unique_ptr<Job> job;  // while kHeld and kLeaving
  std::string founder_host;
  std::size_t memory_bytes = 0;
  TimeNs held_since_ns = 0;                 // its memory is there
  std::size_t releases_left = 0;            // shards that still hold the job while kLeaving
  std::shared_ptr<BuildProgress> progress;  // of its making
  TimeNs asked_ns = 0;                      // the last join for it
  std::uint64_t rival_run_id = 0;           // another run that wants the name
  TimeNs rival_ns = 0;                      // since when, and since when members are asked
  std::string no_memory;                    // why it was not made; empty: it was, or may be
  bool listed = true;                       // a join under this name finds it
  Resyncs resyncs;
  std::string loss;  // see JobView
  // Of a store, see keep.cc.
  TimeNs kept_since_ns = 0;          // while it has no workers
  bool was_kept = false;             // it has had none
  bool initialised = false;          // it has all of its initial values
  std::uint32_t initial_chunks = 0;  // that it had at `initial_ns`
  TimeNs initial_ns = 0;             // some have come, or all ranks were there

  bool failed = false;  // ended with the notice below
  wire::NoticeCode notice_code{};
  Rank notice_rank;
  std::string notice_text;
  TimeNs ended_ns = 0;

  wire::JobState state() const noexcept { return state_; }
  bool forming() const noexcept { return state_ == wire::JobState::kForming; }
  bool running() const noexcept { return state_ == wire::JobState::kRunning; }
  bool ended() const noexcept { return state_ == wire::JobState::kEnded; }
  void run() noexcept {
    CHECK(forming() && job != nullptr);
    state_ = wire::JobState::kRunning;
  }
  void end(TimeNs now) noexcept {
    CHECK(!ended());
    state_ = wire::JobState::kEnded;
    ended_ns = now;
  }
  JobMemory memory() const noexcept { return memory_; }
  void change_to(JobMemory next) noexcept {
    CHECK(may_follow(memory_, next));
    CHECK((job != nullptr) == (next == JobMemory::kHeld || next == JobMemory::kLeaving));
    memory_ = next;
  }

  MemberEntry& member(Rank rank) noexcept {
    CHECK(rank.value < members.size());
    return members[rank.value];
  }
  const MemberEntry& member(Rank rank) const noexcept {
    CHECK(rank.value < members.size());
    return members[rank.value];
  }
  // What the shards know of the rank. Precondition: there is a job.
  Member& shared(Rank rank) const noexcept {
    CHECK(job != nullptr && rank.value < job->members.size());
    return job->members[rank.value];
  }

  std::uint16_t world_size() const noexcept { return static_cast<std::uint16_t>(members.size()); }
  std::uint16_t count(MemberPhase phase) const noexcept {
    std::uint16_t total = 0;
    for (const MemberEntry& member : members) total += member.is(phase);
    return total;
  }
  // Processes that hold a rank, whether or not the shards know it yet.
  std::uint16_t live_count() const noexcept {
    std::uint16_t total = 0;
    for (const MemberEntry& member : members) total += member.live();
    return total;
  }
  // Nobody has held a rank of it yet.
  bool unclaimed() const noexcept { return count(MemberPhase::kFree) == members.size(); }
  // Memory that is on its way back to the system.
  bool memory_returns() const noexcept {
    return memory_ == JobMemory::kLeaving || memory_ == JobMemory::kGoing ||
           (memory_ == JobMemory::kMaking && ended());
  }
  // How much of the memory is made. Precondition: kMaking.
  std::uint8_t percent_made() const noexcept;
  // Whether losing a rank leaves the job running.
  bool goes_on() const noexcept {
    return running() && job != nullptr && (job->spec.policy.tolerates_stragglers() || is_store());
  }
  // Its members have no steps in common: one that is lost starts again as another process.
  bool is_store() const noexcept { return spec.store.has_value(); }
  // It may give way to a job that finds no room: nobody can hurry what it waits for, and it has
  // waited for long enough.
  bool may_yield(TimeNs now) const noexcept;
  // It has outlived all of its workers.
  bool is_kept() const noexcept { return running() && is_store() && live_count() == 0; }
  // A running job of which every step needs every rank that has not ended its part.
  bool is_synchronous() const noexcept { return running() && job != nullptr && !goes_on(); }
  // When the member spoke last. Control and data both count; the shards' clock is the caller's.
  TimeNs last_heard_ns(Rank rank, const PausableClock& clock) const noexcept;
  // Whether the rank is a member that has the job's state: not the target, and not one that waits
  // for state itself.
  bool can_give_state(Rank rank, Rank target) const noexcept;
  // What is true of every job between two calls; at each tick.
  void check() const noexcept;

 private:
  wire::JobState state_ = wire::JobState::kForming;
  JobMemory memory_ = JobMemory::kNone;
};

}  // namespace sluice::agg

// The facts that the control side remembers of one job and its members, beside those that it shares
// with the shards.
//
// Private to this folder. JobControl and its parts change them; admission.h and replies.h only read
// them. A JobEntry outlives its Job: the shards release the memory as soon as the job has ended,
// while members that missed the end can still ask for 10 s how it ended. Phases change by
// change_to(), which knows what may follow what.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
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
// The number of an exchange has the run's epoch in its lowest bits, so whoever was in one says that
// the job has begun with that epoch.
inline constexpr std::uint64_t kEpochBits = 16;
constexpr std::uint64_t epoch_bits(std::uint32_t epoch) noexcept {
  return epoch & ((std::uint64_t{1} << kEpochBits) - 1);
}
constexpr bool is_of_epoch(std::uint64_t exchange, std::uint32_t epoch) noexcept {
  return exchange != 0 && epoch_bits(static_cast<std::uint32_t>(exchange)) == epoch_bits(epoch);
}
// A join for a rank that has left is not refused at once: the other ranks may be about to leave.
inline constexpr DurationNs kRejoinGrace = 3 * kSecond;

// A rank of a job, by the process that holds it or held it last. While the job forms, a rank in
// phase kFree, kGone or kLeft goes to the next process that asks.
enum class MemberPhase : std::uint8_t {
  kFree,       // no process has joined
  kJoined,     // a process holds the rank
  kReturning,  // a process holds the rank again, and the shards do not know it yet; only in a job
               // that goes on without lost ranks
  kGone,       // the process died or fell silent; in a synchronous job that runs, no other rank
               // waits for it, so it may have finished
  kLeft,       // the process ended its part by itself
  kAborted,    // the process left with an error, or left a store in order that is kept since
  kEvicted,    // the appliance has removed the process, and tells it why
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
    case kReturning: return next != kFree;
    case kGone: return one_of(kJoined, kReturning, kLeft, kAborted);
    case kEvicted: return one_of(kJoined, kLeft, kAborted);
  }
  return false;
}

// A job's memory on its way. JobEntry::job is set in kHeld and kLeaving alone.
enum class JobMemory : std::uint8_t {
  kNone,     // the job takes none, yet or any more
  kMaking,   // the memory is ordered
  kHeld,     // the shards use it
  kLeaving,  // the shards were asked to release it
  kGoing,    // it is ordered to be given back
};

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
  bool moved = false;  // kLeft: to another appliance
  // kLeft, in a synchronous job: the gradient step that it has not contributed to and that nobody
  // else must begin. 0: uneven ends are meant.
  Step missing_from = 0;
  wire::NoticeCode lost_by{};        // kGone: how it was lost, at `left_ns`
  std::string notice;                // why it was evicted
  std::uint32_t admissions_due = 0;  // kMemberJoined commands that shard 0 has not answered
  std::uint32_t admission = 0;       // number of the last such command
  bool rejoined = false;             // joined when the job ran already
  bool needs_state = false;          // rejoined, and has not reported the end of a resync
  TimeNs rejoined_ns = 0;            // when the shards were told of its return
  TimeNs admitted_ns = 0;            // when it rejoined
  std::uint32_t resyncs_done = 0;    // the highest number that it reported as done
  std::uint64_t suspended_ns = 0;    // of a store's worker, as its last keepalive said
  std::uint32_t oldest_request_iterations = 0;  // of a store's worker, as that keepalive said
  // As its join said, see wire::Join.
  bool was_member = false;
  bool has_newcomer = false;  // of a store that resumes: the rank's old process will not come
  Step resume_step = 0;
  std::uint32_t resume_calls = 0;
  std::uint16_t resume_k = 0;
  std::uint64_t exchange_over = 0;
  std::uint64_t exchange_entered = 0;
  // Of a store with a standby, see views.h.
  std::uint32_t view = 0;          // that it knows: by its keepalives, and at first by its join
  std::uint32_t settled_view = 0;  // by its join
  MemberMask absent;               // by its join: the ranks without which the store is in `view`
  bool removal_due = false;        // its rank is lost, and the shards do not know
  // The process behind `has_newcomer` was a member for which the store had not begun, in this view.
  std::optional<std::uint32_t> newcomer_view;

  MemberPhase phase() const noexcept { return phase_; }
  bool is(MemberPhase phase) const noexcept { return phase_ == phase; }
  void change_to(MemberPhase next) noexcept {
    CHECK(may_follow(phase_, next));
    phase_ = next;
  }

  bool has_left() const noexcept { return is(MemberPhase::kLeft) || is(MemberPhase::kAborted); }
  // It has moved to another appliance, and the others are to follow it.
  bool is_elsewhere() const noexcept { return is(MemberPhase::kLeft) && moved; }
  bool live() const noexcept { return is(MemberPhase::kJoined) || is(MemberPhase::kReturning); }
  // It has what was given in that exchange, or would have given.
  bool took_part(std::uint64_t exchange) const noexcept {
    return is(MemberPhase::kJoined) && resume_step != 0 &&
           (exchange_over == exchange || exchange_entered == exchange);
  }
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
  std::uint32_t epoch = 0;  // how often the run has moved, see wire::Join
  wire::Drain drain{};      // its members are asked to move
  bool standby = false;     // its members have further addresses
  // Of a store with a standby, see wire::Status.
  std::uint32_t view = 0;
  std::uint32_t settled_view = 0;
  // As the first join gave them, by the process of `layout_rank`. A run that adopts a kept store
  // sets `layout_rank` and `keep` anew.
  Rank layout_rank;
  wire::StreamLayout gradients;
  AveragingChoice averaging{};
  Dtype wire{};
  StoreOptions store;
  StoreKeep keep{};
  PruneOptions prune;
  std::uint32_t tensor_count = 0;
  std::uint32_t print_tensors = 0;
  std::vector<std::uint8_t> prints;

  std::uint16_t datagram_bytes = 0;
  JobSpec spec;
  std::shared_ptr<const JobsOptions> options;  // with which it began; its ranks' joins go by them
  std::vector<MemberEntry> members;
  std::unique_ptr<Job> job;  // while kHeld and kLeaving
  std::string founder_host;
  std::size_t memory_bytes = 0;
  TimeNs held_since_ns = 0;                 // its memory is there
  std::size_t releases_left = 0;            // shards that still hold the job while kLeaving
  std::shared_ptr<BuildProgress> progress;  // of its making
  TimeNs asked_ns = 0;                      // when the last join for it came
  std::uint64_t rival_run_id = 0;           // another run that wants the name
  TimeNs rival_ns = 0;                      // when the members were asked for that run's sake
  std::string no_memory;  // why the memory was not made; empty: it was, or may still be
  bool listed = true;     // a join under this name finds it
  Resyncs resyncs;
  std::string loss;  // see JobView
  // Of a job with k < n that goes on from a lost appliance, see wire::Status.
  TimeNs resuming_ns = 0;  // since the first rank that was in a step there has joined
  Step resume_from = 0;
  std::uint32_t resume_calls = 0;
  std::uint64_t exchange = 0;
  std::uint64_t exchange_over = 0;
  // Of a store, see keep.cc.
  TimeNs kept_since_ns = 0;          // when its last worker went; while it has no workers
  bool was_kept = false;             // it has been without workers
  bool initialised = false;          // it has all of its initial values
  std::uint32_t initial_chunks = 0;  // chunks with initial values at `initial_ns`
  TimeNs initial_ns = 0;             // when the last initial values came, or all ranks were there

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
  // Ranks for which new processes wait until the job has begun with those that have its values.
  std::uint16_t newcomers() const noexcept {
    std::uint16_t total = 0;
    for (const MemberEntry& member : members)
      total += member.has_newcomer && !member.is(MemberPhase::kJoined);
    return total;
  }
  // Processes that hold a rank, whether or not the shards know it yet.
  std::uint16_t live_count() const noexcept {
    std::uint16_t total = 0;
    for (const MemberEntry& member : members) total += member.live();
    return total;
  }
  // Members are at another appliance.
  bool has_moved() const noexcept {
    return std::ranges::any_of(members, &MemberEntry::is_elsewhere);
  }
  // No process has held a rank of it yet.
  bool unclaimed() const noexcept { return count(MemberPhase::kFree) == members.size(); }
  // With what a job that a lost appliance had goes on, as the joins have said; step 0: no rank was
  // in a step there. Of a synchronous job that is the first step that not every rank has all
  // results of; with k < n the newest one that a rank is in. Of the step before, a rank that lacks
  // some gets what the others have kept; a rank further back needs their state.
  Resumed resumed() const noexcept;
  // The newest exchange of results that is over, as far as the members that have a state know.
  std::uint64_t newest_exchange() const noexcept;
  // Ranks that have not come back are lost, and the members exchange what they have.
  bool exchanges() const noexcept { return spec.policy.tolerates_stragglers() || is_store(); }
  // Of such a job: what the member has contradicts nothing that the others have. Without its part
  // in the newest exchange that is over, they may have made other sums than it has.
  bool may_give(const MemberEntry& one) const noexcept;
  // It is a store that may move. Its members agree about each rank that it goes on without or that
  // a new process takes: views.h.
  bool in_views() const noexcept { return is_store() && standby; }
  // The job has run here before with the epoch that it has now, so with all ranks. Else the others
  // may still be where it was before, and go on there.
  bool has_run_here() const noexcept {
    return epoch == 0 || std::ranges::any_of(members, [this](const MemberEntry& one) {
             return one.is(MemberPhase::kJoined) &&
                    (is_operations() ? one.exchange_entered == epoch + 1
                                     : is_of_epoch(one.exchange_entered, epoch));
           });
  }
  // It goes on without ranks that have not come back once members have waited for them. One that is
  // alone may be a rank without which the others went on, and ended; of operations its groups are
  // broken then.
  bool resumes_without_rest() const noexcept {
    if (in_views()) return false;  // they may be where it was before, and go on there
    if (is_operations()) return has_run_here();
    return exchanges() && has_run_here() && resumed().step != 0 && count(MemberPhase::kJoined) >= 2;
  }
  // The memory is on its way back to the system.
  bool memory_returns() const noexcept {
    return memory_ == JobMemory::kLeaving || memory_ == JobMemory::kGoing ||
           (memory_ == JobMemory::kMaking && ended());
  }
  // How much of the memory is made. Precondition: kMaking.
  std::uint8_t percent_made() const noexcept;
  // Whether losing a rank leaves the job running.
  bool goes_on() const noexcept {
    return running() && job != nullptr &&
           (job->spec.policy.tolerates_stragglers() || is_store() || is_operations());
  }
  // Members exchange what they have of a lost appliance, and may wait for what one alone has. If
  // one goes, all join anew and state it again.
  bool exchanging() const noexcept { return goes_on() && job->gathers() && live_count() != 0; }
  // The loss of a store's member begins the exchange anew at once; in views all must know it first.
  bool breaks_exchange() const noexcept { return is_store() && !in_views() && exchanging(); }
  // A store's members have no steps in common: a lost rank starts again as another process.
  bool is_store() const noexcept { return spec.store.has_value(); }
  // Its groups break where they lose a rank, and the others go on.
  bool is_operations() const noexcept { return spec.operations.has_value(); }
  // Its processes come and go, and get their ranks from the job.
  bool is_elastic() const noexcept { return is_operations() && spec.operations->elastic; }
  // Of an elastic job: the rank of the process with this nonce, else one that no process has. None:
  // it has as many processes as it may have.
  std::optional<Rank> rank_for(std::uint64_t nonce) const noexcept;
  // It may give way to a job that finds no room: nobody can hurry what it waits for, and it has
  // waited for long enough.
  bool may_yield(TimeNs now) const noexcept;
  // A store that has outlived all of its workers.
  bool is_kept() const noexcept { return running() && is_store() && live_count() == 0; }
  // Its members may go to another appliance, all together.
  bool moves() const noexcept { return !goes_on() || in_views() || (!is_store() && !is_elastic()); }
  // A running job of which every step needs every rank that has not ended its part.
  bool is_synchronous() const noexcept { return running() && job != nullptr && !goes_on(); }
  // When the member spoke last. Control and data both count; the shards' clock is the caller's.
  TimeNs last_heard_ns(Rank rank, const PausableClock& clock) const noexcept;
  // Whether the rank is a member that has the job's state: not the target, and not one that waits
  // for state itself.
  bool can_give_state(Rank rank, Rank target) const noexcept;
  // Checks the invariants of a job between two calls; called at each tick.
  void check() const noexcept;

 private:
  wire::JobState state_ = wire::JobState::kForming;
  JobMemory memory_ = JobMemory::kNone;
};

// Whether members of a job that goes on from a lost appliance have waited for the others for so
// long.
inline bool have_waited(const JobEntry& entry, DurationNs wait_ns, TimeNs now) noexcept {
  return entry.resuming_ns != 0 &&
         now - std::max(entry.resuming_ns, entry.held_since_ns) >= wait_ns;
}

}  // namespace sluice::agg

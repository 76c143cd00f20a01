// The control side's commands to a shard (jobs that begin and end, members that leave and return,
// the window that waits for a resync, transfers of state), and the shard's events in return.
#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// The queue always has room for a release of every job. It also has room for events that the
// control side would ask for again, and for mismatches, which repeat with every packet.
constexpr std::size_t kEventCapacity = 4 * kMaxJobs;
constexpr std::size_t room_for(ShardEvent::Kind kind) noexcept {
  if (kind == ShardEvent::Kind::kJobReleased) return kEventCapacity;
  return kind == ShardEvent::Kind::kCollectiveMismatch ? kMaxJobs : kEventCapacity - kMaxJobs;
}
constexpr std::uint32_t kSweepSlots = 256;  // checked again in a call of poll_work()

}  // namespace

Shard::Shard(ShardId id) : id_(id), events_(kEventCapacity) {}

void Shard::handle_command(const ShardCommand& command, TimeNs now) noexcept {
  CHECK(command.job != nullptr && id_.value < command.job->slices.size());
  CHECK(command.rank.value < command.job->spec.world_size);
  switch (command.kind) {
    case ShardCommand::Kind::kAddJob: add_job(*command.job); break;
    case ShardCommand::Kind::kMemberGone: member_gone(*command.job, command.rank); break;
    case ShardCommand::Kind::kMemberJoined: member_joined(*command.job, command.rank); break;
    case ShardCommand::Kind::kHoldClocks:
      join_store(*command.job, command.rank, command.admission);
      break;
    case ShardCommand::Kind::kMemberStarts:
      start_in_store(*command.job, command.rank, command.admission, command.first);
      break;
    case ShardCommand::Kind::kHoldReleased: hold_released(*command.job, command.rank); break;
    case ShardCommand::Kind::kOpenTransfer: open_transfer(*command.job, now); break;
    case ShardCommand::Kind::kSourceLost: source_lost(*command.job, command.rank); break;
    case ShardCommand::Kind::kAddGroup:
    case ShardCommand::Kind::kRemoveGroup:
    case ShardCommand::Kind::kGroups: handle_groups(*command.job, command); break;
    case ShardCommand::Kind::kRemoveJob: remove_job(*command.job); break;
  }
}

void Shard::add_job(Job& job) noexcept {
  Job*& place = jobs_[job.spec.id.value];
  CHECK(place == nullptr && job.slices.size() == job.spec.shard_count);
  place = &job;
}

bool Shard::has_part(Job& job, StreamId stream) noexcept {
  return has_steps(stream) && job.slices[id_.value].of(stream).chunk_count != 0;
}

void Shard::member_gone(Job& job, Rank rank) noexcept {
  if (!job.started()) return;
  for (const StreamId stream : job.streams) {
    if (stream == StreamId::kPushes) leave_store(job, rank);
    if (stream == StreamId::kOperations) {
      job.slices[id_.value].operations->remove_member(rank);
      follow_groups(job);
    }
    // A shard without chunks of the stream takes no part in its steps and must not read its
    // records.
    if (!has_part(job, stream)) continue;
    StreamSlice& slice = current_slice(job, stream);
    if (job.members[rank.value].takes_part(index_of(stream), slice.record.step)) continue;
    slice.record.remove(rank);
    DCHECK(!slice.record.eligible.test(rank) && !slice.record.required.test(rank));
    if (stream == StreamId::kGradients) {
      GradientSlice& sums = job.slices[id_.value].gradients;
      sums.summary.conclusive = false;
      sums.unheard.clear(rank);
      note_gathered(job);
    }
    sweep(slice);
  }
}

// A member that returns counts in the gradients from a step that is not published yet. In
// collectives, which all belong to shard 0, it counts from the next call on: in the middle of a
// broadcast of many steps the other ranks would meet a process that has called something else. In
// the middle of a call no event is sent, and the control side asks again. A member that is admitted
// already keeps its first steps, because records with it are published.
void Shard::member_joined(Job& job, Rank rank) noexcept {
  if (id_.value != 0 || !job.started()) return;
  Member& member = job.members[rank.value];
  std::atomic<Step>& joined_from = member.joined_from[index_of(StreamId::kGradients)];
  if (joined_from.load(std::memory_order_relaxed) == kNoStep) {
    if (!admit_to_collectives(job, rank)) return;
    member.finished.store(0, std::memory_order_relaxed);
    member.reached.store(0, std::memory_order_relaxed);
    Step first = 0;
    if (job.has(StreamId::kGradients)) {
      const Step open = job.open_step(StreamId::kGradients);
      CHECK(open != 0 && open <= kLastStep);
      first = std::min(open, kLastStep - 2) + 2;
    }
    joined_from.store(first, std::memory_order_release);
  }
  push_event({.kind = ShardEvent::Kind::kMemberAdmitted, .job = &job, .rank = rank});
}

// False: a call is under way.
bool Shard::admit_to_collectives(Job& job, Rank rank) noexcept {
  if (!has_part(job, StreamId::kCollectives)) return true;
  DCHECK(id_.value == 0);
  current_slice(job, StreamId::kCollectives);
  PieceSlice& slice = job.slices[id_.value].pieces_of(StreamId::kCollectives);
  // A call between two of its steps that no rank is left to end is over.
  if (slice.record.eligible.empty() && slice.collective.step != slice.record.step)
    slice.collective = {};
  const bool begun = slice.collective.step == slice.record.step;
  const bool in_call = begun ? !slice.collective.ends_call() : slice.collective.continues;
  if (begun || in_call) {  // nor does this step wait for the process whose place it takes
    slice.record.remove(rank);
    sweep(slice);
  }
  if (in_call) return false;
  job.members[rank.value].joined_from[index_of(StreamId::kCollectives)].store(
      slice.record.step + begun, std::memory_order_release);
  if (!begun) {
    slice.record.eligible.set(rank);
    slice.record.required.set(rank);
    slice.record.k = static_cast<std::uint16_t>(slice.record.eligible.count());
    DCHECK(slice.record.consistent());
  }
  return true;
}

void Shard::hold_released(Job& job, Rank rank) noexcept {
  if (!job.started() || !job.spec.policy.tolerates_stragglers() ||
      !has_part(job, StreamId::kGradients))
    return;
  StreamSlice& slice = current_slice(job, StreamId::kGradients);
  slice.record.required.clear(rank);
  DCHECK(slice.record.consistent());
  sweep(slice);
}

// Gives up the transfer under way on the state stream: shard 0 opens the next step for other ranks.
void Shard::open_transfer(Job& job, TimeNs now) noexcept {
  if (!job.started() || !has_part(job, StreamId::kState)) return;
  const Step step = current_slice(job, StreamId::kState).record.step;
  if (step >= kLastStep) {
    push_event({.kind = ShardEvent::Kind::kStepLimit,
                .job = &job,
                .stream = StreamId::kState,
                .step = step});
    return;
  }
  job.publish(StreamId::kState, step + 1, now);
  // The record is adopted at once, which ends sweeps: a sweep that went on would complete the step
  // that was given up, and publish its successor once more.
  const StepRecord& opened = current_slice(job, StreamId::kState).record;
  CHECK(opened.step == step + 1);
  push_event({.kind = ShardEvent::Kind::kTransferOpened,
              .job = &job,
              .stream = StreamId::kState,
              .step = step + 1});
}

// The source is lost: a process that took the source's rank, or needs a state itself, has none to
// give. Complete slots stay complete: the target may have all that it needs, or pull the rest.
void Shard::source_lost(Job& job, Rank rank) noexcept {
  if (!job.started() || !has_part(job, StreamId::kState)) return;
  StreamSlice& slice = current_slice(job, StreamId::kState);
  if (!job.transfer.between(rank)) return;  // of a transfer that is over
  slice.record.remove(rank);
  DCHECK(!slice.record.eligible.test(rank));
  report_lost_transfer(job);
}

// A step that some rank has begun is needed, and only its source can complete it.
void Shard::report_lost_transfer(Job& job) noexcept {
  const PieceSlice& slice = job.slices[id_.value].pieces_of(StreamId::kState);
  DCHECK(has_part(job, StreamId::kState) && slice.collective.step <= slice.record.step);
  if (slice.collective.step != slice.record.step ||
      slice.record.eligible.test(job.transfer.source()))
    return;
  push_event({.kind = ShardEvent::Kind::kTransferLost,
              .job = &job,
              .stream = StreamId::kState,
              .step = slice.record.step});
}

void Shard::sweep(StreamSlice& slice) noexcept {
  DCHECK(slice.chunk_count != 0 && slice.record.consistent());
  slice.sweep_cursor = 0;
  slice.sweeping = true;
  sweep_pending_ = true;
}

// Sweeps slots that waited only for members that are gone: no packet would complete them.
bool Shard::poll_work(TimeNs now) noexcept {
  if (!sweep_pending_) return false;
  bool more = false;
  for (Job* job : jobs_) {
    if (job == nullptr) continue;
    DCHECK(jobs_[job->spec.id.value] == job);
    for (const StreamId stream : job->streams) more |= work_on(*job, stream, now);
  }
  sweep_pending_ = more;
  return more;
}

// True while some is left.
bool Shard::work_on(Job& job, StreamId stream, TimeNs now) noexcept {
  switch (stream) {
    case StreamId::kGradients:
    case StreamId::kCollectives:
    case StreamId::kState:
      return job.slices[id_.value].of(stream).sweeping && sweep_some(job, stream, now);
    case StreamId::kPulls: return work_on_store(job);  // which pushes and pulls share
    case StreamId::kPushes:
    case StreamId::kOperations: break;
  }
  return false;
}

// Checks the next open slots of a stream. True while some are left.
bool Shard::sweep_some(Job& job, StreamId stream, TimeNs now) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.of(stream);
  const Step step = slice.record.step;
  if (stream == StreamId::kCollectives && slice.record.eligible.empty() &&
      job_slice.pieces_of(stream).collective.step == step &&
      job_slice.pieces_of(stream).collective.is_broadcast()) {
    close_without_root(job, now);
    slice.sweeping = false;
    return false;
  }
  const std::uint32_t base = step % job.spec.windows[index_of(stream)] * slice.chunk_count;
  const std::uint32_t end = std::min(slice.chunk_count, slice.sweep_cursor + kSweepSlots);
  CHECK(slice.sweep_cursor <= end);
  for (; slice.sweep_cursor < end; ++slice.sweep_cursor)
    if (slice.slots[base + slice.sweep_cursor].open_for(step))
      try_complete(job, stream, base + slice.sweep_cursor, now);
  slice.sweeping = slice.sweep_cursor < slice.chunk_count;
  return slice.sweeping;
}

void Shard::remove_job(Job& job) noexcept {
  CHECK(jobs_[job.spec.id.value] == &job);
  jobs_[job.spec.id.value] = nullptr;
  // The order of the remaining entries of both rings stays.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < reply_job_count_; ++i) {
    Job* const other = reply_jobs_[(reply_job_head_ + i) % reply_jobs_.size()];
    if (other != &job) reply_jobs_[(reply_job_head_ + kept++) % reply_jobs_.size()] = other;
  }
  reply_job_count_ = kept;
  kept = 0;
  for (std::size_t i = 0; i < active_count_; ++i) {
    const ActiveSlice entry = active_[(active_head_ + i) % active_.size()];
    if (entry.job != &job) active_[(active_head_ + kept++) % active_.size()] = entry;
  }
  active_count_ = kept;
  DCHECK(reply_job_count_ < kMaxJobs);  // it was one of as many
  push_event({.kind = ShardEvent::Kind::kJobReleased, .job = &job});
}

void Shard::push_event(const ShardEvent& event) noexcept {
  if (event.kind != ShardEvent::Kind::kJobReleased && event_count_ >= room_for(event.kind)) return;
  CHECK(event_count_ < events_.size());
  events_[event_count_++] = event;
}

bool Shard::poll_event(ShardEvent& event) noexcept {
  if (event_count_ == 0) return take_request(event);
  event = events_.front();
  CHECK(event.job != nullptr && event_count_ <= events_.size());
  std::move(events_.begin() + 1, events_.begin() + static_cast<std::ptrdiff_t>(event_count_),
            events_.begin());
  --event_count_;
  return true;
}

}  // namespace sluice::agg

// The control side's wishes carried out by a shard: jobs that come and go, members that leave and
// return, the window that waits for a resync, transfers of state; and what it is told in return.
#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// Room for a release of every job, always; for what the control side waits for and would ask again;
// and for mismatches, which repeat with every packet.
constexpr std::size_t kEventCapacity = 4 * kMaxJobs;
constexpr std::size_t room_for(ShardEvent::Kind kind) noexcept {
  if (kind == ShardEvent::Kind::kJobReleased) return kEventCapacity;
  return kind == ShardEvent::Kind::kCollectiveMismatch ? kMaxJobs : kEventCapacity - kMaxJobs;
}
constexpr std::uint32_t kSweepSlots = 256;  // re-examined a call of poll_work()

}  // namespace

Shard::Shard(ShardId id) : id_(id), events_(kEventCapacity) {}

void Shard::handle_command(const ShardCommand& command, TimeNs now) noexcept {
  switch (command.kind) {
    case ShardCommand::Kind::kAddJob: jobs_[command.job->spec.id.value] = command.job; break;
    case ShardCommand::Kind::kMemberGone: member_gone(*command.job, command.rank); break;
    case ShardCommand::Kind::kMemberJoined: member_joined(*command.job, command.rank); break;
    case ShardCommand::Kind::kHoldReleased: hold_released(*command.job, command.rank); break;
    case ShardCommand::Kind::kOpenTransfer: open_transfer(*command.job, now); break;
    case ShardCommand::Kind::kSourceLost: source_lost(*command.job, command.rank); break;
    case ShardCommand::Kind::kRemoveJob: remove_job(*command.job); break;
  }
}

void Shard::member_gone(Job& job, Rank rank) noexcept {
  if (!job.started()) return;
  for (std::size_t index = 0; index < kStreamCount; ++index) {
    // A shard without chunks of the stream takes no part in its steps and must not read its
    // records.
    if (job.slices[id_.value].streams[index].chunk_count == 0) continue;
    StreamSlice& slice = current_slice(job, static_cast<StreamId>(index));
    if (job.members[rank.value].takes_part(index, slice.record.step)) continue;
    // Nothing waits here any more, and the shard that closes the step last may be reading this.
    if (index == index_of(StreamId::kGradients) && slice.closed_count == slice.chunk_count)
      continue;
    slice.record.remove(rank);
    slice.conclusive = false;
    sweep(slice);
  }
}

// The gradients of a member that returns count from a step that is not published yet; collectives,
// which all belong to the first shard, from the next call on: in the middle of a broadcast of many
// steps the others would meet a process that has called something else. Then nobody is told, and
// the control side asks again. Whoever is in already stays where it is: records are out.
void Shard::member_joined(Job& job, Rank rank) noexcept {
  if (id_.value != 0 || !job.started()) return;
  Member& member = job.members[rank.value];
  std::atomic<Step>& joined_from = member.joined_from[index_of(StreamId::kGradients)];
  if (joined_from.load(std::memory_order_relaxed) == kNoStep) {
    if (!admit_to_collectives(job, rank)) return;
    member.finished.store(0, std::memory_order_relaxed);
    member.reached.store(0, std::memory_order_relaxed);
    const Step open =
        job.windows[index_of(StreamId::kGradients)].open_step.load(std::memory_order_acquire);
    joined_from.store(std::min(open, kLastStep - 2) + 2, std::memory_order_release);
  }
  push_event({.kind = ShardEvent::Kind::kMemberAdmitted, .job = &job, .rank = rank});
}

// False: a call is under way.
bool Shard::admit_to_collectives(Job& job, Rank rank) noexcept {
  const std::size_t index = index_of(StreamId::kCollectives);
  if (job.slices[id_.value].streams[index].chunk_count == 0) return true;
  StreamSlice& slice = current_slice(job, StreamId::kCollectives);
  const bool begun = slice.collective.step == slice.record.step;
  const bool in_call = begun ? !slice.collective.ends_call() : slice.collective.continues;
  if (begun || in_call) {  // nor does this step wait for the process whose place it takes
    slice.record.remove(rank);
    sweep(slice);
  }
  if (in_call) return false;
  job.members[rank.value].joined_from[index].store(slice.record.step + begun,
                                                   std::memory_order_release);
  if (!begun) {
    slice.record.may.set(rank);
    slice.record.must.set(rank);
    slice.record.k = static_cast<std::uint16_t>(slice.record.may.count());
  }
  return true;
}

void Shard::hold_released(Job& job, Rank rank) noexcept {
  const std::size_t index = index_of(StreamId::kGradients);
  if (!job.started() || !job.spec.policy.tolerates_stragglers() ||
      job.slices[id_.value].streams[index].chunk_count == 0)
    return;
  StreamSlice& slice = current_slice(job, StreamId::kGradients);
  slice.record.must.clear(rank);
  sweep(slice);
}

// What was under way on the state stream is given up: its first shard opens the next step for other
// ranks.
void Shard::open_transfer(Job& job, TimeNs now) noexcept {
  if (!job.started() || job.slices[id_.value].streams[index_of(StreamId::kState)].chunk_count == 0)
    return;
  const Step step = current_slice(job, StreamId::kState).record.step;
  if (step >= kLastStep) {
    push_event({.kind = ShardEvent::Kind::kStepLimit,
                .job = &job,
                .stream = StreamId::kState,
                .step = step});
    return;
  }
  job.publish(StreamId::kState, step + 1, now);
  // At once, which ends its sweeps: one that went on would complete the step that was given up, and
  // publish its successor once more.
  const StepRecord& opened = current_slice(job, StreamId::kState).record;
  CHECK(opened.step == step + 1);
  push_event({.kind = ShardEvent::Kind::kTransferOpened,
              .job = &job,
              .stream = StreamId::kState,
              .step = step + 1});
}

// A process that took the source's rank, or one that needs a state itself, has nothing to give.
// What is complete stays so: the target may have all that it needs, or pull the rest.
void Shard::source_lost(Job& job, Rank rank) noexcept {
  if (!job.started() || job.slices[id_.value].streams[index_of(StreamId::kState)].chunk_count == 0)
    return;
  StreamSlice& slice = current_slice(job, StreamId::kState);
  if (!job.transfer.between(rank)) return;  // of a transfer that is over
  slice.record.remove(rank);
  report_lost_transfer(job, slice);
}

// A step that somebody has begun is needed, and only its source can complete it.
void Shard::report_lost_transfer(Job& job, const StreamSlice& slice) noexcept {
  if (slice.collective.step != slice.record.step || slice.record.may.test(job.transfer.source()))
    return;
  push_event({.kind = ShardEvent::Kind::kTransferLost,
              .job = &job,
              .stream = StreamId::kState,
              .step = slice.record.step});
}

void Shard::sweep(StreamSlice& slice) noexcept {
  slice.sweep_cursor = 0;
  slice.sweeping = true;
  sweep_pending_ = true;
}

// Slots that waited only for members that are gone get no packet that would complete them.
bool Shard::poll_work(TimeNs now) noexcept {
  if (!sweep_pending_) return false;
  bool more = false;
  for (Job* job : jobs_) {
    if (job == nullptr) continue;
    for (std::size_t index = 0; index < kStreamCount; ++index) {
      StreamSlice& slice = job->slices[id_.value].streams[index];
      if (!slice.sweeping) continue;
      const Step step = slice.record.step;
      const Collective& collective = slice.collective;
      if (index == index_of(StreamId::kCollectives) && collective.step == step &&
          collective.is_broadcast() && slice.record.may.empty()) {
        close_without_root(*job, slice, now);
        slice.sweeping = false;
        continue;
      }
      const std::uint32_t base = step % job->spec.windows[index] * slice.chunk_count;
      const std::uint32_t end = std::min(slice.chunk_count, slice.sweep_cursor + kSweepSlots);
      for (; slice.sweep_cursor < end; ++slice.sweep_cursor) {
        const Slot& slot = slice.slots[base + slice.sweep_cursor];
        if (slot.step == step && !slot.complete)
          try_complete(*job, static_cast<StreamId>(index), base + slice.sweep_cursor, now);
      }
      slice.sweeping = slice.sweep_cursor < slice.chunk_count;
      more |= slice.sweeping;
    }
  }
  sweep_pending_ = more;
  return more;
}

void Shard::remove_job(Job& job) noexcept {
  jobs_[job.spec.id.value] = nullptr;
  // Keep the order of what stays in both rings.
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
  push_event({.kind = ShardEvent::Kind::kJobReleased, .job = &job});
}

void Shard::push_event(const ShardEvent& event) noexcept {
  if (event.kind != ShardEvent::Kind::kJobReleased && event_count_ >= room_for(event.kind)) return;
  CHECK(event_count_ < events_.size());
  events_[event_count_++] = event;
}

bool Shard::poll_event(ShardEvent& event) noexcept {
  if (event_count_ == 0) return false;
  event = events_.front();
  std::move(events_.begin() + 1, events_.begin() + static_cast<std::ptrdiff_t>(event_count_),
            events_.begin());
  --event_count_;
  return true;
}

}  // namespace sluice::agg

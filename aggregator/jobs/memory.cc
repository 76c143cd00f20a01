#include "aggregator/jobs/memory.h"

#include <exception>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/jobs/entry.h"

namespace sluice::agg {

void carry_out(MemoryOrder& order) noexcept {
  if (order.kind == MemoryOrder::Kind::kGiveBack) {
    order.job.reset();
    return;
  }
  CHECK(order.job == nullptr && order.progress != nullptr);
  try {
    order.job = std::make_unique<Job>(order.spec, order.progress.get());
  } catch (const std::exception&) {  // no memory, or no more need for it
    order.job.reset();
  }
}

bool carry_out_all(Jobs& jobs, TimeNs now) {
  bool made = false;
  for (MemoryOrder order; jobs.poll_memory(order);) {
    carry_out(order);
    made |= order.job != nullptr;
    jobs.handle_memory(std::move(order), now);
  }
  return made;
}

bool Jobs::poll_memory(MemoryOrder& order) {
  if (orders_.empty()) return false;
  order = std::move(orders_.front());
  orders_.pop_front();
  return true;
}

void Jobs::handle_memory(MemoryOrder order, TimeNs clock_ns) {
  const TimeNs now = attendance_.arrive(clock_ns);
  Entry* entry = entries_[order.spec.id.value].get();
  CHECK(entry != nullptr && entry->serial == order.serial);  // it stays while its memory is out
  if (order.kind == MemoryOrder::Kind::kGiveBack) {
    CHECK(entry->memory == Entry::Memory::kGoing && order.job == nullptr);
    entry->memory = Entry::Memory::kNone;
    return;
  }
  CHECK(entry->memory == Entry::Memory::kMaking && entry->job == nullptr);
  if (order.job == nullptr) {
    entry->memory = Entry::Memory::kNone;
    if (entry->state != wire::JobState::kEnded) note_no_memory(*entry, now);
  } else if (entry->state == wire::JobState::kEnded) {  // nobody waits for it any more
    give_back(*entry, std::move(order.job));
  } else {
    entry->memory = Entry::Memory::kHeld;
    entry->job = std::move(order.job);
    commands_.push_back({.kind = ShardCommand::Kind::kAddJob, .job = entry->job.get()});
  }
}

void Jobs::order_job(Entry& entry) {
  entry.memory = Entry::Memory::kMaking;
  entry.progress = std::make_shared<BuildProgress>();
  orders_.push_back({.kind = MemoryOrder::Kind::kMake,
                     .serial = entry.serial,
                     .bytes = entry.memory_bytes,
                     .spec = entry.spec,
                     .job = nullptr,
                     .progress = entry.progress});
}

void Jobs::give_back(Entry& entry, std::unique_ptr<Job> job) {
  CHECK(job != nullptr);
  entry.memory = Entry::Memory::kGoing;
  JobSpec spec;
  spec.id = entry.id;
  orders_.push_back({.kind = MemoryOrder::Kind::kGiveBack,
                     .serial = entry.serial,
                     .bytes = entry.memory_bytes,
                     .spec = std::move(spec),
                     .job = std::move(job),
                     .progress = nullptr});
}

// A job that is being made has no members: who wants it asks again. One that nobody has asked for
// lately is not wanted any more, made or not.
void Jobs::check_wanted(Entry& entry, TimeNs now) {
  if (entry.state != wire::JobState::kForming || !entry.unclaimed() ||
      now - entry.asked_ns <= kJoinDeadline)
    return;
  retire(entry, now);
}

}  // namespace sluice::agg

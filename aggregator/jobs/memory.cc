#include "aggregator/jobs/memory.h"

#include <exception>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {

void carry_out(MemoryOrder& order) noexcept {
  if (order.kind == MemoryOrder::Kind::kGiveBack) {
    CHECK(order.job != nullptr);
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
  CHECK(order.serial != 0);
  return true;
}

void Jobs::handle_memory(MemoryOrder order, TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  JobEntry* entry = entries_[order.spec.id.value].get();
  CHECK(entry != nullptr && entry->serial == order.serial);  // it stays while its memory is out
  if (order.kind == MemoryOrder::Kind::kGiveBack) {
    CHECK(entry->memory() == JobMemory::kGoing && order.job == nullptr);
    entry->change_to(JobMemory::kNone);
    return;
  }
  CHECK(entry->memory() == JobMemory::kMaking && entry->job == nullptr);
  if (order.job == nullptr) {
    entry->change_to(JobMemory::kNone);
    if (!entry->ended()) note_no_memory(*entry, now);
  } else if (entry->ended()) {  // nobody waits for it any more
    give_back(*entry, std::move(order.job));
  } else {
    entry->job = std::move(order.job);
    entry->change_to(JobMemory::kHeld);
    entry->held_since_ns = now;
    command(ShardCommand::Kind::kAddJob, *entry);
  }
}

void Jobs::order_job(JobEntry& entry) {
  CHECK(entry.unclaimed() && entry.progress == nullptr && entry.memory_bytes != 0);
  entry.change_to(JobMemory::kMaking);
  entry.progress = std::make_shared<BuildProgress>();
  orders_.push_back({.kind = MemoryOrder::Kind::kMake,
                     .serial = entry.serial,
                     .bytes = entry.memory_bytes,
                     .spec = entry.spec,
                     .job = nullptr,
                     .progress = entry.progress});
}

void Jobs::give_back(JobEntry& entry, std::unique_ptr<Job> job) {
  CHECK(job != nullptr && entry.job == nullptr && entry.ended());
  entry.change_to(JobMemory::kGoing);
  JobSpec spec;
  spec.id = entry.id;
  orders_.push_back({.kind = MemoryOrder::Kind::kGiveBack,
                     .serial = entry.serial,
                     .bytes = entry.memory_bytes,
                     .spec = std::move(spec),
                     .job = std::move(job),
                     .progress = nullptr});
}

// All that ask within the next seconds are told; then a join may try again.
void Jobs::note_no_memory(JobEntry& entry, TimeNs now) {
  CHECK(!entry.ended() && entry.job == nullptr);
  entry.no_memory = text(
      "job '%s' needs %zu MiB and the appliance's system has less left: lower "
      "limits.total_memory_mib (%zu) or stop other programs there",
      entry.name.c_str(), mebibytes(entry.memory_bytes), options_.max_total_memory_bytes >> 20);
  entry.end(now);
}

// A job that is being made has no members: who wants it asks again. One that nobody has asked for
// lately is not wanted any more, made or not.
void Jobs::check_wanted(JobEntry& entry, TimeNs now) {
  if (!entry.forming() || !entry.unclaimed() || now - entry.asked_ns <= kJoinDeadline) return;
  retire(entry, now);
}

}  // namespace sluice::agg

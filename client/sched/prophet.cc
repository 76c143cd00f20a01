#include "client/sched/prophet.h"

#include <algorithm>

namespace sluice::client {

std::uint32_t BlockRule::packets(DurationNs until_ns) const noexcept {
  constexpr double kMost = UINT32_MAX / 2;
  if (until_ns == kNever) return static_cast<std::uint32_t>(kMost);
  const double fitting = packets_per_ns * static_cast<double>(until_ns - overhead_ns);
  const double worthwhile = packets_per_ns * static_cast<double>(overhead_ns);
  return static_cast<std::uint32_t>(std::clamp(fitting >= 1 ? fitting : worthwhile, 1.0, kMost));
}

DurationNs BlockRule::least_ns() const noexcept {
  return overhead_ns + static_cast<DurationNs>(1 / packets_per_ns);
}

ProphetPolicy::ProphetPolicy(const ScheduleSetup& setup)
    : tensors_(setup), profile_(tensors_.count()), fresh_(setup), lost_(setup) {}

void ProphetPolicy::begin_step(TimeNs now) noexcept {
  profile_.begin_step(now);
  if (profile_.known() && meter_.known()) profile_.find_bursts(rule().least_ns());
  pushed_begin_ = pushed_end_ = 0;
}

void ProphetPolicy::push(ChunkIndex chunk, Priority priority, TimeNs now) noexcept {
  fresh_.push(chunk, priority);
  push_along(chunk, priority, now);
}

void ProphetPolicy::push_along(ChunkIndex chunk, Priority priority, TimeNs now) noexcept {
  if (chunk >= pushed_begin_ && chunk < pushed_end_) return;
  const std::uint32_t tensor = tensors_.tensor_of(chunk);
  pushed_begin_ = tensors_.begin(tensor);
  pushed_end_ = tensors_.end(tensor);
  profile_.ready(tensor, priority, now);
}

bool ProphetPolicy::next(const WindowState& windows, Choice& choice) noexcept {
  meter_.observe(windows);
  waits_ = false;
  Queues::Head head;
  const bool again = lost_.find(windows.open_shards, 0, head);
  if (!again && !find(windows, head)) {
    idle_ = fresh_.empty() && lost_.empty();
    return false;
  }
  meter_.sent(windows, idle_);
  idle_ = false;
  choice = {.chunk = head.chunk, .shard = head.shard};
  if (again) {
    lost_.take(head);
    choice.last = lost_.empty(head.shard);
    return true;
  }
  fresh_.take(head);
  block_left_ -= block_left_ != 0;
  Queues::Head rest;
  choice.last = !fresh_.find(std::uint64_t{1} << head.shard, floor_, rest) ||
                (in_blocks() && block_left_ == 0);
  return true;
}

bool ProphetPolicy::find(const WindowState& windows, Queues::Head& head) noexcept {
  if (!in_blocks()) {
    block_left_ = 0;
    floor_ = 0;
    return fresh_.find(windows.open_shards, 0, head);
  }
  if (block_left_ != 0) {
    if (fresh_.find(windows.open_shards, floor_, head)) return true;
    if (fresh_.find(kAllShards, floor_, head)) return false;  // its shard's window will open
    block_left_ = 0;
  }
  if (!fresh_.find(windows.open_shards, 0, head)) return false;
  if (windows.in_flight_packets != 0) {  // the last block has not arrived
    waits_ = true;
    return false;
  }
  floor_ = head.priority;
  block_left_ = rule().packets(profile_.until_more_urgent(floor_, windows.now));
  return true;
}

void ProphetPolicy::clear() noexcept {
  fresh_.clear();
  lost_.clear();
  block_left_ = 0;
  floor_ = 0;
}

}  // namespace sluice::client

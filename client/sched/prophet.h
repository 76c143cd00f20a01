// The scheduler `prophet`: Prophet (ICPP 2021). It predicts when more urgent tensors will be ready
// and sends what is ready, most urgent first, in blocks that have arrived by then.
//
// W(t) is the predicted time until a tensor more urgent than all that is ready becomes ready; a
// block takes its packets / bandwidth + overhead, both measured (meter.h). A block holds what fits
// into W, and nothing joins or overtakes it; the next one begins when it has arrived. When the most
// urgent tensor is ready nothing can overtake any more, and the rest of the step is sent strictly.
// So is everything while readiness (profile.h) or bandwidth is not known.
//
// Decided here, where the paper leaves room: a block may end inside a tensor, so W is used up; if
// not even a packet fits, the paper would leave the link idle until the more urgent tensor comes,
// here a block as long as the overhead is sent, so that at least half of the time is used and the
// urgent tensor waits for at most two overheads.
// Same interface and preconditions as Scheduler (scheduler.h). Pure; no allocation after
// construction, but for the text.
#pragma once

#include <cstdint>
#include <string>

#include "client/sched/meter.h"
#include "client/sched/profile.h"
#include "client/sched/shard_queues.h"
#include "client/sched/strict.h"
#include "client/sched/tensors.h"

namespace sluice::client {

// How big a block is.
struct BlockRule {
  double packets_per_ns = 0;
  DurationNs overhead_ns = 0;  // of a block, beyond its packets

  // Of a block that should have arrived in `until_ns`; kNever: no limit. At least 1.
  std::uint32_t packets(DurationNs until_ns) const noexcept;
  // The shortest time that is worth a block of its own.
  DurationNs least_ns() const noexcept;
};

class ProphetPolicy {
 public:
  explicit ProphetPolicy(const ScheduleSetup& setup);

  void begin_step(TimeNs now) noexcept;
  void push(ChunkIndex chunk, Priority priority, TimeNs now) noexcept;
  void push_along(ChunkIndex chunk, Priority priority, TimeNs now) noexcept;
  void push_again(ChunkIndex chunk, Priority priority) noexcept {
    meter_.lost();
    lost_.push(chunk, priority);
  }
  void push_rest(ChunkIndex chunk, Priority priority) noexcept { lost_.push(chunk, priority); }
  bool next(const WindowState& windows, Choice& choice) noexcept;
  bool waits_for_arrival() const noexcept { return waits_; }
  void clear() noexcept;
  void relearn() noexcept { profile_.restart(); }
  // What is known, the bursts, and the blocks of a step that goes as predicted.
  std::string describe_plan() const;

 private:
  using Queues = ShardQueues<StrictQueue>;
  static constexpr std::uint64_t kAllShards = UINT64_MAX;

  bool in_blocks() const noexcept {
    return profile_.known() && meter_.known() && !profile_.most_urgent_came();
  }
  BlockRule rule() const noexcept {
    return {.packets_per_ns = meter_.packets_per_ns(), .overhead_ns = meter_.overhead_ns()};
  }
  bool find(const WindowState& windows, Queues::Head& head) noexcept;

  const TensorChunks tensors_;
  ReadinessProfile profile_;
  LinkMeter meter_;
  Queues fresh_;
  Queues lost_;
  ChunkIndex pushed_end_ = 0;  // of the tensor that was pushed last, [begin, end)
  ChunkIndex pushed_begin_ = 0;
  // The block under way. Something more urgent than `floor_` has come since it began.
  std::uint32_t block_left_ = 0;  // packets
  Priority floor_ = 0;
  bool waits_ = false;
  bool idle_ = true;  // nothing waited when last asked
};

}  // namespace sluice::client

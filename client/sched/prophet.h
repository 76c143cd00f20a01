// The scheduler `prophet`: Prophet (ICPP 2021). It predicts when more urgent tensors will be ready,
// and sends the ready ones, most urgent first, in blocks that will have arrived by then.
//
// W(t) is the predicted time until a tensor becomes ready that is more urgent than all ready ones.
// A block takes packets / bandwidth + overhead, both measured (meter.h). A block holds the packets
// that fit into W, and no other packet joins or overtakes it; the next block begins when it has
// arrived. Once the most urgent tensor is ready, no tensor can overtake, and the rest of the step
// is sent as by `strict`. All packets are sent so while readiness (profile.h) or bandwidth is not
// known.
//
// Two decisions go beyond the paper. A block may end inside a tensor, so that W is used up. If not
// even a packet fits, the paper would leave the link idle until the more urgent tensor comes. Here
// a block as long as the overhead is sent, so that at least half of the time is used and the urgent
// tensor waits for at most two overheads. Same interface and preconditions as Scheduler
// (scheduler.h). Pure; no allocation after construction, but for the text.
#pragma once

#include <cstdint>
#include <string>

#include "client/sched/meter.h"
#include "client/sched/profile.h"
#include "client/sched/shard_queues.h"
#include "client/sched/strict.h"
#include "client/sched/tensors.h"

namespace sluice::client {

// The size of a block.
struct BlockRule {
  double packets_per_ns = 0;
  DurationNs overhead_ns = 0;  // of a block, beyond its packets

  // The packets of a block that is to arrive within `until_ns`; kNever: no limit. At least 1.
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
  // Describes what is known, the bursts, and the blocks of a step that goes as predicted.
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
  // The current block. Chunks more urgent than `floor_` have become ready since it began, and do
  // not join it.
  std::uint32_t block_left_ = 0;  // packets
  Priority floor_ = 0;
  bool waits_ = false;
  bool idle_ = true;  // no chunk waited at the last question
};

}  // namespace sluice::client

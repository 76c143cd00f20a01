// The scheduler of a session: which chunk leaves next, over all shards. The policy is chosen once,
// at set-up; a branch a call, no virtual function.
//
// Not here: windows, and whether a chunk still needs to be sent; the session asks that when it gets
// a chunk. Pure; the session's thread only; no allocation after construction, but for texts.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "client/sched/choice.h"
#include "client/sched/fifo.h"
#include "client/sched/packet_queues.h"
#include "client/sched/strict.h"

namespace sluice::client {

enum class Schedule : std::uint8_t { kStrict, kFifo };

class Scheduler {
 public:
  Scheduler(Schedule schedule, const ScheduleSetup& setup) : policy_(make(schedule, setup)) {}

  // The first tensor of a step is about to be pushed.
  void begin_step(TimeNs now) noexcept {
    std::visit([&](auto& policy) { policy.begin_step(now); }, policy_);
  }
  // The chunk is ready to be sent. Precondition, here and below: it is not queued.
  void push(ChunkIndex chunk, Priority priority, TimeNs now) noexcept {
    std::visit([&](auto& policy) { policy.push(chunk, priority, now); }, policy_);
  }
  // It was handed out before and is lost.
  void push_again(ChunkIndex chunk, Priority priority) noexcept {
    std::visit([&](auto& policy) { policy.push_again(chunk, priority); }, policy_);
  }
  // Hands out the next chunk. False: nothing may be sent now.
  bool next(const Opportunity& opportunity, Choice& choice) noexcept {
    return std::visit([&](auto& policy) { return policy.next(opportunity, choice); }, policy_);
  }
  // When next() may answer otherwise without anything having happened.
  TimeNs next_wake() const noexcept {
    return std::visit([](const auto& policy) { return policy.next_wake(); }, policy_);
  }
  // Forgets what is queued: the step is over or given up.
  void clear() noexcept {
    std::visit([](auto& policy) { policy.clear(); }, policy_);
  }

 private:
  using Strict = PacketQueues<StrictQueue>;
  using Fifo = PacketQueues<FifoQueue>;
  using Policy = std::variant<Strict, Fifo>;

  static Policy make(Schedule schedule, const ScheduleSetup& setup) {
    if (schedule == Schedule::kFifo) return Policy(std::in_place_type<Fifo>, setup);
    return Policy(std::in_place_type<Strict>, setup);
  }

  Policy policy_;
};

}  // namespace sluice::client

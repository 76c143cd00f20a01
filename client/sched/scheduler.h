// The scheduler of a session: it chooses the chunk that leaves next, over all shards. The policy is
// chosen once, at set-up; a call costs a branch and no virtual call.
//
// The session keeps the windows, and checks whether a chunk that it gets still needs to be sent.
// Pure; the session's thread only; no allocation after construction, but for texts.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "client/sched/choice.h"
#include "client/sched/credit.h"
#include "client/sched/fifo.h"
#include "client/sched/packet_policy.h"
#include "client/sched/prophet.h"
#include "client/sched/strict.h"

namespace sluice::client {

class Scheduler {
 public:
  Scheduler(const ScheduleOptions& options, const ScheduleSetup& setup)
      : policy_(make(options, setup)) {}

  // The first tensor of a step is about to be pushed.
  void begin_step(TimeNs now) noexcept {
    std::visit([&](auto& policy) { policy.begin_step(now); }, policy_);
  }
  // The chunk is ready to be sent. Precondition, here and below: it is not queued.
  void push(ChunkIndex chunk, Priority priority, TimeNs now) noexcept {
    std::visit([&](auto& policy) { policy.push(chunk, priority, now); }, policy_);
  }
  // The chunks [first, end) are ready to be sent.
  void push_run(ChunkIndex first, ChunkIndex end, Priority priority, TimeNs now) noexcept {
    std::visit(
        [&](auto& policy) {
          for (ChunkIndex chunk = first; chunk < end; ++chunk) policy.push(chunk, priority, now);
        },
        policy_);
  }
  // The chunk is ready and leaves in another chunk's packet.
  void push_along(ChunkIndex chunk, Priority priority, TimeNs now) noexcept {
    std::visit([&](auto& policy) { policy.push_along(chunk, priority, now); }, policy_);
  }
  // The chunk was handed out before and is lost.
  void push_again(ChunkIndex chunk, Priority priority) noexcept {
    std::visit([&](auto& policy) { policy.push_again(chunk, priority); }, policy_);
  }
  // The chunk was to leave in the packet of another chunk that was handed out, and the packet had
  // no room for it.
  void push_rest(ChunkIndex chunk, Priority priority) noexcept {
    std::visit([&](auto& policy) { policy.push_rest(chunk, priority); }, policy_);
  }
  // Hands out the next chunk. False: no chunk may be sent now.
  bool next(const WindowState& windows, Choice& choice) noexcept {
    return std::visit([&](auto& policy) { return policy.next(windows, choice); }, policy_);
  }
  // After next() returned false: whether a chunk waits for packets in flight to arrive, whatever
  // the windows are. The caller must ask for feedback on those packets now, if it has not.
  bool waits_for_arrival() const noexcept {
    return std::visit([](const auto& policy) { return policy.waits_for_arrival(); }, policy_);
  }
  // Forgets the queued chunks: the step is over or given up.
  void clear() noexcept {
    std::visit([](auto& policy) { policy.clear(); }, policy_);
  }

  // What was learnt about this worker and its network may not hold any more: forgets it.
  void relearn() noexcept {
    std::visit([](auto& policy) { policy.relearn(); }, policy_);
  }
  // Describes the policy in lines of text; `prophet` adds what it has learnt and its blocks.
  std::string describe_plan() const {
    return std::visit([](const auto& policy) { return policy.describe_plan(); }, policy_);
  }

 private:
  using Strict = PacketPolicy<StrictQueue>;
  using Fifo = PacketPolicy<FifoQueue>;
  using Policy = std::variant<Strict, CreditPolicy, ProphetPolicy, Fifo>;

  static Policy make(const ScheduleOptions& options, const ScheduleSetup& setup) {
    switch (options.policy) {
      case Schedule::kCredit: return Policy(std::in_place_type<CreditPolicy>, options, setup);
      case Schedule::kProphet: return Policy(std::in_place_type<ProphetPolicy>, setup);
      case Schedule::kFifo: return Policy(std::in_place_type<Fifo>, setup);
      case Schedule::kStrict: break;
    }
    return Policy(std::in_place_type<Strict>, setup);
  }

  Policy policy_;
};

}  // namespace sluice::client

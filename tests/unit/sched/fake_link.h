// A link for the tests of schedulers: it takes one packet at a time, and the worker learns of an
// arrival a round trip later, if it asked for feedback. Virtual time, no loss; recovery is tested
// with the real session, in tests/sim.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "client/sched/scheduler.h"

namespace sluice::client {

struct LinkModel {
  DurationNs packet_ns = 1000;
  DurationNs round_trip_ns = 20 * kMicrosecond;
  std::uint32_t window_packets = 1000;  // of each shard
};

// A tensor that becomes ready.
struct Ready {
  TimeNs at = 0;
  std::uint32_t tensor = 0;
  Priority priority = 0;
};

struct Departure {
  ChunkIndex chunk = 0;
  TimeNs began_at = 0;
  TimeNs left_at = 0;  // the time at which its last bit is on the wire
};

class FakeLink {
 public:
  FakeLink(const LinkModel& model, std::vector<ChunkIndex> first_chunks, std::uint16_t shards = 1)
      : model_(model), first_chunks_(std::move(first_chunks)), flows_(shards) {}

  ScheduleSetup setup() const {
    return {.shard_count = static_cast<std::uint16_t>(flows_.size()),
            .chunk_count = first_chunks_.back(),
            .chunk_bytes = 1000,
            .first_chunks = first_chunks_};
  }

  // One step: pushes each tensor when it is ready, until all have left or nothing moves. `ready` is
  // in order of time. The clock goes on from step to step.
  std::vector<Departure> run(Scheduler& scheduler, const std::vector<Ready>& ready) {
    std::vector<Departure> log;
    const TimeNs began = now_;
    scheduler.begin_step(now_);
    std::size_t next = 0;
    while (true) {
      for (; next < ready.size() && began + ready[next].at <= now_; ++next)
        for (ChunkIndex chunk = first_chunks_[ready[next].tensor];
             chunk < first_chunks_[ready[next].tensor + 1]; ++chunk)
          scheduler.push(chunk, ready[next].priority, now_);
      const bool sent = wire_free_ <= now_ && send(scheduler, log);
      TimeNs then = sent ? wire_free_ : next_feedback();
      if (wire_free_ > now_) then = std::min(then, wire_free_);
      if (next < ready.size()) then = std::min(then, began + ready[next].at);
      if (then == kNever) break;
      now_ = std::max(now_, then);
      hear();
    }
    scheduler.clear();
    return log;
  }

  TimeNs now() const { return now_; }
  void wait(DurationNs ns) { now_ += ns; }
  void set_model(const LinkModel& model) { model_ = model; }

 private:
  struct Feedback {
    TimeNs at = 0;
    std::uint32_t number = 0;
  };
  struct Flow {
    std::uint32_t sent = 0;
    std::uint32_t arrived = 0;
    std::uint32_t unreported = 0;
    std::deque<Feedback> feedback;
  };

  WindowState window_state() const {
    WindowState result{.now = now_};
    for (std::size_t shard = 0; shard < flows_.size(); ++shard) {
      const Flow& flow = flows_[shard];
      result.in_flight_packets += flow.sent - flow.arrived;
      result.arrived_packets += flow.arrived;
      if (flow.sent - flow.arrived < model_.window_packets)
        result.open_shards |= std::uint64_t{1} << shard;
    }
    return result;
  }

  // The wire takes one packet at a time.
  bool send(Scheduler& scheduler, std::vector<Departure>& log) {
    Choice choice;
    if (!scheduler.next(window_state(), choice)) {
      if (scheduler.waits_for_arrival())
        for (Flow& flow : flows_)
          if (flow.sent != flow.arrived && flow.unreported != 0) report(flow);
      return false;
    }
    wire_free_ = now_ + model_.packet_ns;
    Flow& flow = flows_[choice.shard];
    ++flow.sent;
    ++flow.unreported;
    log.push_back({choice.chunk, now_, wire_free_});
    if (choice.last || 2 * flow.unreported >= model_.window_packets) report(flow);
    return true;
  }
  void report(Flow& flow) {
    flow.unreported = 0;
    flow.feedback.push_back({wire_free_ + model_.round_trip_ns, flow.sent});
  }
  TimeNs next_feedback() const {
    TimeNs at = kNever;
    for (const Flow& flow : flows_)
      if (!flow.feedback.empty()) at = std::min(at, flow.feedback.front().at);
    return at;
  }
  void hear() {
    for (Flow& flow : flows_)
      for (; !flow.feedback.empty() && flow.feedback.front().at <= now_; flow.feedback.pop_front())
        flow.arrived = flow.feedback.front().number;
  }

  LinkModel model_;
  std::vector<ChunkIndex> first_chunks_;
  std::vector<Flow> flows_;
  TimeNs now_ = kSecond;
  TimeNs wire_free_ = 0;
};

}  // namespace sluice::client

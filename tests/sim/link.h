// One direction of a host's cable: a bounded egress queue (the appliance's production one), a rate,
// a delay, and every fault that a wire can have. Segmentation and receive offloads make trains:
// neighbours of one flow that go out in one piece, and arrive together and in order, or not at all.
//
// It counts frames in, out and dropped by reason, so that I7 (in = out + dropped + queued) can be
// checked at any time. The world owns it, calls send() and carries out the events that it
// schedules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "aggregator/base/time.h"
#include "dataplane/core/egress_queue.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/frame_pool.h"
#include "tests/sim/random.h"

namespace sluice::sim {

struct LinkOptions {
  std::uint32_t loss_ppm = 0;
  std::uint32_t loss_burst = 1;  // frames that are lost in a row, on average
  std::uint32_t duplicate_ppm = 0;
  std::uint32_t corrupt_ppm = 0;
  std::uint32_t reorder_ppm = 0;        // held back for up to reorder_delay_ns
  std::uint32_t train_frames = 0;       // the most in a train; below 2: no trains
  std::uint32_t train_loss_ppm = 0;     // of whole trains
  std::uint32_t mark_above_frames = 0;  // congestion-experienced when more frames wait; 0: never
  std::uint32_t queue_frames = 1024;
  bool by_priority = true;  // false: frames leave in the order they came, as from a host's card
  std::uint64_t bytes_per_second = 1'250'000'000;
  DurationNs delay_ns = 10 * kMicrosecond;
  DurationNs jitter_ns = 0;
  DurationNs reorder_delay_ns = 500 * kMicrosecond;
};

enum class LinkDrop : std::uint8_t { kLoss, kPartition, kQueueFull, kScripted, kPowerOff, kCount };

struct LinkCounters {
  std::uint64_t in = 0;  // with the copies that the wire made
  std::uint64_t out = 0;
  std::uint64_t queued = 0;  // waiting or on the wire
  std::uint64_t corrupted = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t marked = 0;
  std::uint64_t trains = 0;  // of two frames or more
  std::array<std::uint64_t, static_cast<std::size_t>(LinkDrop::kCount)> dropped{};

  std::uint64_t dropped_total() const;
  bool balanced() const { return in == out + dropped_total() + queued; }
};

class Link {
 public:
  Link(std::uint32_t id, const LinkOptions& options);

  LinkOptions options;
  bool partitioned = false;
  // The peer takes nothing, as a stopped process behind a vhost-user port: frames stay queued.
  bool blocked = false;

  void send(FrameIndex frame, FramePool& pool, Random& random, EventQueue& events, TimeNs now,
            DurationNs extra_delay_ns = 0);
  // The wire is free: puts the next waiting frame on it, or a train of them.
  void ready(FramePool& pool, Random& random, EventQueue& events, TimeNs now);
  void unblock(EventQueue& events, TimeNs now);
  // The process that has the queue is killed: what waits for the wire is lost.
  void power_off(FramePool& pool);
  // A frame leaves the wire at the far end.
  void arrived() {
    --counters_.queued;
    ++counters_.out;
  }
  void count_scripted_drop() {
    ++counters_.in;
    ++counters_.dropped[static_cast<std::size_t>(LinkDrop::kScripted)];
  }
  const LinkCounters& counters() const { return counters_; }
  std::size_t waiting() const { return queue_.packets(); }  // frames for the wire
  // I6 is broken: a frame has left while a more urgent one waited.
  bool overtook() const { return overtook_; }

 private:
  void enqueue(FrameIndex frame, FramePool& pool, EventQueue& events, TimeNs now);
  void drop(FrameIndex frame, LinkDrop reason, FramePool& pool);
  bool loses(Random& random, TimeNs now);
  bool take_next(FramePool& pool);

  std::uint32_t id_;
  dataplane::EgressQueue queue_;
  std::array<std::uint32_t, 64> waiting_by_class_{};
  std::vector<FrameIndex> train_;  // the frames that go on the wire now
  LinkCounters counters_;
  bool busy_ = false;
  bool losing_ = false;  // the last frame was lost, at lost_ns_, and a burst may go on
  TimeNs lost_ns_ = 0;
  bool overtook_ = false;
};

// Changes bytes behind the Ethernet header so that the checksums must catch it.
void corrupt_frame(std::vector<std::uint8_t>& frame, Random& random);

}  // namespace sluice::sim

// The egress of a port, without the device: its queue, its shaper and their counters.
//
// The shell (dataplane/dpdk/lane) enqueues the frames of a round, then takes bursts and says how
// many frames of each the device accepted. Frames that the device refuses return to the queue, so a
// frame that arrives meanwhile never waits behind less urgent ones. Pure but for the counters,
// which only this class writes; one owner lcore.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "dataplane/core/counters.h"
#include "dataplane/core/egress_queue.h"
#include "dataplane/core/shaper.h"

namespace sluice::dataplane {

class Egress {
 public:
  // Preamble, start delimiter, checksum and gap, which a frame takes on the wire besides its bytes.
  static constexpr std::uint32_t kWireOverheadBytes = 24;
  static constexpr std::uint32_t kBurstPackets = 32;
  using Item = EgressQueue::Item;
  struct Options {
    EgressQueue::Limits queue;
    TokenBucket::Limits shaper;
    bool in_bursts = false;  // sends half of what the shaper allows at once, not frame by frame
  };
  // The bucket for this rate (0: unshaped). It holds what the link sends in 200 us, since rounds
  // may be late, but no more than a burst of the longest frames, which may lie on the device in
  // front of an urgent frame (I6). For slow links it holds at least 16 KiB, or that burst if it is
  // less.
  static constexpr TokenBucket::Limits shaper_for(std::uint64_t rate_bps,
                                                  std::uint32_t max_frame_bytes) noexcept {
    const std::uint64_t burst =
        std::uint64_t{kBurstPackets} * (max_frame_bytes + kWireOverheadBytes);
    const std::uint64_t least = std::min<std::uint64_t>(16 * 1024, burst);
    return {.rate_bps = rate_bps,
            .burst_bytes = std::clamp<std::uint64_t>(rate_bps / 8 / 5000, least, burst)};
  }

  Egress(const Options& options, PortCounters& counters, TimeNs now)
      : unshaped_(options.shaper.rate_bps == 0),
        queue_(options.queue),
        bucket_(options.shaper, now),
        in_bursts_(options.in_bursts),
        counters_(counters) {
    static_assert(kBurstPackets <= EgressQueue::kMostPassing);
  }

  // From now on with these options, but for `in_bursts`, which stays. No frame is lost, and none is
  // between take() and accept().
  void change(const Options& options, TimeNs now) noexcept {
    while (passing_count_ != 0) {
      const Item& item = burst_[--passing_count_];
      touched_ |= std::uint64_t{1} << item.egress_class;
      queue_.put_back(item);
    }
    unshaped_ = options.shaper.rate_bps == 0;
    queue_.change(options.queue);
    bucket_ = TokenBucket(options.shaper, now);
  }

  // Queues a frame. `free(packet)` is called with each frame that is dropped because the queue is
  // full, which may be this one. `mark(packet)` sets the congestion mark of this frame and returns
  // whether the frame carries it.
  template <class Free, class Mark>
  void enqueue(const Item& item, Free&& free, Mark&& mark) noexcept {
    ++arrived_;
    if (unshaped_ && passing_count_ < burst_.size() && queue_.empty()) {
      Item& to = burst_[passing_count_++];
      // Field by field: the wide reads of a copy would wait for the caller's narrow stores.
      to.packet = item.packet;
      to.bytes = item.bytes;
      to.egress_class = item.egress_class;
      to.queued_at = item.queued_at;
      queue_.pass(to);
      return;
    }
    for (Item victim; !queue_.push(item);) {
      if (!queue_.make_room(item, victim)) return drop(item, free);
      drop(victim, free);
    }
    touched_ |= std::uint64_t{1} << item.egress_class;
    if (queue_.congested(item.egress_class) && mark(item.packet))
      counters_.classes[item.egress_class].marked.add(1);
  }

  // Called once in each round, before take(). A round may send as many frames as came in since the
  // last flush began, but at least one burst.
  void begin_flush(TimeNs now) noexcept {
    bucket_.refill(now);
    budget_ = 0;
    if (in_bursts_ && due() > now) return;
    budget_ = std::max(kBurstPackets, arrived_);
    arrived_ = 0;
  }
  // The frames that may be sent now, at most kBurstPackets; valid until the next call. accept()
  // follows.
  std::span<const Item> take() noexcept;
  // The device accepted the first `sent` items of the burst that was taken.
  void accept(std::size_t sent, TimeNs now) noexcept;
  // Called after the last burst of a round: publishes the depths of the queue.
  void publish_depth() noexcept;

  // Frees all frames that wait; returns how many.
  template <class Free>
  std::size_t clear(Free&& free) noexcept {
    std::size_t count = std::exchange(passing_count_, 0);
    for (std::size_t at = 0; at < count; ++at) free(burst_[at].packet);
    for (Item item; queue_.pop(item); ++count) {
      touched_ |= std::uint64_t{1} << item.egress_class;
      free(item.packet);
    }
    publish_depth();
    return count;
  }

  bool empty() const noexcept { return passing_count_ == 0 && queue_.empty(); }
  // When the frames that wait should be looked at again. A system call or a timer for each frame
  // would cost more than the frame.
  TimeNs due() const noexcept {
    if (passing_count_ != 0) return 0;
    return queue_.empty() ? std::numeric_limits<TimeNs>::max()
                          : bucket_.half_earned_at(queue_.bytes());
  }
  const EgressQueue& queue() const noexcept { return queue_; }

 private:
  template <class Free>
  void drop(const Item& item, Free&& free) noexcept {
    touched_ |= std::uint64_t{1} << item.egress_class;
    counters_.drop(DropReason::kQueueFull);
    counters_.classes[item.egress_class].drops.add(1);
    free(item.packet);
  }

  // The burst that was taken, and in front of it the frames that bypass the empty queue of an
  // unshaped port: as many as may lie on the device in front of an urgent frame. Frames that the
  // device refuses wait in the queue.
  std::array<Item, kBurstPackets> burst_{};
  std::size_t passing_count_ = 0;
  std::size_t taken_count_ = 0;
  bool unshaped_;
  EgressQueue queue_;
  TokenBucket bucket_;
  const bool in_bursts_;
  PortCounters& counters_;
  std::uint32_t arrived_ = 0;  // frames since the last flush began
  std::uint32_t budget_ = 0;   // frames that this flush may still take
  std::uint64_t touched_ = 0;  // bit c: class c's depth may have changed since it was published
};

}  // namespace sluice::dataplane

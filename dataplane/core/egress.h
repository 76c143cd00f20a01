// A port's way out, without the device: its queue, its shaper, and what is counted of them.
//
// The shell (dataplane/dpdk/port) enqueues what a round brings, then takes bursts and says how much
// of each the device accepted. What it refused goes back to where it came from, so a frame
// that arrives in the meantime never waits behind less urgent ones. Pure but for the counters,
// which it alone writes; one owner lcore.
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
  // Preamble, start delimiter, checksum and gap: what a frame costs on a wire besides its bytes.
  static constexpr std::uint32_t kWireOverheadBytes = 24;
  static constexpr std::uint32_t kBurstPackets = 32;
  using Item = EgressQueue::Item;
  struct Options {
    EgressQueue::Limits queue;
    TokenBucket::Limits shaper;
    bool in_bursts = false;  // sends half of what the shaper allows at once, and not frame by frame
  };
  // A bucket for this rate (0: unshaped). It holds what the link sends in 200 us, for rounds that
  // come late, but no more than a burst of the longest frames: so much may lie on the device in
  // front of an urgent frame (I6). Slow links have at least ten frames.
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

  // Queues a frame. `free(packet)` takes each one that does not fit, which may be this one;
  // `mark(packet)` gives this one the congestion mark and says whether it carries it.
  template <class Free, class Mark>
  void enqueue(const Item& item, Free&& free, Mark&& mark) noexcept {
    ++arrived_;
    if (unshaped_ && passing_count_ < burst_.size() && queue_.empty()) {
      Item& to = burst_[passing_count_++];
      // One by one: a copy would read wide what the caller has just written narrow.
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

  // Once a round, before take(). A round may pass on as much as came in since the last one, and one
  // burst of what waited before.
  void begin_flush(TimeNs now) noexcept {
    bucket_.refill(now);
    budget_ = 0;
    if (in_bursts_ && due() > now) return;
    budget_ = std::max(kBurstPackets, arrived_);
    arrived_ = 0;
  }
  // What may go now, kBurstPackets at most; valid until the next call. accept() follows.
  std::span<const Item> take() noexcept;
  // The device accepted the first `sent` items of the burst that was taken.
  void accept(std::size_t sent, TimeNs now) noexcept;
  // After the last burst of a round: makes the depths known.
  void publish_depth() noexcept;

  // Gives up everything that waits; returns how many went.
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
  // When it is worth to look at what waits. A system call or a timer a frame would cost more than
  // the frame.
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

  // What was taken; and before, what goes past the empty queue of an unshaped port: as much as may
  // lie on the device in front of an urgent frame. What the device refuses waits in the queue.
  std::array<Item, kBurstPackets> burst_{};
  std::size_t passing_count_ = 0;
  std::size_t taken_count_ = 0;
  const bool unshaped_;
  EgressQueue queue_;
  TokenBucket bucket_;
  const bool in_bursts_;
  PortCounters& counters_;
  std::uint32_t arrived_ = 0;  // since the last flush began
  std::uint32_t budget_ = 0;   // packets that this flush may still take
  std::uint64_t touched_ = 0;  // bit c: class c's depth may have changed since it was published
};

}  // namespace sluice::dataplane

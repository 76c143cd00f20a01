// What one member and one shard know of each other's packets, and the probes that wait for an
// answer. Belongs to the shard's lcore, but for the atomics and counters, which others read.
#pragma once

#include <atomic>
#include <cstdint>

#include "aggregator/base/check.h"
#include "aggregator/base/counters.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// A probe to answer, and which of the results that it asked for are still to be sent. Bit i: chunk
// i of the block.
struct Reply {
  std::uint64_t asked = 0;  // since the last answer, of the chunks that the block has
  std::uint64_t want = 0;   // that an answer has promised
  Step step = 0;
  std::uint32_t block = 0;
  std::uint32_t probe_number = 0;
  StreamId stream{};
  Priority priority = 0;  // of the answer: the least urgent of the results that it speaks of
};

// Blocks that one member may ask a shard about at once. An honest one that asks about more is
// answered when it asks again.
inline constexpr std::uint32_t kRepliesPerMember = 32;

// One direction pair of (worker, shard): numbers for loss and congestion, credit for results.
struct Flow {
  Cookie cookie = 0;              // of the process it counts for; another one starts afresh
  std::uint32_t next_number = 1;  // of the next packet to this worker
  std::uint32_t received_count = 0;
  std::uint32_t highest_number = 0;
  std::uint32_t marked_count = 0;
  std::uint32_t echo_timestamp_us = 0;
  TimeNs echo_arrival_ns = 0;
  std::uint32_t credit = 0;
  std::uint32_t deferred_count = 0;
  std::uint32_t deferred_told = 0;  // of them, in the last packet to this worker
  // What waits to be sent to it besides results. Bit i: its Reply i.
  std::uint32_t unanswered = 0;
  std::uint32_t pulling = 0;                        // answered before, with results still wanted
  std::uint8_t last_reply = kRepliesPerMember - 1;  // served last
  bool answered_last = false;  // served: an answer, and no result that it pulls
  bool feedback_queued = false;
  bool has_turn = false;                        // stands in its slice's ring of turns
  bool deferral_told = false;                   // since the last credit update
  TimeNs last_contribution_ns = 0;              // of the open gradient step
  std::atomic<Step> last_contribution_step{0};  // likewise; read by the control thread
  std::atomic<TimeNs> last_heard_ns{0};         // read by the control thread
  Counter included;                             // chunks that this rank has a part in
  Counter late;      // contributions that came after their slot was complete
  Counter requeued;  // of `included`, those computed on an earlier step
  Histogram lag;     // behind the step's first finisher; read by metrics

  // Another process holds the rank: both directions count from the start.
  void restart(Cookie new_cookie) noexcept {
    DCHECK(new_cookie != cookie);
    cookie = new_cookie;
    next_number = 1;
    received_count = 0;
    highest_number = 0;
    marked_count = 0;
    echo_timestamp_us = 0;
    credit = 0;
    deferred_count = deferred_told = 0;
    unanswered = pulling = 0;
    last_reply = kRepliesPerMember - 1;
    answered_last = false;
    feedback_queued = false;
    deferral_told = false;
  }
};

}  // namespace sluice::agg

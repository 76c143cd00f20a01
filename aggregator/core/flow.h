// The state of the packets between one member and one shard, and the member's probes that wait for
// an answer. Belongs to the shard's lcore; other threads read the atomics and counters.
#pragma once

#include <atomic>
#include <cstdint>

#include "aggregator/base/check.h"
#include "aggregator/base/counters.h"
#include "aggregator/base/recent_numbers.h"
#include "aggregator/base/serial.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// A probe to answer, and the results that it asked for and that are still to be sent. Bit i: chunk
// i of the block.
struct Reply {
  std::uint64_t asked = 0;  // chunks asked for since the last answer
  std::uint64_t want = 0;   // chunks whose results an answer has promised
  Step step = 0;
  std::uint32_t block = 0;
  std::uint32_t probe_number = 0;
  StreamId stream{};
  Priority priority = 0;  // of the answer: that of the least urgent result that it speaks of
};

// The blocks that one member may ask a shard about at once. A member that asks about more is
// answered when it asks again.
inline constexpr std::uint32_t kRepliesPerMember = 32;

// The flow of (worker, shard), both directions: numbers for loss and congestion, credit for
// results.
struct Flow {
  Cookie cookie = 0;  // of the process that is counted; another process starts from zero
  std::uint32_t next_number = 1;  // of the next packet to this worker
  std::uint32_t received_count = 0;
  std::uint32_t highest_number = 0;
  std::uint32_t arrived_before = 0;  // bit i: number highest_number - 1 - i has arrived
  std::uint32_t marked_count = 0;
  std::uint32_t echo_timestamp_us = 0;
  TimeNs echo_arrival_ns = 0;
  std::uint32_t credit = 0;
  std::uint32_t deferred_count = 0;
  std::uint32_t deferred_told = 0;  // as the last packet to this worker said
  // Replies that wait to be sent to the member. Bit i: its Reply i.
  std::uint32_t unanswered = 0;
  std::uint32_t pulling = 0;                        // answered, with results still to be sent
  std::uint8_t last_reply = kRepliesPerMember - 1;  // the one served last
  bool answered_last = false;  // what was served last is an answer, not a pulled result
  bool feedback_queued = false;
  bool has_turn = false;                        // it is in its slice's ring of turns
  bool deferral_told = false;                   // since the last credit update
  TimeNs last_contribution_ns = 0;              // of the open gradient step
  std::atomic<Step> last_contribution_step{0};  // its step; read by the control thread
  std::atomic<TimeNs> last_heard_ns{0};         // read by the control thread
  Counter included;                             // chunks that this rank has a part in
  Counter late;      // contributions that came after their slot was complete
  Counter requeued;  // of `included`, those computed on an earlier step
  Histogram lag;     // behind the step's first finisher; read by metrics
  RecentNumbers recent;

  // A packet has come. True: its number is the highest so far. A number is counted once; one that
  // is too far back to tell is taken for a duplicate.
  bool note_arrival(std::uint32_t number) noexcept {
    const std::int32_t step = ahead(number, highest_number);
    if (step > 0) {
      const auto advance = static_cast<std::uint32_t>(step);
      arrived_before = advance > 32
                           ? 0
                           : static_cast<std::uint32_t>((std::uint64_t{arrived_before} << advance) |
                                                        (std::uint64_t{1} << (advance - 1)));
      recent.advance(number, advance - 1);
      highest_number = number;
      ++received_count;
      return true;
    }
    const auto back = static_cast<std::uint32_t>(-step);
    if (back >= RecentNumbers::kRemembered || recent.came(number)) return false;
    recent.note(number);
    // back is 0 for a number 0 that comes before any other: there is nothing before it.
    if (back - 1 < 32) arrived_before |= std::uint32_t{1} << (back - 1);
    ++received_count;
    return false;
  }
  // Another process holds the rank now: both directions count from the start.
  void restart(Cookie new_cookie) noexcept {
    DCHECK(new_cookie != cookie);
    cookie = new_cookie;
    next_number = 1;
    received_count = 0;
    highest_number = 0;
    arrived_before = 0;
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

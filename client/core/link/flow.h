// One flow: the packets between this worker and one shard, both ways.
//
// Worker to appliance: numbers, what is in flight, round trips, the congestion window and its pace,
// when to ask for feedback. Appliance to worker: which of its numbers arrived, and the credit to
// advertise. It knows no chunks: recovery.h decides what to send again. Numbers are u32 and wrap;
// they are compared as serial numbers (RFC 1982). Pure, no allocation; the session's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "aggregator/base/check.h"
#include "aggregator/base/recent_numbers.h"
#include "aggregator/base/serial.h"
#include "aggregator/base/time.h"
#include "aggregator/wire/packet.h"
#include "client/core/link/congestion.h"
#include "client/core/link/holes.h"
#include "client/core/link/pacer.h"

namespace sluice::client {

class Flow {
 public:
  // `credit_packets`: appliance packets of this flow that the transport can buffer. In lockstep
  // every contribution brings back a result and some feedback, so it bounds the window too.
  explicit Flow(std::uint32_t credit_packets) noexcept
      : congestion_(credit_packets - credit_packets / 4), credit_packets_(credit_packets) {}

  // ---- sending ----
  bool window_open() const noexcept { return in_flight() < congestion_.window(); }
  // The same with a small reserve for what is more urgent than what fills the window: it need not
  // wait for feedback, which comes for half a window at a time. With it the window stays below the
  // credit.
  bool window_open_for_urgent() const noexcept {
    const std::uint32_t reserve = std::min(credit_packets_ / 8, Congestion::kFloor);
    return in_flight() < congestion_.window() + reserve;
  }
  // Whether the pace lets a packet leave now. Every packet of data and every probe asks.
  bool on_pace(TimeNs now) noexcept { return pacer_.may_send(pace(), now); }
  // Until when it holds back what has asked; 0: it holds nothing back.
  TimeNs held_until_ns() const noexcept { return pacer_.next_ns(); }
  // What it held back is asked about anew.
  void forget_pace() noexcept { pacer_.forget(); }
  // Whether the window lets a stream send, of which something is outstanding or not: while nothing
  // is, nothing tells of what was sent, nobody asks, and a window that is shut would stay so.
  bool may_send(bool outstanding) const noexcept { return window_open() || !outstanding; }
  // Sent beyond the highest number that arrived. What is missing below it is lost, or late by a few
  // places (forward acknowledgement, Mathis and Mahdavi 1996): it does not hold the window.
  std::uint32_t in_flight() const noexcept {
    return static_cast<std::uint32_t>(std::max(0, ahead(sent_, highest_)));
  }
  std::uint32_t window() const noexcept { return congestion_.window(); }
  // The header of the next packet: takes a number and advertises credit.
  wire::FlowHeader next_header(TimeNs now, Priority priority = 0) noexcept {
    const std::uint32_t credit = credit_to_advertise();
    DCHECK(ahead(credit, advertised_) >= 0);  // what was promised stays promised
    advertised_ = credit;
    ++unreported_;
    pacer_.sent(1);
    congestion_.on_sent(in_flight(), now);
    holes_.sent(++sent_, priority);
    return {.number = sent_,
            .timestamp_us = wire_time_us(now),
            .credit = advertised_,
            .priority = priority};
  }
  // Whether the packet whose header was just taken must ask for feedback. `last`: nothing else
  // waits to be sent.
  bool take_report_flag(bool last, TimeNs now) noexcept {
    DCHECK(unreported_ != 0);
    if (!last && 2 * unreported_ < congestion_.window()) return false;
    unreported_ = 0;
    if (last) tail_ = {.sent_ns = now, .number = sent_};
    return true;
  }
  // Whether a packet must ask if the last one has arrived: no later one shows that it was lost.
  bool asks_about_tail() const noexcept { return tail_.asks; }
  // The least urgent priority of what may be lost: a question must not overtake it.
  Priority tail_priority() const noexcept { return holes_.least_urgent(highest_ + 1, sent_); }
  // It has just taken a number, and asks for feedback on all before it.
  void asked_about_tail(TimeNs now) noexcept {
    unreported_ = 0;
    tail_ = {.sent_ns = now, .number = sent_, .questions = tail_.questions + 1};
  }
  // Packets sent since feedback was asked for.
  std::uint32_t unreported() const noexcept { return unreported_; }

  // ---- receiving ----
  // Bits: four bools come back through memory, where a read of all waits for the writes of each.
  struct LossSignals {
    bool valid : 1 = false;     // false: the header contradicts what was sent; ignore the packet
    bool gap : 1 = false;       // worker packets are missing, and nothing tells which ones
    bool lost : 1 = false;      // appliance packets are missing
    bool withheld : 1 = false;  // results were deferred for want of credit
  };
  // The feedback on every appliance packet.
  LossSignals on_feedback(const wire::FeedbackHeader& feedback, TimeNs now) noexcept;
  // The next worker packet that is lost by its number, if any: the caller looks what it carried.
  std::optional<std::uint32_t> take_lost(TimeNs now) noexcept {
    const std::optional<std::uint32_t> number = holes_.take_lost(now);
    accepted_ += number.has_value();
    return number;
  }
  // Nothing that matters is among the missing numbers up to the highest that are no holes: every
  // chunk there is known to be counted or lost, the rest were probes and credit updates.
  void accept_gap() noexcept;
  bool has_gap() const noexcept {
    return ahead(highest_ - received_, accepted_) > static_cast<std::int32_t>(holes_.count());
  }
  std::uint32_t highest_arrived() const noexcept { return highest_; }
  // All worker packets up to this number have arrived, or are known to be lost.
  bool all_arrived_up_to(std::uint32_t number) const noexcept {
    return ahead(confirmed_, number) >= 0;
  }

  // ---- time ----
  // When take_lost() has a number, the tail is to be asked about, or the pace lets a packet leave.
  TimeNs next_timeout() const noexcept;
  void handle_timeout(TimeNs now) noexcept;

  // ---- credit ----
  // Half of what was advertised is used up.
  bool credit_due() const noexcept;
  std::uint32_t credit_packets() const noexcept { return credit_packets_; }
  // The credit, and not the path, sets the rate.
  bool credit_limits() const noexcept { return congestion_.capped(); }
  // Results that may be asked for now without more of them on the way than buffers: some buffers
  // are kept for the results of what is in flight.
  std::uint32_t free_pulls() const noexcept;
  void reserve_pulls(std::uint32_t count) noexcept {
    pulls_ += count;
    DCHECK(pulls_ <= credit_packets_);  // or results would find no buffer
  }
  // A probe asks for so many results, which come back one behind the other: the pace of what this
  // worker sends is that of what it has sent to it.
  void pace_pulls(std::uint32_t count) noexcept { pacer_.sent(count); }
  void release_pulls(std::uint32_t count) noexcept {
    CHECK(count <= pulls_);
    pulls_ -= count;
  }

  // ---- appliance packets that are missing ----
  // The first number of the newest gap.
  std::uint32_t newest_gap() const noexcept { return newest_gap_; }
  // The highest number that has come.
  std::uint32_t highest_in() const noexcept { return highest_in_; }
  // All of these have come, late or not; false where that is not known any more.
  bool all_came(std::uint32_t first, std::uint32_t last) const noexcept;
  // How long a number that was skipped may yet come: a quarter of a round trip, or longer where
  // packets came later than that, as behind more urgent ones in a queue.
  DurationNs patience_ns() const noexcept {
    return std::max(std::min(rtt_.smoothed_ns() / 4, kIdleProbeInterval), lateness_ns_);
  }

  // When the last packet came.
  TimeNs heard_ns() const noexcept { return heard_ns_; }
  const RttEstimator& rtt() const noexcept { return rtt_; }

 private:
  std::uint32_t credit_to_advertise() const noexcept {
    const std::uint32_t credit = highest_in_ + credit_packets_ - std::min(credit_packets_, pulls_);
    return ahead(credit, advertised_) > 0 ? credit : advertised_;
  }
  // No slower than the smallest window: an appliance that has stood still has answered few packets
  // in a long time, which says nothing of the path.
  double pace() const noexcept {
    const double found = congestion_.pace();
    if (found <= 0 || !rtt_.valid()) return found;
    const auto smallest = static_cast<double>(Congestion::kFloor * kSecond);
    return std::max(found, smallest / static_cast<double>(rtt_.smoothed_ns()));
  }
  static constexpr std::uint32_t kTailQuestions = 3;
  static constexpr DurationNs kLeastTailWait = kMillisecond;  // a host may be late with feedback
  struct Tail {
    TimeNs sent_ns = 0;
    std::uint32_t number = 0;
    std::uint32_t questions = 0;
    bool asks = false;
  };
  static constexpr DurationNs kForgetting = 64;  // gaps after which little of a lateness is left
  TimeNs tail_due() const noexcept;
  void check() const noexcept;

  RttEstimator rtt_;
  Congestion congestion_;
  Pacer pacer_;
  // Worker to appliance.
  std::uint32_t sent_ = 0;      // the last number used
  std::uint32_t received_ = 0;  // arrived there
  std::uint32_t highest_ = 0;   // highest number that arrived there
  std::uint32_t marked_ = 0;
  std::uint32_t accepted_ = 0;  // missing numbers that are accounted for
  std::uint32_t confirmed_ = 0;
  std::uint32_t unreported_ = 0;  // sent since feedback was asked for
  Tail tail_;                     // the last packet, when nothing waited behind it
  Holes holes_;
  // Appliance to worker.
  TimeNs heard_ns_ = 0;
  std::uint32_t highest_in_ = 0;
  std::uint32_t newest_gap_ = 0;
  RecentNumbers recent_in_;
  DurationNs lateness_ns_ = 0;  // of packets that later ones overtook
  std::uint32_t deferred_ = 0;
  std::uint32_t advertised_ = 0;
  std::uint32_t pulls_ = 0;  // results asked for and still to come
  std::uint32_t credit_packets_;
};

}  // namespace sluice::client

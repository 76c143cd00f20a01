// When each tensor of each step passed which place, for the Chrome trace: what a session notes.
//
// Switched off (the default) it holds no memory and each of its calls is one branch. On, it has one
// record a tensor and a queue of finished ones, all allocated at the start; whoever does not drain
// the queue loses the newest records and a count says how many. Times at the appliance are on this
// worker's clock: see appliance_time(). Over several appliances what the lanes' sessions have noted
// of a tensor is added up lane by lane. Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::client {

// A layer of a store as it was read. What the appliance says of it is as of the last answer.
struct StoreRead {
  Step staleness = 0;                  // iterations of others that it lacked
  Step clock = 0;                      // the least over all members
  std::uint16_t parked = 0;            // pulls that wait for it
  Step oldest_request_iterations = 0;  // by which this worker's oldest request is behind
  DurationNs suspended_ns = 0;         // that the application has waited for it
};

// One tensor in one step. 0: it did not happen, or nobody knows.
struct TensorTimes {
  std::uint32_t tensor = 0;
  Step step = 0;
  Priority priority = 0;
  bool contributes = false;          // false: catching up, without a gradient of this worker
  bool of_store = false;             // a layer of a store: pushed, and then read
  StoreRead read;                    // of a store
  std::uint16_t k = 0;               // contributions that completed its chunks; the least of them
  std::uint32_t packets = 0;         // that left with its chunks
  std::uint32_t sent_again = 0;      // of them
  TimeNs ready_ns = 0;               // the application has submitted it
  TimeNs queued_ns = 0;              // its chunks are with the scheduler
  TimeNs first_sent_ns = 0;          // its first packet has left
  TimeNs last_sent_ns = 0;           // its last one, sent again or not
  TimeNs first_contribution_ns = 0;  // of any rank, to any of its chunks, at the appliance
  TimeNs kth_contribution_ns = 0;    // that completed the last of its chunks, likewise
  TimeNs result_ns = 0;              // all of its average is in the application's memory
  TimeNs applied_ns = 0;             // the application has used it; the session does not know when
  DurationNs smallest_round_trip_ns = 0;  // half of it is how far the appliance's times may be off
  // ---- over several appliances ----
  std::uint32_t part = 0;  // 0: of the whole tensor; else one more than its TracePart's index
  std::uint32_t switch_index = 0;  // of a part: where its last slice was summed
  bool detoured = false;           // of a part: there another switch stood in for its own
};

// What of a tensor goes through one lane of a BCube (client/bcube), for each of its records.
struct TracePart {
  std::uint32_t tensor = 0;
  std::uint64_t elem_count = 0;
  std::uint32_t thread = 0;
  std::uint32_t stage = 0;
  std::uint32_t level = 0;
  const char* way = "";
  std::string name;  // all of that in words
};

// Of two records of one step, that of both.
inline void add(TensorTimes& all, const TensorTimes& more) noexcept {
  const auto first = [](auto& time, auto other) {  // 0: unknown
    if (other != 0) time = time == 0 ? other : std::min(time, other);
  };
  all.contributes |= more.contributes;
  first(all.k, more.k);
  all.packets += more.packets;
  all.sent_again += more.sent_again;
  first(all.ready_ns, more.ready_ns);
  first(all.queued_ns, more.queued_ns);
  first(all.first_sent_ns, more.first_sent_ns);
  all.last_sent_ns = std::max(all.last_sent_ns, more.last_sent_ns);
  first(all.first_contribution_ns, more.first_contribution_ns);
  all.kth_contribution_ns = std::max(all.kth_contribution_ns, more.kth_contribution_ns);
  all.result_ns = std::max(all.result_ns, more.result_ns);
  first(all.smallest_round_trip_ns, more.smallest_round_trip_ns);
  all.switch_index = more.switch_index;
  all.detoured |= more.detoured;
}

// The appliance says how long before a packet left it something happened; the way here takes half
// of the smallest round trip, or longer when the packet had to queue. So the time is late by what
// the packet waited on its way. It is early by at most half of the smallest round trip (when the
// ways differ in length) and one loop of the appliance's thread, which reads its clock once a loop.
constexpr TimeNs appliance_time(TimeNs arrival_ns, DurationNs smallest_round_trip_ns,
                                std::uint32_t age_us) noexcept {
  return arrival_ns - smallest_round_trip_ns / 2 - age_us * kMicrosecond;
}

class TensorTrace {
 public:
  void enable(std::uint32_t tensor_count) {
    records_.resize(tensor_count);
    finished_.resize(2 * std::size_t{tensor_count});  // a tensor has at most two steps in a burst
  }
  bool on() const noexcept { return !records_.empty(); }

  // It takes part in `step`, and what has to leave is with the scheduler.
  void queued(std::uint32_t tensor, Step step, Priority priority, bool contributes, TimeNs ready_ns,
              TimeNs now) noexcept {
    if (!on()) return;
    TensorTimes& times = of(tensor, step);
    times.priority = priority;
    times.contributes = contributes;
    // `now` is the loop's: the application may have submitted since.
    times.ready_ns = ready_ns;
    times.queued_ns = std::max(ready_ns, now);
  }

  void sent(std::uint32_t tensor, Step step, bool again, TimeNs now) noexcept {
    if (!on()) return;
    TensorTimes& times = of(tensor, step);
    const TimeNs sent_ns = std::max(times.queued_ns, now);
    if (times.packets++ == 0) times.first_sent_ns = sent_ns;
    times.last_sent_ns = sent_ns;
    times.sent_again += again;
  }

  struct Ages {
    std::uint16_t k = 0;
    std::uint32_t first_us = 0;
    std::uint32_t complete_us = 0;
  };
  // A result has come, before or after the tensor was submitted.
  void result(std::uint32_t tensor, Step step, const Ages& ages, DurationNs smallest_round_trip_ns,
              TimeNs now) noexcept {
    if (!on()) return;
    TensorTimes& times = of(tensor, step);
    const TimeNs first_ns = appliance_time(now, smallest_round_trip_ns, ages.first_us);
    const TimeNs kth_ns = appliance_time(now, smallest_round_trip_ns, ages.complete_us);
    const bool only = times.kth_contribution_ns == 0;
    times.first_contribution_ns = only ? first_ns : std::min(times.first_contribution_ns, first_ns);
    times.kth_contribution_ns = only ? kth_ns : std::max(times.kth_contribution_ns, kth_ns);
    times.k = only ? ages.k : std::min(times.k, ages.k);
    times.smallest_round_trip_ns = smallest_round_trip_ns;
  }

  // A store's layer is here.
  void read(std::uint32_t tensor, Step step, const StoreRead& read) noexcept {
    if (!on()) return;
    TensorTimes& times = of(tensor, step);
    times.of_store = true;
    times.read = read;
  }

  // Something has been noted of the tensor's step. Precondition: on().
  bool has(std::uint32_t tensor, Step step) const noexcept { return records_[tensor].step == step; }

  // The average is whole.
  void done(std::uint32_t tensor, Step step, TimeNs now) noexcept {
    if (!on()) return;
    TensorTimes& times = of(tensor, step);
    times.result_ns = std::max(times.queued_ns, now);
    finish(times);
  }

  // A part's finished record, to be added to what is noted of it. Precondition: on().
  void part_done(const TensorTimes& times) noexcept {
    DCHECK(0 < times.part && times.part <= records_.size());
    TensorTimes& all = records_[times.part - 1];
    all.step == times.step ? add(all, times) : void(all = times);
  }
  // All of the tensor is done, this part of it with it. Precondition: on().
  void close_part(std::uint32_t index, Step step) noexcept {
    if (has(index, step)) finish(records_[index]);
  }

  // The oldest finished record that nobody has taken.
  bool poll(TensorTimes& times) noexcept {
    if (finished_count_ == 0) return false;
    DCHECK(finished_first_ < finished_.size() && finished_count_ <= finished_.size());
    times = finished_[finished_first_];
    finished_first_ = (finished_first_ + 1) % finished_.size();
    --finished_count_;
    return true;
  }
  std::uint64_t lost_count() const noexcept { return lost_count_; }

 private:
  void finish(const TensorTimes& times) noexcept {
    DCHECK(times.step != 0 && finished_count_ <= finished_.size());
    if (finished_count_ == finished_.size()) {
      ++lost_count_;
      return;
    }
    finished_[(finished_first_ + finished_count_++) % finished_.size()] = times;
  }
  // The tensor's record of the step; a new one begins with the first that is heard of it.
  TensorTimes& of(std::uint32_t tensor, Step step) noexcept {
    DCHECK(tensor < records_.size());
    TensorTimes& times = records_[tensor];
    if (times.step != step) times = {.tensor = tensor, .step = step};
    return times;
  }

  std::vector<TensorTimes> records_;  // by tensor; empty: off
  std::vector<TensorTimes> finished_;
  std::size_t finished_first_ = 0;
  std::size_t finished_count_ = 0;
  std::uint64_t lost_count_ = 0;
};

}  // namespace sluice::client

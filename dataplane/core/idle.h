// Decides what a polling thread does after a loop: whether it goes on or rests, and until when.
//
// Pure: the policy is told how much work each loop had and names the action, which the worker
// carries out. Busy polling never rests. Adaptive polling is for machines with fewer cores than
// threads, where waking up costs more than a packet. A thread without work waits until a packet
// wakes it, which is as fast as polling. While packets keep coming, the clock wakes it once a
// round, and it handles all that have gathered. A thread whose ports can't wake it rests more
// briefly. After about a second without work a thread rests longer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "aggregator/base/check.h"
#include "aggregator/base/time.h"

namespace sluice::dataplane {

// Finds out whether a queue's receive interrupts come. Some drivers offer interrupts that the
// device never raises, so interrupts are relied on once the first has come, and given up after
// enough packets that should have raised one.
class InterruptTrial {
 public:
  static constexpr std::uint32_t kMostMissed = 8;
  enum class State : std::uint8_t { kUnknown, kCome, kMissing };

  constexpr State state() const noexcept { return state_; }
  constexpr void note_interrupt() noexcept { state_ = State::kCome; }
  // The first loop after an armed wait that no interrupt ended found packets.
  constexpr void note_missed() noexcept {
    if (state_ == State::kUnknown && ++missed_ == kMostMissed) state_ = State::kMissing;
  }

 private:
  State state_ = State::kUnknown;
  std::uint32_t missed_ = 0;
};

class IdlePolicy {
 public:
  static constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
  static constexpr std::uint32_t kSpinLoops = 8;  // the next packet of a burst comes at once
  static constexpr std::size_t kWholeBurst = 32;  // after that much work there is more to do
  static constexpr DurationNs kRound = 100 * kMicrosecond;
  static constexpr std::uint32_t kSteadyWakes = 8;  // wakes in a row that make traffic steady
  // The longest wait: events that wake no thread (a straggler's deadline) are that late at most.
  // After kShallowRests it is kDeepWait.
  static constexpr DurationNs kLongestWait = kMillisecond;
  static constexpr DurationNs kFirstNap = 10 * kMicrosecond;
  // Jobs whose workers compute between steps send again within so many rests; after them the
  // machine is left alone.
  static constexpr std::uint32_t kShallowRests = 1000;
  static constexpr DurationNs kDeepWait = 5 * kMillisecond;
  static constexpr DurationNs kDeepNap = 500 * kMicrosecond;

  enum class Action : std::uint8_t {
    kGoOn,
    kArm,   // arm the ports, and loop once more: earlier packets wake nobody
    kNap,   // until the time, whatever comes
    kWait,  // for a packet or a call, at most until the time
  };
  struct Decision {
    Action action = Action::kGoOn;
    TimeNs until = 0;
  };

  // Whether packets at all ports of this thread wake it.
  enum class Woken : std::uint8_t {
    kNo,
    kPerhaps,  // by interrupts that have not come yet
    kYes,
  };

  // `busy`: busy polling. Else the thread is adaptive, and wake_by() says what wakes it.
  explicit constexpr IdlePolicy(bool busy) noexcept
      : state_(busy ? State::kBusy : State::kRested) {}

  // Whether the ports wake the thread, and whether some must be armed before each wait.
  constexpr void wake_by(Woken woken, bool arms) noexcept {
    woken_ = woken;
    arms_ = arms;
  }

  // After a loop that began at `began` and moved `work` packets and commands. At `due` something
  // that waits in this thread may go on.
  constexpr Decision after_loop(std::size_t work, TimeNs began, TimeNs due) noexcept {
    if (state_ == State::kBusy) return {};
    if (work != 0) note_work(began);
    if (work >= kWholeBurst) return {};
    due = std::max(due, began + kFirstNap);
    if (steady_wakes_ == kSteadyWakes && began < woke_at_ + kRound)
      return rest(Action::kNap, std::min(due, woke_at_ + kRound));
    if (work != 0 || ++empty_loops_ <= kSpinLoops) return {};
    if (arms_ && !is_armed()) {
      become(has_rested() ? State::kRestedArmed : State::kAwakeArmed);
      return {Action::kArm};
    }
    return rest(Action::kWait, std::min(due, began + longest_wait()));
  }

 private:
  enum class State : std::uint8_t {
    kBusy,         // it never rests
    kAwake,        // it has had work since its last rest
    kAwakeArmed,   // as kAwake, and the ports were armed by the last loop
    kRested,       // it has had no work since its last rest; the first state
    kRestedArmed,  // as kRested, and the ports were armed by the last loop
  };
  static constexpr bool may_follow(State state, State next) noexcept {
    switch (next) {
      case State::kBusy: return false;
      case State::kAwake:
      case State::kRested: return state != State::kBusy;
      case State::kAwakeArmed: return state == State::kAwake;
      case State::kRestedArmed: return state == State::kRested;
    }
    return false;
  }
  constexpr void become(State next) noexcept {
    DCHECK(may_follow(state_, next));
    state_ = next;
  }
  constexpr bool has_rested() const noexcept {
    return state_ == State::kRested || state_ == State::kRestedArmed;
  }
  constexpr bool is_armed() const noexcept {
    return state_ == State::kAwakeArmed || state_ == State::kRestedArmed;
  }

  constexpr void note_work(TimeNs began) noexcept {
    const bool rested = has_rested();
    become(State::kAwake);
    empty_loops_ = 0;
    shallow_rests_ = 0;
    nap_ns_ = kFirstNap;
    if (!rested) return;
    const bool soon = began < woke_at_ + 2 * kRound;
    steady_wakes_ = soon ? std::min(steady_wakes_ + 1, kSteadyWakes) : 0;
    woke_at_ = began;
  }

  constexpr DurationNs longest_wait() noexcept {
    if (shallow_rests_ == kShallowRests) return woken_ == Woken::kNo ? kDeepNap : kDeepWait;
    ++shallow_rests_;
    if (woken_ == Woken::kYes) return kLongestWait;
    const DurationNs nap_ns = nap_ns_;
    nap_ns_ = std::min(nap_ns_ * 2, kRound);
    return nap_ns;
  }

  constexpr Decision rest(Action action, TimeNs until) noexcept {
    become(State::kRested);
    return {action, until};
  }

  State state_;
  Woken woken_ = Woken::kNo;
  bool arms_ = false;
  std::uint32_t empty_loops_ = 0;
  std::uint32_t steady_wakes_ = 0;
  TimeNs woke_at_ = 0;  // the first loop with work after a rest
  std::uint32_t shallow_rests_ = 0;
  DurationNs nap_ns_ = kFirstNap;
};

}  // namespace sluice::dataplane

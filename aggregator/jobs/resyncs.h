// The line of ranks that want another rank's state: one transfer of a job is under way, further
// ranks wait.
//
// Resyncs only keeps the books. StateTransfers chooses sources, tells shards and members, and ends
// a transfer that lasts too long. Pure; control thread only.
#pragma once

#include <cstdint>
#include <deque>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// A shard's event that has not come by then was lost: the shard is asked again.
inline constexpr DurationNs kShardAnswer = kSecond;

class Resyncs {
 public:
  enum class State : std::uint8_t {
    kIdle,
    kOpening,  // shard 0 was asked for the first step, and has not answered the newest question
    kOpen,     // shard 0 has answered, and statuses name the transfer
  };
  enum class Asked : std::uint8_t { kKnown, kInLine, kRestarted };

  State state() const noexcept { return state_; }
  bool active() const noexcept { return state_ != State::kIdle; }
  bool is_target(Rank rank) const noexcept { return active() && target() == rank; }
  bool in_line(Rank rank) const noexcept;
  bool has_line() const noexcept { return !line_.empty(); }
  Rank next() const noexcept;  // precondition: has_line()

  // Of the transfer under way; precondition: active().
  Rank target() const noexcept;
  Rank source() const noexcept;
  std::uint32_t number() const noexcept;
  DurationNs held_ns(TimeNs now) const noexcept;  // how long the window has waited for it
  // Its first step of stream kState; precondition: kOpen.
  Step first_step() const noexcept;

  // `target` wants state, as its request `number`. The same number is the same request. A new
  // number of the rank whose transfer is under way begins that transfer again.
  Asked ask(Rank target, std::uint32_t number);
  // The first in line gets its state; then open(). Precondition: has_line(), not active().
  void start(TimeNs now);
  // Shard 0 is asked to open the transfer from `source`: the first time, when the source or the
  // number changes, or when the answer does not come.
  void open(Rank source, TimeNs now) noexcept;
  bool is_overdue(TimeNs now) const noexcept;
  // Shard 0 has opened a transfer with `first_step`. False: it answers an older question.
  bool opened(Step first_step) noexcept;
  // Whether shard 0 is to be asked if the target waits for state that no member has; at most once a
  // second.
  bool ask_for_loss(TimeNs now) noexcept;
  void end() noexcept;
  // The rank gets no state any more. True: it is the target of the transfer under way; end() that.
  bool forget(Rank target);

 private:
  struct Request {
    Rank target;
    std::uint32_t number = 0;
  };

  void change_to(State next) noexcept;

  State state_ = State::kIdle;
  std::deque<Request> line_;
  Request current_;  // while active, like the fields below
  Rank source_;
  TimeNs started_ns_ = 0;           // the window is held from here on
  Step first_step_ = 0;             // of kOpen
  TimeNs opened_ns_ = 0;            // when shard 0 was asked to open it
  TimeNs next_loss_ns_ = 0;         // when shard 0 may be asked (again) for a loss
  std::uint32_t openings_due_ = 0;  // questions that shard 0 has not answered
};

}  // namespace sluice::agg

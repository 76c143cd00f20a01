// When legs that were lost are tried again, and how far the attempt is.
//
// An attempt begins with one leg that asks to join, twice a second, while nobody answers: so it
// costs the others nothing. When all servers of the switch are in its job, the other legs join
// too, and the servers compare who they are as they did before the first step, since somebody may
// have moved a cable. What is lost again soon is left alone for longer each time.
//
// Pure: it counts time, the relay acts (relay_failback.cc).
#pragma once

#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class Failback {
 public:
  enum class State : std::uint8_t {
    kHere,        // nothing is lost
    kWaiting,     // for the next attempt
    kAsking,      // one leg
    kJoining,     // the others
    kRendezvous,  // they compare who they are
    kReady,       // all servers are in all legs, as far as this one knows
  };
  State state() const noexcept { return state_; }
  bool is_lost() const noexcept { return state_ != State::kHere; }
  bool is_due(TimeNs now) const noexcept { return state_ == State::kWaiting && now >= due_ns_; }

  void lose(TimeNs now) noexcept;
  // ---- an attempt ----
  void begin() noexcept { change(State::kWaiting, State::kAsking); }
  void join_others() noexcept { change(State::kAsking, State::kJoining); }
  void begin_rendezvous() noexcept { change(State::kJoining, State::kRendezvous); }
  void end_rendezvous() noexcept { change(State::kRendezvous, State::kReady); }
  // It came to nothing. Nothing happens where there is none.
  void fail(TimeNs now) noexcept;
  // They are in use again, wherever this one's own attempt is: it may have failed since.
  void end(TimeNs now) noexcept;

 private:
  void change(State from, State to) noexcept;

  State state_ = State::kHere;
  DurationNs wait_ns_ = 0;
  TimeNs due_ns_ = 0;
  TimeNs ended_ns_ = 0;  // the last one that succeeded; 0: none has
};

}  // namespace sluice::client

// Where a worker rests: until a time, a packet on one of its ports, or a call of another thread.
//
// DPDK's af_packet and af_xdp drivers have no receive interrupts, but their sockets can be polled,
// and so can the queues of tap. Other drivers' interrupts must be armed before a wait; armed, a
// vhost-user guest makes a system call for each burst that it sends. Each queue's are on trial
// until one has come (InterruptTrial).
#pragma once

#include <poll.h>

#include <atomic>
#include <vector>

#include "dataplane/core/idle.h"
#include "dataplane/dpdk/lane.h"

namespace sluice::dataplane {

// The sockets of this process that a packet can make readable, to be compared before and after a
// device starts.
std::vector<int> packet_sockets();

class IdleWait {
 public:
  IdleWait();
  ~IdleWait();
  IdleWait(const IdleWait&) = delete;
  IdleWait& operator=(const IdleWait&) = delete;

  // Before the first rest.
  void watch(Lane& lane);
  IdlePolicy::Woken woken() const noexcept {
    if (silent_ != 0) return IdlePolicy::Woken::kNo;
    return on_trial_ != 0 ? IdlePolicy::Woken::kPerhaps : IdlePolicy::Woken::kYes;
  }
  bool arms() const noexcept { return !queues_.empty(); }
  // What comes before this may wake nobody; until the end of the next wait, or note_work().
  void arm() noexcept;
  // A loop had work; after a rest, with the packets that should have ended it.
  void note_work() noexcept;
  // Whether a port ended it.
  bool rest(const IdlePolicy::Decision& decision, TimeNs now) noexcept;
  // Any thread, after it left work for this one. A call that crosses the beginning of a rest may be
  // missed; then the rest's end is soon enough.
  void call() noexcept {
    if (waiting_.load(std::memory_order_relaxed)) [[unlikely]]
      wake();
  }

 private:
  struct Queue {  // with interrupts
    Lane* lane;
    std::uint64_t packets;  // received when it was armed
    InterruptTrial trial;
  };
  void disarm() noexcept;
  void take_interrupts() noexcept;
  void wake() noexcept;
  pollfd& bell() noexcept { return sockets_[0]; }
  int interrupts() const noexcept { return sockets_[1].fd; }

  std::vector<pollfd> sockets_;  // the first is the bell, the second all interrupts
  std::vector<Queue> queues_;
  std::size_t silent_ = 0;    // lanes that wake nobody
  std::size_t on_trial_ = 0;  // and of which that is not known yet
  bool armed_ = false;
  bool rested_ = false;  // armed, until the time, and nothing was looked at since
  std::atomic<bool> waiting_{false};
};

// A thread that rests briefly asks to be run soon when it wakes: short slices go before long ones.
void ask_for_short_slices() noexcept;

}  // namespace sluice::dataplane

// The rest of a worker: until a time, a packet on one of its ports, or a call of another thread.
//
// DPDK's af_packet and af_xdp drivers have no receive interrupts, but their sockets can be polled,
// and so can the queues of tap. Other drivers' interrupts must be armed before a wait, and only
// then: while they are armed, a vhost-user guest makes a system call for each burst that it sends.
// The interrupts of a queue are on trial until one has come (InterruptTrial).
#pragma once

#include <poll.h>

#include <atomic>
#include <vector>

#include "dataplane/core/idle.h"
#include "dataplane/dpdk/lane.h"

namespace sluice::dataplane {

// The sockets of this process that a packet can make readable. Compared before and after a device
// starts, they show the device's socket.
std::vector<int> packet_sockets();

class IdleWait {
 public:
  IdleWait();
  ~IdleWait();
  IdleWait(const IdleWait&) = delete;
  IdleWait& operator=(const IdleWait&) = delete;

  // Adds a lane to be watched. Called before the first rest.
  void watch(Lane& lane);
  IdlePolicy::Woken woken() const noexcept {
    if (silent_ != 0) return IdlePolicy::Woken::kNo;
    return on_trial_ != 0 ? IdlePolicy::Woken::kPerhaps : IdlePolicy::Woken::kYes;
  }
  bool arms() const noexcept { return !queues_.empty(); }
  // Arms the interrupts until the end of the next wait, or note_work(). Packets that came earlier
  // may wake no thread.
  void arm() noexcept;
  // Called after a loop with work. After a rest, its packets should have ended the rest.
  void note_work() noexcept;
  // Rests as decided. Returns whether a port ended the rest.
  bool rest(const IdlePolicy::Decision& decision, TimeNs now) noexcept;
  // Ends the rest. Any thread calls it after it has left work for this worker. A call at the very
  // beginning of a rest may be missed; then the work waits until the end of the rest, which is soon
  // enough.
  void call() noexcept {
    if (waiting_.load(std::memory_order_relaxed)) [[unlikely]]
      wake();
  }

 private:
  struct Queue {  // a queue with interrupts
    Lane* lane;
    std::uint64_t packets;  // received by the queue when it was armed
    InterruptTrial trial;
  };
  void disarm() noexcept;
  void take_interrupts() noexcept;
  void wake() noexcept;
  pollfd& bell() noexcept { return sockets_[0]; }
  int interrupts() const noexcept { return sockets_[1].fd; }

  std::vector<pollfd> sockets_;  // the first is the bell, the second all interrupts
  std::vector<Queue> queues_;
  std::size_t silent_ = 0;    // lanes whose packets do not wake the worker
  std::size_t on_trial_ = 0;  // lanes of which that is not known yet
  bool armed_ = false;
  bool rested_ = false;  // it rested armed until the time, and no loop has followed
  std::atomic<bool> waiting_{false};
};

// Asks the kernel to run the thread soon when it wakes from a brief rest: it prefers threads with
// short slices.
void ask_for_short_slices() noexcept;

}  // namespace sluice::dataplane

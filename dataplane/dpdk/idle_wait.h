// Where a worker rests: until a time, a packet on one of its ports, or a call of another thread.
//
// DPDK's af_packet and af_xdp drivers have no receive interrupts, but their sockets can be polled.
#pragma once

#include <poll.h>

#include <atomic>
#include <vector>

#include "dataplane/core/idle.h"

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

  // Before the first rest; the socket is the caller's.
  void watch(int socket) { sockets_.push_back({socket, POLLIN, 0}); }
  void rest(const IdlePolicy::Decision& decision, TimeNs now) noexcept;
  // Any thread, after it left work for this one. A call that crosses the beginning of a rest may be
  // missed; then the rest's end is soon enough.
  void call() noexcept {
    if (waiting_.load(std::memory_order_relaxed)) [[unlikely]]
      wake();
  }

 private:
  void wake() noexcept;

  std::vector<pollfd> sockets_;  // the first is the bell
  std::atomic<bool> waiting_{false};
};

// A thread that rests briefly asks to be run soon when it wakes: short slices go before long ones.
void ask_for_short_slices() noexcept;

}  // namespace sluice::dataplane

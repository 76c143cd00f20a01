// The part of a switch port that one worker serves: a pair of the device's queues, an egress queue
// and a shaper, fault injection, and their counters.
//
// begin_round(), receive(), enqueue() and flush() run on the lcore that owns the lane; any thread
// may read counters().
#pragma once

#include <rte_mbuf.h>

#include <array>

#include "config/config.h"
#include "dataplane/core/counters.h"
#include "dataplane/core/egress.h"
#include "dataplane/core/fault.h"
#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

class Port;

class alignas(64) Lane {  // so that two lcores share no cache line
 public:
  // A burst may grow by duplicates and by frames that were held back.
  static constexpr std::size_t kMaxReceived = 2 * kBurst + FaultLine::kMaxHeld;
  using Burst = std::array<rte_mbuf*, kMaxReceived>;

  // The port outlives the lane. `queue` is the device's queue of both directions.
  Lane(const Port& port, std::uint16_t queue, rte_mempool* pool, TimeNs now,
       const Egress::Options& options);
  ~Lane();  // precondition: the device has stopped
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Between two rounds: other settings of the egress queue and the shaper, without a loss.
  void change(const Egress::Options& options, TimeNs now) noexcept { egress_.change(options, now); }
  // Called first in each round of the owner's loop: frames that are enqueued in this round count as
  // arrived at this time.
  void begin_round(TimeNs now) noexcept { round_began_ = now; }
  // Fills `burst` from its start and returns the number of frames. Frames are in one piece, also
  // those that the device left in several buffers. A frame may be longer than the MTU: it is not
  // forwarded, but a join in it can be refused with both sizes.
  std::size_t receive(Burst& burst, TimeNs now) noexcept;
  // Queues a frame, with the congestion mark if its class is congested. If it does not fit, drops
  // the least urgent frames.
  void enqueue(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  // Sends the frames that shaper and device take; returns how many.
  std::size_t flush(TimeNs now) noexcept;

  // When a waiting frame may be sent; the end of time if none waits.
  TimeNs due() const noexcept { return egress_.due(); }
  const Port& port() const noexcept { return port_; }
  std::uint16_t queue() const noexcept { return queue_; }
  PortCounters& counters() noexcept { return counters_; }

 private:
  std::size_t inject_rx_faults(Burst& burst, std::size_t count, TimeNs now) noexcept;
  void inject_tx_faults(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  void queue(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  void drop_all() noexcept;

  const Port& port_;
  const std::uint16_t queue_;
  rte_mempool* const pool_;
  PortCounters counters_;
  Egress egress_;
  FaultLine rx_fault_;
  FaultLine tx_fault_;
  TimeNs round_began_ = 0;
};

}  // namespace sluice::dataplane

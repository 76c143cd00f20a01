// What one worker has of a switch port: a pair of the device's queues, the port's egress queue and
// shaper, the faults injected on purpose, and what is counted of all that.
//
// begin_round(), receive(), enqueue() and flush() on the lcore that owns the lane; counters() from
// anywhere.
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

class alignas(64) Lane {  // no line of two lcores
 public:
  // A burst may grow by duplicates and by frames that had been held back.
  static constexpr std::size_t kMaxReceived = 2 * kBurst + FaultLine::kMaxHeld;
  using Burst = std::array<rte_mbuf*, kMaxReceived>;

  // Of a port that outlives it. `queue` is the device's, for both directions.
  Lane(const Port& port, std::uint16_t queue, rte_mempool* pool, TimeNs now,
       const config::Config& appliance);
  ~Lane();  // the device sends and receives no more
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // First in each round of the owner's loop: what is enqueued until the next one came at this time.
  void begin_round(TimeNs now) noexcept { round_began_ = now; }
  // Fills `burst` from its start and returns how many. Frames are in one piece, also those that the
  // device left in several buffers; some may be longer than the MTU: they are not forwarded, but a
  // join may be refused with both sizes.
  std::size_t receive(Burst& burst, TimeNs now) noexcept;
  // Queues a frame, marked if its class is congested; drops the least urgent ones when it does not
  // fit.
  void enqueue(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  // Sends what shaper and device take; returns how many frames left.
  std::size_t flush(TimeNs now) noexcept;

  // When something that waits may be sent; the end of time: nothing does.
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

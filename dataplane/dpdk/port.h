// One switch port: a DPDK device, its egress queue and shaper, and the faults injected on purpose.
//
// open() and close() on the main thread; begin_round(), receive(), enqueue() and flush() on the
// lcore that owns the port; up() and counters() from anywhere.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>

#include "aggregator/base/status.h"
#include "config/config.h"
#include "dataplane/core/counters.h"
#include "dataplane/core/egress.h"
#include "dataplane/core/fault.h"
#include "dataplane/core/mac_table.h"
#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

class Port {
 public:
  // A burst may grow by duplicates and by frames that had been held back.
  static constexpr std::size_t kMaxReceived = 2 * kBurst + FaultLine::kMaxHeld;
  using Burst = std::array<rte_mbuf*, kMaxReceived>;

  // Creates and starts the device. The message names the port and the remedy.
  static Result<std::unique_ptr<Port>> open(const config::PortConfig& config, PortIndex index,
                                            rte_mempool* pool, TimeNs now,
                                            const config::Config& appliance);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // First in each round of the owner's loop: what is enqueued until the next one came at this time.
  void begin_round(TimeNs now) noexcept { round_began_ = now; }
  // Fills `burst` from its start and returns how many. Frames are in one piece; some may be longer
  // than the MTU: they are not forwarded, but a join may be refused with both sizes.
  std::size_t receive(Burst& burst, TimeNs now) noexcept;
  // Queues a frame, marked if its class is congested; drops the least urgent ones when it does not
  // fit.
  void enqueue(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  // Sends what shaper and device take; returns how many frames left.
  std::size_t flush(TimeNs now) noexcept;

  // When something that waits may be sent; the end of time: nothing does.
  TimeNs due() const noexcept { return egress_.due(); }
  // Becomes readable when a packet comes; -1: this kind of device tells nobody.
  int wake_socket() const noexcept { return wake_socket_; }

  bool up() const noexcept { return up_.load(std::memory_order_relaxed); }
  // Asks the device what it does not tell by itself; for the control thread, a few times a second.
  void refresh() noexcept;

  PortIndex index() const noexcept { return index_; }
  std::uint32_t max_frame_bytes() const noexcept { return max_frame_bytes_; }
  const config::PortConfig& config() const noexcept { return config_; }
  PortCounters& counters() noexcept { return counters_; }
  const PortPlan& plan() const noexcept { return plan_; }
  PortRow row() const;  // for the table of all ports

 private:
  Port(const config::PortConfig& config, PortIndex index, rte_mempool* pool, TimeNs now,
       const config::Config& appliance);
  Status probe();
  Status make_plan();
  Status start();
  static int on_link_event(std::uint16_t device, int event, void* port, void*);
  void refresh_link() noexcept;  // any thread
  void look_for_lost_memory() noexcept;
  std::size_t inject_rx_faults(Burst& burst, std::size_t count, TimeNs now) noexcept;
  void inject_tx_faults(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  void queue(rte_mbuf* packet, ClassIndex egress_class) noexcept;
  void drop_all() noexcept;

  const config::PortConfig config_;
  const PortIndex index_;
  rte_mempool* const pool_;
  const std::uint32_t max_frame_bytes_;
  std::uint16_t device_ = UINT16_MAX;
  std::string vdev_name_;  // empty: not a vdev
  std::string driver_;     // as DPDK names it
  int wake_socket_ = -1;   // the driver's
  DeviceOffers offers_;
  PortPlan plan_;
  bool tells_link_ = false;  // an event comes when the link changes
  bool started_ = false;
  std::mutex link_mutex_;        // asking for the link and noting the answer are one step
  std::atomic<bool> up_{false};  // written under link_mutex_
  bool memory_lost_ = false;     // under link_mutex_: the peer's, until it disconnects
  std::uint32_t faults_seen_ = 0;

  PortCounters counters_;
  Egress egress_;
  FaultLine rx_fault_;
  FaultLine tx_fault_;
  TimeNs round_began_ = 0;
};

}  // namespace sluice::dataplane

// A worker: the loop of one lcore over its lanes, its shard and its part of the switch.
//
// Each shard, and each lane of a port, has exactly one owning worker; a port has a lane for one
// worker or for each of them (port.h). Frames for another worker are handed over through its inbox,
// a bounded ring that any thread may fill. Apart from that, threads share only constants, the path
// table and counters. A worker's round for its shard is serve_shard(); frames.cc handles received
// frames, worker.cc has the rest.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "aggregator/appliance/arrivals.h"
#include "aggregator/appliance/intake.h"
#include "aggregator/appliance/rounds.h"
#include "config/config.h"
#include "dataplane/core/flow_cache.h"
#include "dataplane/core/forwarding.h"
#include "dataplane/core/steer.h"
#include "dataplane/dpdk/idle_wait.h"
#include "dataplane/dpdk/port.h"
#include "dataplane/dpdk/traffic.h"
#include "dataplane/host/paths.h"

namespace sluice::dataplane {

class Worker;

// The context that all threads of the data plane share. Complete before the first of them starts,
// then constant, but for `traffic`.
struct Context {
  OwnAddress own;
  // The published traffic settings; main thread writes, workers read it once a round.
  std::atomic<const Traffic*> traffic{nullptr};
  config::Polling polling{};
  bool forwarding = true;
  bool shares_payloads = false;  // true if some port does, see PortPlan
  std::size_t mac_entries = 0;
  DurationNs mac_age_ns = 0;
  std::size_t max_datagram_bytes = 0;  // UDP payload that fits a buffer behind the longest headers
  std::vector<std::unique_ptr<Port>> ports;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<PathTable> paths;
  PoolPtr pool;
  // Rings to the control thread, of rte_mbuf*. Members' packets are drained first and completely.
  // Joins, and other packets without a member's cookie, have a budget each.
  RingPtr from_members;
  RingPtr joins;
  RingPtr unauthenticated;

  Worker& owner_of(PortIndex port) const noexcept { return *workers[ports[port]->owner()]; }
};

TimeNs now_ns() noexcept;

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> create(Context& context, std::uint16_t index);
  ~Worker();

  void start();
  void stop();  // returns when the thread has ended

  // Any thread: hands a buffer with its PacketMeta to this worker. False: the inbox is full, and
  // the buffer is still the caller's.
  bool hand_over(rte_mbuf* packet) noexcept;
  // Control thread. False: the ring is full, and the caller tries again later.
  bool post(const agg::ShardCommand& command) noexcept;
  // Control thread: the shard's next event, if any.
  bool poll_event(agg::ShardEvent& event) noexcept;
  // Any thread: tells this worker on which port an address was seen.
  void tell(const MacTable::Key& key, PortIndex port) noexcept;

  // Any thread: the traffic settings by which the worker goes. It reads no older ones any more.
  const Traffic* adopted() const noexcept { return adopted_.load(std::memory_order_acquire); }
  void wake() noexcept { idle_wait_.call(); }

  const LcoreCounters& counters() const noexcept { return counters_; }
  const agg::Shard& shard() const noexcept { return shard_; }

 private:
  struct ShardDriver;  // see serve_shard()
  struct MacUpdate {
    MacTable::Key key;
    PortIndex port;
    std::uint8_t unused[3];
  };
  static_assert(sizeof(MacUpdate) % 4 == 0);

  Worker(Context& context, std::uint16_t index);
  void run();
  std::size_t loop(TimeNs now) noexcept;
  TimeNs due() const noexcept;
  std::size_t poll_lane(Lane& lane, TimeNs now) noexcept;
  std::size_t poll_inbox(TimeNs now) noexcept;
  std::size_t poll_mac_updates(TimeNs now) noexcept;
  std::span<agg::Transmit> tx_buffers() noexcept;
  rte_mbuf* share_payload(std::span<const agg::Transmit> rest) noexcept;
  void send_of_shard(rte_mbuf* packet, rte_mbuf* payload, const agg::Transmit& transmit) noexcept;
  void notice_links() noexcept;
  void adopt(const Traffic& traffic, TimeNs now) noexcept;

  // Each takes ownership of the packet.
  void handle_frame(Lane& lane, rte_mbuf* packet, TimeNs now) noexcept;
  PortMask ports_that_carry(const wire::EthernetView& view, PortMask out) const noexcept;
  void forward(Lane& in, const ForwardDecision& decision, const wire::EthernetView& view,
               rte_mbuf* packet) noexcept;
  void handle_own(Lane& lane, wire::Frame& frame, MacTable::Learned learned, rte_mbuf* packet,
                  TimeNs now) noexcept;
  void to_shard(Lane& lane, const wire::Datagram& datagram, ShardId shard, rte_mbuf* packet,
                TimeNs now) noexcept;
  void handle_control(Lane& lane, const wire::Frame& frame, rte_mbuf* packet, TimeNs now) noexcept;
  void to_control(Lane& lane, agg::PuntReason reason, PacketMeta::Kind kind, std::uint64_t sender,
                  rte_mbuf* packet, TimeNs now) noexcept;
  void answer(Lane& lane, const wire::Frame& frame, rte_mbuf* packet, TimeNs now) noexcept;
  // `losses` counts the packet if the port is another worker's and the inbox of that worker is
  // full.
  void send(PortIndex port, ClassIndex egress_class, rte_mbuf* packet,
            DropCounters& losses) noexcept;
  void drop(Lane& lane, DropReason reason, rte_mbuf* packet) noexcept;

  void arrive(const wire::Datagram& datagram, rte_mbuf* packet, TimeNs now) noexcept;
  void finish_arrivals(TimeNs now) noexcept;

  Context& context_;
  const std::uint16_t index_;
  const Traffic* traffic_;
  std::atomic<const Traffic*> adopted_;
  std::vector<Lane*> lanes_;
  std::vector<agg::Intake>
      intakes_;  // one for each port, used for the ports that this worker serves
  PortMask up_ = 0;
  agg::Shard shard_;
  Routes routes_;
  MacTable macs_;
  FlowCache flows_;
  RingPtr inbox_;        // rte_mbuf*
  RingPtr commands_;     // agg::ShardCommand
  RingPtr events_;       // agg::ShardEvent, to the control thread
  RingPtr mac_updates_;  // MacUpdate
  // Buffers for the shard's next datagrams, and a Transmit for each. The first `used_` are used up.
  Lane::Burst spares_{};
  std::array<agg::Transmit, kBurst> outgoing_;
  std::size_t used_ = kBurst;
  Lane::Burst burst_{};
  IdleWait idle_wait_;
  // The buffers of datagrams that have arrived for the shard, until it has handled them.
  Lane::Burst arrived_{};
  std::size_t arrived_count_ = 0;
  LcoreCounters counters_;
  agg::Arrivals arrivals_{shard_, counters_.verdicts};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace sluice::dataplane

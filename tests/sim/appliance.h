// The appliance without its dataplane: the production agg::Appliance on simulated threads. Each
// thread has a receive queue, wakes after a random delay, and exchanges mail with the other
// threads, which is delayed too.
//
// Frames go in and come out. The production code of wire/inet.h checks and builds them. The object
// keeps the path of each member, as the dataplane does. The world owns it and calls it from its
// events.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "aggregator/wire/inet.h"
#include "tests/sim/frame_pool.h"

namespace sluice::sim {

class World;

struct ApplianceOptions {
  agg::JobsOptions jobs;
  std::uint16_t port = kDefaultPort;
  std::size_t max_datagram_bytes = 1452;
  DurationNs service_delay_ns = 2 * kMicrosecond;  // at most; drawn for each wake-up
  DurationNs command_delay_ns = 2 * kMicrosecond;  // at most; control to shard and back
  std::uint32_t burst = 32;                        // packets a round of a shard
  // How fast a helper thread makes the memory of jobs and frees it; 0: at once, on the control
  // thread. A small job stands for a big one when this is slow.
  std::uint64_t memory_bytes_per_second = 0;
};

class Appliance {
 public:
  // `boot`: of the world's appliances at this address, one after another. The world gives nobody
  // the events of one that is no more.
  Appliance(World& world, ApplianceOptions options, const wire::IpAddress& address,
            std::uint32_t boot);

  void receive(FrameIndex frame, TimeNs now);
  void service_control(TimeNs now);
  void service_shard(std::uint16_t shard, TimeNs now);
  void deliver_command(std::uint16_t shard, TimeNs now);
  void deliver_event(std::uint16_t shard, TimeNs now);
  void tick(TimeNs now);
  void shutdown(TimeNs now);
  void drain(TimeNs now);
  // The process is killed: what waits for it is lost.
  void power_off();
  // The control thread, or the lcore of a shard, does not run before `until`: what is meant for it
  // waits, and its clock has moved on when it returns.
  void pause_control(TimeNs until) { control_.pause(until); }
  void pause_shard(std::uint16_t shard, TimeNs until) { lcores_[shard].pause(until); }
  // A host reports that nothing listens at the port of one of our datagrams, and quotes the
  // datagram's head.
  void quoted_unreachable(const wire::CommonHeader& quoted, TimeNs now);
  // The switch knows that the process behind this UDP port is gone, as when a vhost-user socket
  // closes.
  void unreachable(std::uint16_t worker_port, TimeNs now);

  bool control_is_away(TimeNs now) const { return now < control_.back_ns; }
  agg::Jobs& jobs() { return core_.jobs(); }
  std::uint16_t shard_count() const { return options_.jobs.shard_count; }
  const ApplianceOptions& options() const { return options_; }
  const wire::IpAddress& address() const { return address_; }
  const wire::Mac& mac() const { return mac_; }
  // Datagrams with this verdict, wherever it was given: at the frame's headers, at parse, at a
  // shard or at control.
  std::uint64_t count(Verdict verdict) const;
  std::size_t waiting_frames() const;
  // The time that all orders for memory have taken or will take.
  DurationNs making_ns() const { return making_ns_; }
  // I7 at the appliance: every frame has one verdict or waits. Empty when that holds.
  std::string unbalanced() const;

 private:
  struct Thread {
    std::deque<FrameIndex> received;
    bool awake = false;         // a round is scheduled
    TimeNs back_ns = 0;         // away until then
    std::uint64_t handled = 0;  // packets

    void pause(TimeNs until) { back_ns = std::max(back_ns, until); }
  };
  struct ControlOut;
  struct ShardOut;

  void wake_control(TimeNs now);
  void wake_shard(std::uint16_t shard, TimeNs now);
  void handle_control(FrameIndex frame, TimeNs now);
  void handle_data(std::uint16_t shard, FrameIndex frame, TimeNs now);
  void serve_control(TimeNs now);
  void order_memory(TimeNs now);
  void deliver_memory(TimeNs now);
  void send(const wire::UdpPath& path, std::span<const std::uint8_t> bytes, Priority priority,
            TimeNs now);
  const agg::Job* store_of(JobId id) const;  // null: it is no store, or there is none
  std::optional<wire::UdpPath> path_of(JobId job, Rank rank, std::uint16_t source_port) const;

  World& world_;
  const std::uint32_t boot_;
  ApplianceOptions options_;
  wire::IpAddress address_;
  wire::Mac mac_;
  agg::Appliance core_;
  Thread control_;
  std::vector<Thread> lcores_;  // one a shard
  // The orders of the helper thread, oldest first.
  struct Making {
    agg::MemoryOrder order;
    TimeNs started_ns = 0;
    TimeNs done_ns = 0;
  };
  std::deque<Making> making_;
  DurationNs making_ns_ = 0;
  std::uint32_t full_rounds_ = 0;  // rounds of the control thread in a row that sent all they may
  std::uint64_t frames_in_ = 0;
  VerdictCounters frame_verdicts_;  // dropped before a shard or the control thread saw them
  std::map<std::pair<std::uint16_t, std::uint16_t>, wire::UdpPath> paths_;  // (job, rank)
  std::vector<std::uint8_t> buffer_;
  agg::TxBuffers tx_buffers_;
};

}  // namespace sluice::sim

// The control thread: joins, keepalives, liveness, the end of jobs. Owns agg::Jobs.
//
// Lcore workers hand control packets to it through bounded rings; it hands its own datagrams to the
// lcore worker that owns the member's port. It also watches links, since a vhost-user socket that
// closes is the first sign of a dead worker process.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aggregator/appliance/intake.h"
#include "aggregator/appliance/rounds.h"
#include "dataplane/dpdk/memory_thread.h"
#include "dataplane/dpdk/worker.h"

namespace sluice::dataplane {

class Control {
 public:
  using Inspection = std::function<void(agg::Jobs&, TimeNs)>;  // it may change them too

  Control(Context& context, agg::JobsOptions options);
  ~Control();

  void start();
  // Tells all members that the appliance is ending, waits until the notices are sent, and ends the
  // thread.
  void stop();

  // Any thread: see Appliance::drain() and is_drained().
  void drain() noexcept { drain_.store(true, std::memory_order_relaxed); }
  bool is_draining() const noexcept { return drain_.load(std::memory_order_relaxed); }
  bool is_drained() const noexcept { return drained_.load(std::memory_order_relaxed); }

  // Any thread but the control thread: runs `inspection` on the control thread, between two rounds,
  // and returns when it is done. False: the thread does not run.
  bool inspect(const Inspection& inspection);

  // Verdicts of control packets that are not valid; the jobs count those of valid packets.
  const VerdictCounters& verdicts() const noexcept { return verdicts_; }
  // Datagrams of the control side that never reached a port.
  const DropCounters& drops() const noexcept { return drops_; }

 private:
  struct Driver;  // see agg::serve_control()
  // Allows `per_second` messages of one kind in a second.
  struct LogLimit {
    TimeNs window_start = 0;
    int count = 0;
    bool allow(TimeNs now, int per_second) noexcept;
  };

  void run();
  std::size_t loop(TimeNs now);
  std::size_t poll_packets(TimeNs now);
  std::size_t take_packets(rte_ring& ring, std::size_t most, TimeNs now);
  void poll_unauthenticated(rte_ring& ring, const agg::RateLimit& limit, agg::Budget& budget,
                            TimeNs now);
  std::size_t serve(TimeNs now);
  void handle_packet(rte_mbuf* packet, TimeNs now);
  void handle_control(const wire::Frame& frame, Port& port, TimeNs now);
  void handle_unreachable(const wire::Frame& frame, TimeNs now);
  void handle_conflict(const wire::Frame& frame, Port& port, TimeNs now);
  void note_result(const agg::ControlResult& result, const std::string& address, TimeNs now);
  void watch_ports(TimeNs now);
  void watch_jobs(TimeNs now);
  void watch_address(TimeNs now);
  void watch_drain(TimeNs now);
  void suspect_behind(PortIndex port, TimeNs now);
  void send(const MemberPath& path, wire::Bytes datagram);
  void run_inspections(TimeNs now);
  void answer_inspections(TimeNs now);  // under mutex_
  void drain_notices();
  void finish_inspections();

  Context& context_;
  agg::Jobs jobs_;
  VerdictCounters verdicts_;
  DropCounters drops_;
  // Commands for which a worker's ring had no room yet; a queue for each worker keeps their order.
  std::vector<std::deque<agg::ShardCommand>> backlog_;
  MemoryThread small_jobs_;  // so that no small job waits while a big job's memory is allocated
  MemoryThread big_jobs_;
  std::vector<std::uint64_t> link_changes_;         // of each port, as seen last
  std::map<std::uint16_t, std::string> announced_;  // job id -> its last log line
  std::array<std::uint8_t, kMaxDatagramBytes> reply_{};
  TimeNs next_tick_ns_ = 0;
  TimeNs next_watch_ns_ = 0;
  TimeNs next_probe_ns_ = 0;
  agg::Budget join_budget_;
  agg::Budget unauthenticated_budget_;
  LogLimit refusals_;
  LogLimit conflicts_;

  TimeNs drain_since_ns_ = 0;
  TimeNs drained_told_ns_ = 0;  // when the jobs that hold up a drain were logged last; 0: no drain

  std::atomic<bool> stop_{false};
  std::atomic<bool> drain_{false};
  std::atomic<bool> drained_{false};  // written by the control thread
  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<std::pair<std::uint64_t, Inspection>> inspections_;  // under mutex_
  std::uint64_t next_ticket_ = 1;                                 // under mutex_
  std::uint64_t done_ticket_ = 0;                                 // under mutex_
  bool running_ = false;                                          // under mutex_
  std::thread thread_;
};

}  // namespace sluice::dataplane

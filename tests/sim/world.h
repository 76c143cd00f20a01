// The whole system in one thread: an appliance, hosts with their cables, worker processes, one
// event queue, one source of randomness, one clock that jumps from event to event.
//
// Tests build a world, add runs of jobs, script the network through a filter or link options, and
// run until something holds. Everything is a function of the options; trace_hash() proves it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/appliance.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/frame_pool.h"
#include "tests/sim/link.h"
#include "tests/sim/oracle.h"
#include "tests/sim/plan.h"
#include "tests/sim/store_books.h"
#include "tests/sim/store_oracle.h"
#include "tests/sim/worker.h"

namespace sluice::sim {

struct WorldOptions {
  std::uint64_t seed = 1;
  bool ipv6 = false;
  ApplianceOptions appliance;
  // A second one, at an address of its own, where jobs that have both move.
  bool standby = false;
  LinkOptions uplink;
  LinkOptions downlink;
  std::uint32_t socket_frames = 92;               // Linux's default receive buffer
  DurationNs worker_delay_ns = 5 * kMicrosecond;  // up to; wake-up of a progress thread
  bool unreachable_hints = true;  // hosts answer for closed ports, and the appliance hears it
  std::uint64_t max_events = 20'000'000;
};

enum class Direction : std::uint8_t { kToAppliance, kToWorker };

// Of a datagram on its way.
struct Way {
  Direction direction{};
  Worker* worker = nullptr;       // sender or receiver
  std::size_t box = 0;            // the appliance
  std::uint16_t port_offset = 0;  // of the appliance's end: 0 control, 1 + shard
};

// The datagram, for a scripted network. The filter reads the members up to `now` and sets the
// others.
struct Passing : Way {
  Passing(const Way& way, const wire::Packet& what, TimeNs when)
      : Way(way), packet(what), now(when) {}

  const wire::Packet& packet;
  TimeNs now = 0;

  bool drop = false;
  std::uint32_t copies = 1;
  DurationNs delay_ns = 0;              // of all copies
  std::vector<DurationNs> late_copies;  // further copies, each this much later
};
using Filter = std::function<void(Passing&)>;

class World {
 public:
  explicit World(WorldOptions options);

  // ---- set-up ----
  // Adds a job's run with one host a rank (or the hosts of `same_hosts_as`); its workers start by
  // themselves at now + start_at.
  RunIndex add_run(JobPlan plan);
  RunIndex add_run_on(JobPlan plan, RunIndex same_hosts_as);
  // Starts another process for a rank of a run, on the host of the last one.
  Worker& add_worker(RunIndex run, Rank rank, TimeNs start_at);
  void set_filter(Filter filter) { filter_ = std::move(filter); }
  void at(TimeNs time, std::function<void()> action);

  // ---- running ----
  bool step();  // one event; false when none is left or the invariants are broken
  void run_until(TimeNs time);
  bool run_until(const std::function<bool()>& holds, TimeNs deadline);
  bool run_until_done(RunIndex run, TimeNs deadline);
  TimeNs now() const { return now_; }
  // Checks I4 to I7 at rest. Adds to the violations.
  void check_at_end();

  // ---- faults ----
  void kill(Worker& worker, bool host_too);
  void pause(Worker& worker);
  void resume(Worker& worker) { worker.resume(now_); }
  void start_host(HostIndex host) { host_up_[host] = true; }
  void partition(HostIndex host, bool on);
  // The worker's address translator forgets it: its packets come from another port from now on, and
  // packets to the old port are lost.
  void rebind(Worker& worker);
  // The appliance sees the port of this process go down or up, as when a vhost-user socket closes
  // or opens: a hint that the process is gone.
  void show_port_change(const Worker& worker);
  void block_downlink(HostIndex host, bool on);
  void set_link_options(const LinkOptions& up, const LinkOptions& down);
  // Nothing passes between the host and that appliance.
  void cut(HostIndex host, std::size_t box, bool on);
  // Its process is killed, and started again without its memory.
  void stop_appliance(std::size_t box = 0);
  void start_appliance(std::uint64_t boot_seed, std::size_t box = 0);
  // A datagram or a frame from a stranger.
  void inject(const wire::UdpPath& path, std::span<const std::uint8_t> datagram);
  void inject_frame(std::span<const std::uint8_t> frame);
  // A datagram to a worker, as if from the appliance.
  void inject_to_worker(Worker& worker, std::span<const std::uint8_t> datagram);

  // ---- parts ----
  Worker& worker(RunIndex run, Rank rank);  // the latest process of that rank
  Worker& worker(RunIndex run, std::uint16_t rank) { return worker(run, Rank{rank}); }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  const JobPlan& plan(RunIndex run) const { return runs_[run]->plan; }
  // How often the run has moved to another appliance, as the first rank there says.
  std::uint32_t epoch(RunIndex run) const { return runs_[run]->epoch; }
  Link& uplink(HostIndex host) { return *links_[2 * host]; }
  Link& downlink(HostIndex host) { return *links_[2 * host + 1]; }
  Appliance& appliance(std::size_t box = 0) { return *boxes_[box].appliance; }
  Oracle& oracle() { return oracle_; }
  StoreOracle& stores() { return stores_; }
  StoreBooks& books() { return books_; }
  const WorldOptions& options() const { return options_; }
  std::uint64_t trace_hash() const { return trace_hash_; }
  std::uint64_t event_count() const { return event_count_; }
  std::uint64_t dropped_corrupt() const { return dropped_corrupt_; }
  // UDP payload bytes that the appliance sent to strangers.
  std::uint64_t stranger_bytes() const { return stranger_bytes_; }
  bool healthy() const { return oracle_.violations().empty(); }
  std::string report() const;  // the violations, one a line
  wire::UdpPath path_to_appliance(const Worker& worker, std::uint16_t port_offset,
                                  std::size_t box = 0) const;

  // ---- called by the parts ----
  // A worker of the run has taken its last step, or never will. After the last such worker, those
  // of Ending::kTogether leave.
  void note_over(RunIndex run);
  EventQueue& events() { return events_; }
  FramePool& pool() { return pool_; }
  DurationNs draw_delay(DurationNs max_ns) { return max_ns > 0 ? random_.between(0, max_ns) : 0; }
  void send_from_worker(Worker& worker, const client::Transmit& transmit,
                        std::span<const std::uint8_t> bytes, TimeNs now);
  void send_to_worker(FrameIndex frame, std::uint16_t port, std::span<const std::uint8_t> bytes,
                      TimeNs now);
  void on_heard(std::uint16_t port, const wire::Packet& packet);
  // `store`: the sending job, if it is a store.
  void on_shard_sent(std::uint16_t shard, std::uint16_t port, std::span<const std::uint8_t> bytes,
                     const agg::Job* store = nullptr);

 private:
  struct Place {
    std::uint32_t boot = 0;
    std::uint16_t job = 0;
    std::uint32_t epoch = 0;
    bool operator==(const Place&) const = default;
  };
  struct Run {
    JobPlan plan;
    client::Layout layout;
    std::vector<HostIndex> hosts;
    std::vector<WorkerIndex> latest;
    std::uint32_t epoch = 0;    // the highest of a member; with k < n of a job that has begun
    std::vector<Place> places;  // with k < n, one after another
    bool restarts = false;      // its appliance is down

    // Which of its places it is; a new one is its last.
    std::uint32_t enter(const Place& place);
  };

  RunIndex add_run(JobPlan plan, std::vector<HostIndex> hosts);
  HostIndex add_host();
  void dispatch(const SimEvent& event);
  void arrive(std::uint32_t link, FrameIndex frame);
  void arrive_at_host(HostIndex host, FrameIndex frame);
  void send_filtered(Link& link, FrameIndex frame, const Way& way,
                     std::span<const std::uint8_t> bytes, TimeNs now);
  // `data`: for a shard.
  void note_epoch(Worker& worker, const wire::Packet& packet, bool data);
  Worker* worker_at(std::uint16_t port);
  std::uint16_t public_port(const Worker& worker) const;
  void note_unreliable(HostIndex host);
  Appliance* booted(std::uint32_t boot) const;  // null: it is no more
  bool is_cut(HostIndex host, const wire::IpAddress& box) const;
  std::optional<std::size_t> box_at(const wire::IpAddress& address) const;
  // kBefore only for sums of synchronous jobs: pieces, and all with k < n, are kNowhere then.
  Oracle::Appliance appliance_of(RunIndex run, const wire::Packet& packet) const;

  WorldOptions options_;
  Random random_;
  EventQueue events_;
  FramePool pool_;
  Oracle oracle_;
  StoreOracle stores_{oracle_};
  StoreBooks books_{oracle_};
  TimeNs now_ = 0;
  std::uint64_t trace_hash_ = 0;
  std::uint64_t event_count_ = 0;
  std::uint64_t dropped_corrupt_ = 0;
  std::uint64_t stranger_bytes_ = 0;
  struct Box {
    std::unique_ptr<Appliance> appliance;
    bool up = false;
    std::uint32_t boot = 0;  // no other process of any box has it
  };
  std::vector<Box> boxes_;
  std::uint32_t boots_ = 0;
  std::set<std::pair<HostIndex, std::size_t>> cuts_;
  std::map<std::pair<RunIndex, Cookie>, std::uint32_t> epochs_;  // with which it was given
  std::vector<std::unique_ptr<Run>> runs_;
  std::vector<std::unique_ptr<Link>> links_;  // two a host: up, down
  std::vector<bool> host_up_;
  std::vector<WorkerIndex> rebound_;  // whose port is kFirstReboundPort + index here, the last one
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::function<void()>> actions_;
  // Of datagrams that reached no process, with the box that sent them.
  std::vector<std::pair<wire::CommonHeader, std::size_t>> quotes_;
  Filter filter_;
};

}  // namespace sluice::sim

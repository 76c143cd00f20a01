// Sessions against the real agg::Appliance over a network of a few lines: delay, loss, duplicates
// and jitter from a seed. For tests of the session; the simulator proper is tests/sim.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "client/core/session.h"
#include "tests/sim/random.h"

namespace sluice::client {

struct WorldOptions {
  std::uint16_t workers = 4;
  std::uint16_t shards = 1;
  std::size_t chunk_bytes = 256;
  std::vector<TensorSpec> tensors{{"a", 1000, Dtype::kFloat32}, {"b", 10, Dtype::kFloat32}};
  Dtype wire = Dtype::kFloat32;
  PruneOptions prune;
  AveragingChoice averaging{};
  DurationNs delay_ns = 100 * kMicrosecond;
  DurationNs jitter_ns = 0;  // uniform extra delay of a packet: reorders
  double loss = 0;           // of data packets, each way
  double duplicates = 0;
  std::uint64_t seed = 1;
  std::uint32_t receive_credit_packets = 64;
  PolicyOptions policy;
  std::optional<StoreOptions> store;
  RequestPolicy requests{};
  DurationNs member_timeout_ns = kDefaultMemberTimeout;
  DurationNs resync_hold_ns = kDefaultResyncHold;
  DurationNs appliance_ahead_ns = 0;  // its clock is not the workers'
  bool trace = false;
};

class SmallWorld {
 public:
  explicit SmallWorld(WorldOptions options)
      : options_(options),
        random_(options.seed),
        appliance_({.jobs = {.shard_count = options.shards,
                             .member_timeout_ns = options.member_timeout_ns,
                             .resync_hold_ns = options.resync_hold_ns}}) {
    sessions_.resize(options.workers);
    events_.resize(options.workers);
    traces_.resize(options.workers);
    stopped_.resize(options.workers);
    for (std::uint16_t rank = 0; rank < options.workers; ++rank) add_worker(rank);
  }

  Session& session(std::size_t rank) { return *sessions_[rank]; }
  std::vector<Event>& events(std::size_t rank) { return events_[rank]; }
  const std::vector<TensorTimes>& traces(std::size_t rank) const { return traces_[rank]; }
  TimeNs now() const { return now_; }
  std::uint64_t wakeups() const { return wakeups_; }
  // Packets for which it returns true are lost. `up`: from worker to appliance.
  std::function<bool(bool up, std::uint16_t rank, const wire::Packet& packet)> drop;
  // A packet of a worker has reached the appliance.
  std::function<void(std::uint16_t rank, const wire::Packet& packet)> arrived;
  // Plays the applications: called after every event. Returns the time of its next call.
  std::function<TimeNs()> application;

  // Stops the rank as SIGSTOP does: nothing runs, the socket buffer holds what the credit allows,
  // and the rest is lost.
  void stop(std::uint16_t rank) { stopped_[rank].active = true; }
  bool stopped(std::uint16_t rank) const { return stopped_[rank].active; }
  void resume(std::uint16_t rank) {
    stopped_[rank].active = false;
    for (const auto& bytes : std::exchange(stopped_[rank].buffer, {}))
      sessions_[rank]->handle_datagram(bytes, now_);
    drain();
  }
  // Another process takes the rank; the old one has gone without a LEAVE.
  void restart(std::uint16_t rank) {
    stopped_[rank] = {};
    events_[rank].clear();
    add_worker(rank);
    drain();
  }

  std::size_t count(std::size_t rank, Event::Kind kind) const {
    std::size_t total = 0;
    for (const Event& event : events_[rank]) total += event.kind == kind;
    return total;
  }
  bool all_have(Event::Kind kind, std::size_t times) const {
    for (std::size_t rank = 0; rank < sessions_.size(); ++rank)
      if (count(rank, kind) < times) return false;
    return true;
  }
  std::string first_failure() const {
    for (const auto& events : events_)
      for (const Event& event : events)
        if (event.kind == Event::Kind::kFailed) return event.status.message();
    return {};
  }

  // Runs until `done`, or for `limit_ns`. Returns whether it is done.
  bool run(const std::function<bool()>& done, DurationNs limit_ns) {
    const TimeNs end_ns = now_ + limit_ns;
    drain();
    while (!done()) {
      TimeNs next_ns = appliance_.next_tick_ns() - options_.appliance_ahead_ns;
      if (!network_.empty()) next_ns = std::min(next_ns, network_.top().at_ns);
      next_ns = std::min(next_ns, application_ns_);
      for (std::size_t rank = 0; rank < sessions_.size(); ++rank)
        if (!stopped_[rank].active) next_ns = std::min(next_ns, sessions_[rank]->next_timeout());
      if (next_ns > end_ns) return false;
      now_ = std::max(now_, next_ns);
      step();
    }
    return true;
  }
  bool run_until(Event::Kind kind, std::size_t times, DurationNs limit_ns) {
    return run([&] { return all_have(kind, times); }, limit_ns);
  }

 private:
  struct Datagram {
    TimeNs at_ns = 0;
    std::uint64_t order = 0;
    bool up = false;
    std::uint16_t rank = 0;
    std::uint16_t port_offset = 0;
    std::vector<std::uint8_t> bytes;
    bool operator<(const Datagram& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };

  void add_worker(std::uint16_t rank) {
    auto layout = Layout::create(options_.tensors, options_.chunk_bytes, options_.wire);
    SessionOptions session_options{.job_name = "job",
                                   .run_id = 7,
                                   .rank = Rank{rank},
                                   .world_size = options_.workers,
                                   .appliance_address = "10.0.0.1:7700",
                                   .nonce = next_nonce_++,
                                   .averaging = options_.averaging,
                                   .receive_credit_packets = options_.receive_credit_packets,
                                   .path_datagram_bytes = 9000,
                                   .policy = options_.policy,
                                   .has_policy = options_.policy.tolerates_stragglers(),
                                   .trace = options_.trace,
                                   .prune = options_.prune,
                                   .store = options_.store,
                                   .requests = options_.requests};
    sessions_[rank] = std::make_unique<Session>(session_options, std::move(layout).value(), now_);
  }

  void send(Datagram datagram) {
    wire::Packet packet;
    if (!ok(wire::parse(datagram.bytes, packet))) std::abort();
    const bool data = static_cast<int>(packet.type()) >= 16;
    if (drop && drop(datagram.up, datagram.rank, packet)) return;
    if (data && random_.chance_ppm(ppm(options_.loss))) return;
    const int copies = data && random_.chance_ppm(ppm(options_.duplicates)) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      Datagram sent = datagram;
      sent.at_ns = now_ + options_.delay_ns;
      if (options_.jitter_ns != 0)
        sent.at_ns +=
            static_cast<DurationNs>(random_.below(static_cast<std::uint64_t>(options_.jitter_ns)));
      sent.order = next_order_++;
      network_.push(std::move(sent));
    }
  }

  void step() {
    ++wakeups_;
    while (!network_.empty() && network_.top().at_ns <= now_) {
      const Datagram datagram = network_.top();
      network_.pop();
      Stopped& stopped = stopped_[datagram.rank];
      if (datagram.up)
        deliver_up(datagram);
      else if (!stopped.active)
        sessions_[datagram.rank]->handle_datagram(datagram.bytes, now_);
      else if (stopped.buffer.size() < options_.receive_credit_packets)
        stopped.buffer.push_back(datagram.bytes);
    }
    for (std::size_t rank = 0; rank < sessions_.size(); ++rank)
      if (!stopped_[rank].active && sessions_[rank]->next_timeout() <= now_)
        sessions_[rank]->handle_timeout(now_);
    drain();
  }

  void deliver_up(const Datagram& datagram) {
    wire::Packet packet;
    if (!ok(wire::parse(datagram.bytes, packet))) std::abort();
    if (arrived) arrived(datagram.rank, packet);
    if (datagram.port_offset != 0) {
      appliance_.handle_data(datagram.port_offset - 1, packet, false, appliance_now());
      return;
    }
    const std::string address = "10.0.0." + std::to_string(10 + datagram.rank) + ":4000";
    const agg::Origin origin{.address = address, .max_datagram_bytes = 9000};
    const auto result = appliance_.handle_control(packet, origin, buffer_, appliance_now());
    if (result.reply_bytes != 0) send_down(datagram.rank, {buffer_.data(), result.reply_bytes});
  }

  void send_down(std::uint16_t rank, std::span<const std::uint8_t> bytes) {
    send({.rank = rank, .bytes = {bytes.begin(), bytes.end()}});
  }

  // Lets every part send all that it has.
  void drain() {
    appliance_.pump(appliance_now(), [this](const agg::Transmit& to, auto bytes) {
      send_down(to.rank.value, bytes);
    });
    poll_events();
    if (application) application_ns_ = application();
    poll_events();
    for (std::uint16_t rank = 0; rank < sessions_.size(); ++rank) {
      if (stopped_[rank].active) continue;
      Transmit transmit;
      while (sessions_[rank]->poll_transmit(transmit, buffer_, now_)) {
        const std::span<const std::uint8_t> bytes = gather(transmit, buffer_);
        send({.up = true,
              .rank = rank,
              .port_offset = transmit.port_offset,
              .bytes = {bytes.begin(), bytes.end()}});
      }
    }
    poll_events();
  }

  void poll_events() {
    Event event;
    TensorTimes times;
    for (std::size_t rank = 0; rank < sessions_.size(); ++rank)
      while (!stopped_[rank].active && sessions_[rank]->poll_trace(times))
        traces_[rank].push_back(times);
    for (std::size_t rank = 0; rank < sessions_.size(); ++rank)
      while (!stopped_[rank].active && sessions_[rank]->poll_event(event))
        events_[rank].push_back(event);
  }

  struct Stopped {
    bool active = false;
    std::vector<std::vector<std::uint8_t>> buffer;
  };

  static std::uint64_t ppm(double share) { return static_cast<std::uint64_t>(share * 1e6); }
  TimeNs appliance_now() const { return now_ + options_.appliance_ahead_ns; }

  const WorldOptions options_;
  sim::Random random_;
  agg::Appliance appliance_;
  TimeNs now_ = kSecond;
  TimeNs application_ns_ = kNever;
  std::uint64_t next_order_ = 0;
  std::uint64_t next_nonce_ = 100;
  std::uint64_t wakeups_ = 0;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::vector<Event>> events_;
  std::vector<std::vector<TensorTimes>> traces_;
  std::vector<Stopped> stopped_;
  std::priority_queue<Datagram> network_;
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(kMaxDatagramBytes);
};

}  // namespace sluice::client

#include "tests/sim/world.h"

#include <utility>

#include "aggregator/base/check.h"

namespace sluice::sim {
namespace {

constexpr std::uint16_t kFirstWorkerPort = 20'000;  // worker i binds kFirstWorkerPort + i
constexpr std::uint16_t kFirstReboundPort = 50'000;
constexpr DurationNs kTickInterval = 50 * kMillisecond;
constexpr DurationNs kHintDelay = 100 * kMicrosecond;

wire::IpAddress host_address(HostIndex host, bool ipv6) {
  const auto high = static_cast<std::uint8_t>(host >> 8);
  const auto low = static_cast<std::uint8_t>(host);
  if (!ipv6) return wire::ipv4_address(10, 1, high, static_cast<std::uint8_t>(low + 1));
  wire::IpAddress address{wire::Family::kIpv6, {0xfd, 1}};
  address.bytes[14] = high;
  address.bytes[15] = static_cast<std::uint8_t>(low + 1);
  return address;
}

// The worker that has, or had, this port; beyond all workers when there is none.
std::size_t index_behind(std::uint16_t port, const std::vector<WorkerIndex>& rebound) {
  if (port < kFirstReboundPort) return std::size_t{port} - kFirstWorkerPort;
  const std::size_t at = std::size_t{port} - kFirstReboundPort;
  return at < rebound.size() ? rebound[at] : SIZE_MAX;
}

}  // namespace

World::World(WorldOptions options)
    : options_(std::move(options)), random_(options_.seed), boxes_(options_.standby ? 2 : 1) {
  for (std::size_t box = 0; box < boxes_.size(); ++box) start_appliance(options_.seed + box, box);
  events_.push(kTickInterval, EventKind::kTick, 0);
}

HostIndex World::add_host() {
  const auto host = static_cast<HostIndex>(host_up_.size());
  links_.push_back(std::make_unique<Link>(2 * host, options_.uplink));
  links_.push_back(std::make_unique<Link>(2 * host + 1, options_.downlink));
  host_up_.push_back(true);
  return host;
}

RunIndex World::add_run(JobPlan plan) {
  std::vector<HostIndex> hosts;
  for (std::size_t i = 0; i < plan.ranks.size(); ++i) hosts.push_back(add_host());
  return add_run(std::move(plan), std::move(hosts));
}

RunIndex World::add_run_on(JobPlan plan, RunIndex same_hosts_as) {
  std::vector<HostIndex> hosts = runs_[same_hosts_as]->hosts;
  for (const HostIndex host : hosts) host_up_[host] = true;
  while (hosts.size() < plan.ranks.size()) hosts.push_back(add_host());
  return add_run(std::move(plan), std::move(hosts));
}

RunIndex World::add_run(JobPlan plan, std::vector<HostIndex> hosts) {
  auto layout = plan.is_operations()
                    ? client::Layout::without_tensors(plan.chunk_bytes)
                    : client::Layout::create(plan.tensors, plan.chunk_bytes, plan.wire);
  CHECK(layout.ok());
  runs_.push_back(
      std::make_unique<Run>(Run{std::move(plan), std::move(layout).value(), std::move(hosts), {}}));
  Run& run = *runs_.back();
  const RunIndex index = oracle_.add_run(run.plan, run.layout);
  run.latest.resize(run.plan.ranks.size());
  for (std::uint16_t rank = 0; rank < run.plan.world_size(); ++rank)
    add_worker(index, Rank{rank}, now_ + run.plan.ranks[rank].start_at);
  return index;
}

Worker& World::add_worker(RunIndex run_index, Rank rank, TimeNs start_at) {
  Run& run = *runs_[run_index];
  const auto index = static_cast<WorkerIndex>(workers_.size());
  const Worker::Identity identity{.index = index,
                                  .host = run.hosts[rank.value],
                                  .run = run_index,
                                  .rank = rank,
                                  .port = static_cast<std::uint16_t>(kFirstWorkerPort + index)};
  workers_.push_back(std::make_unique<Worker>(*this, identity, run.plan, run.layout));
  run.latest[rank.value] = index;
  at(start_at, [this, index] { workers_[index]->start(now_); });
  return *workers_.back();
}

void World::at(TimeNs time, std::function<void()> action) {
  actions_.push_back(std::move(action));
  events_.push(time, EventKind::kAction, 0, static_cast<std::uint32_t>(actions_.size() - 1));
}

Worker& World::worker(RunIndex run, Rank rank) { return *workers_[runs_[run]->latest[rank.value]]; }

Worker* World::worker_at(std::uint16_t port) {
  const std::size_t index = index_behind(port, rebound_);
  if (index >= workers_.size() || public_port(*workers_[index]) != port) return nullptr;
  return workers_[index].get();
}

std::uint16_t World::public_port(const Worker& worker) const {
  for (std::size_t at = rebound_.size(); at-- > 0;)
    if (rebound_[at] == worker.identity.index)
      return static_cast<std::uint16_t>(kFirstReboundPort + at);
  return worker.identity.port;
}

void World::rebind(Worker& worker) { rebound_.push_back(worker.identity.index); }

bool World::step() {
  if (events_.empty() || !healthy()) return false;
  const SimEvent event = events_.pop();
  CHECK(event.at >= now_);
  now_ = event.at;
  trace_hash_ = mix(trace_hash_ ^ static_cast<std::uint64_t>(event.at),
                    static_cast<std::uint64_t>(event.kind), event.target);
  if (++event_count_ > options_.max_events)
    oracle_.violation("I4: more than " + std::to_string(options_.max_events) +
                      " events: the system floods");
  dispatch(event);
  return true;
}

void World::run_until(TimeNs time) {
  while (!events_.empty() && events_.top().at <= time && step()) {
  }
  if (healthy() && now_ < time) now_ = time;
}

bool World::run_until(const std::function<bool()>& holds, TimeNs deadline) {
  while (!holds()) {
    if (events_.empty() || events_.top().at > deadline || !step()) return false;
  }
  return healthy();
}

bool World::run_until_done(RunIndex run, TimeNs deadline) {
  const std::vector<WorkerIndex>& latest = runs_[run]->latest;
  return run_until(
      [&] {
        for (const WorkerIndex index : latest) {
          const Worker& worker = *workers_[index];
          if (!worker.done() && worker.state() != ProcessState::kDead) return false;
        }
        return true;
      },
      deadline);
}

void World::dispatch(const SimEvent& event) {
  switch (event.kind) {
    case EventKind::kLinkReady: links_[event.target]->ready(pool_, random_, events_, now_); break;
    case EventKind::kLinkArrive: arrive(event.target, event.argument); break;
    case EventKind::kControlService:
      if (Appliance* const appliance = booted(event.argument)) appliance->service_control(now_);
      break;
    case EventKind::kShardService:
      if (Appliance* const appliance = booted(event.argument))
        appliance->service_shard(static_cast<std::uint16_t>(event.target), now_);
      break;
    case EventKind::kShardCommand:
      if (Appliance* const appliance = booted(event.argument))
        appliance->deliver_command(static_cast<std::uint16_t>(event.target), now_);
      break;
    case EventKind::kShardEvent:
      if (Appliance* const appliance = booted(event.argument))
        appliance->deliver_event(static_cast<std::uint16_t>(event.target), now_);
      break;
    case EventKind::kTick:
      for (const Box& box : boxes_)
        if (box.up) box.appliance->tick(now_);
      events_.push(now_ + kTickInterval, EventKind::kTick, 0);
      break;
    case EventKind::kWorkerService: workers_[event.target]->service(now_); break;
    case EventKind::kWorkerTimeout: workers_[event.target]->timeout(now_); break;
    case EventKind::kWorkerApp: workers_[event.target]->run_app(now_); break;
    case EventKind::kUnreachable:
      if (const auto& [quoted, box] = quotes_[event.argument]; boxes_[box].up)
        boxes_[box].appliance->quoted_unreachable(quoted, now_);
      break;
    case EventKind::kAction: {
      const std::function<void()> action = std::move(actions_[event.argument]);
      action();
      break;
    }
  }
}

void World::send_from_worker(Worker& worker, const client::Transmit& transmit,
                             std::span<const std::uint8_t> bytes, TimeNs now) {
  wire::Packet packet;
  if (const Verdict why = wire::parse(bytes, packet); !ok(why))
    return oracle_.violation("a session sent a packet that does not parse: " +
                             std::string(label(why)));
  note_epoch(worker, packet, transmit.port_offset != 0);
  if (transmit.port_offset != 0)
    oracle_.on_worker_packet(worker.party(), static_cast<std::uint16_t>(transmit.port_offset - 1),
                             worker.pumps(), packet, appliance_of(worker.identity.run, packet));
  if (packet.type() == wire::PacketType::kResync)
    oracle_.note(worker.identity.run, Oracle::Trait::kResyncs);
  worker.credentials = packet.common();
  const FrameIndex frame = pool_.take();
  const wire::UdpPath path = path_to_appliance(worker, transmit.port_offset, transmit.address);
  pool_[frame].bytes.resize(wire::kMaxUdpHeaderBytes + bytes.size());
  pool_[frame].bytes.resize(wire::encode_udp_frame(pool_[frame].bytes, path, bytes));
  pool_[frame].priority = transmit.priority;
  send_filtered(uplink(worker.identity.host), frame,
                {.direction = Direction::kToAppliance,
                 .worker = &worker,
                 .box = transmit.address,
                 .port_offset = transmit.port_offset},
                bytes, now);
}

void World::on_heard(std::uint16_t port, const wire::Packet& packet) {
  // By whichever path it came, also one that is no more.
  const std::size_t index = index_behind(port, rebound_);
  if (index < workers_.size()) oracle_.on_worker_packet_arrived(workers_[index]->party(), packet);
}

void World::on_shard_sent(std::uint16_t shard, std::uint16_t port,
                          std::span<const std::uint8_t> bytes, const agg::Job* store) {
  // For every receiver, also by a path that is gone: the numbers of a flow have no gaps.
  const std::size_t index = index_behind(port, rebound_);
  const Worker* worker = index < workers_.size() ? workers_[index].get() : nullptr;
  wire::Packet packet;
  if (const Verdict why = wire::parse(bytes, packet); !ok(why))
    return oracle_.violation("a shard sent a packet that does not parse: " +
                             std::string(label(why)));
  if (worker == nullptr) return;
  oracle_.on_appliance_packet(worker->party(), shard, packet,
                              appliance_of(worker->identity.run, packet));
  if (store != nullptr && packet.type() == wire::PacketType::kValues)
    books_.answered(*store, shard, worker->identity.index, packet);
}

void World::send_to_worker(FrameIndex frame, std::uint16_t port,
                           std::span<const std::uint8_t> bytes, TimeNs now) {
  Worker* worker = worker_at(port);
  if (worker == nullptr) {  // a stranger of a test
    stranger_bytes_ += bytes.size();
    return pool_.give_back(frame);
  }
  wire::Frame view;
  (void)wire::parse_frame(pool_[frame].bytes, wire::UdpChecksums::kTrust, view);
  const auto offset = static_cast<std::uint16_t>(view.src_port - options_.appliance.port);
  send_filtered(downlink(worker->identity.host), frame,
                {.direction = Direction::kToWorker,
                 .worker = worker,
                 .box = box_at(view.src).value_or(0),
                 .port_offset = offset},
                bytes, now);
}

void World::send_filtered(Link& link, FrameIndex frame, const Way& way,
                          std::span<const std::uint8_t> bytes, TimeNs now) {
  if (!filter_) return link.send(frame, pool_, random_, events_, now);
  wire::Packet packet;
  (void)wire::parse(bytes, packet);
  Passing passing{way, packet, now};
  filter_(passing);
  if (passing.drop) {
    link.count_scripted_drop();
    return pool_.give_back(frame);
  }
  for (const DurationNs late_ns : passing.late_copies)
    link.send(pool_.copy(frame), pool_, random_, events_, now, late_ns);
  for (std::uint32_t copy = 1; copy < passing.copies; ++copy)
    link.send(pool_.copy(frame), pool_, random_, events_, now, passing.delay_ns);
  link.send(frame, pool_, random_, events_, now, passing.delay_ns);
}

void World::arrive(std::uint32_t link, FrameIndex frame) {
  links_[link]->arrived();
  trace_hash_ ^= hash_bytes(pool_[frame].bytes, event_count_);
  if (!links_[link]->counters().balanced())
    oracle_.violation("I7: link " + std::to_string(link) + " loses count of its frames");
  if (links_[link]->overtook())
    oracle_.violation("I6: a frame waited for a less urgent one on link " + std::to_string(link));
  const HostIndex host = link / 2;
  if (link % 2 == 1) return arrive_at_host(host, frame);
  wire::Frame view;
  const bool whole = ok(wire::parse_frame(pool_[frame].bytes, wire::UdpChecksums::kVerify, view));
  const std::size_t box = whole ? box_at(view.dst).value_or(0) : 0;
  if (cuts_.contains({host, box})) return pool_.give_back(frame);
  if (boxes_[box].up) return boxes_[box].appliance->receive(frame, now_);
  // Nobody home: the host of the appliance answers for the closed port.
  if (whole) {
    Worker* worker = worker_at(view.src_port);
    if (options_.unreachable_hints && worker != nullptr &&
        worker->state() == ProcessState::kRunning && worker->session().address() == box) {
      worker->session().handle_unreachable(now_);
      worker->pump(now_);
    }
  }
  pool_.give_back(frame);
}

void World::arrive_at_host(HostIndex host, FrameIndex frame) {
  wire::Frame view;
  if (!host_up_[host]) return pool_.give_back(frame);
  if (!ok(wire::parse_frame(pool_[frame].bytes, wire::UdpChecksums::kVerify, view))) {
    ++dropped_corrupt_;
    return pool_.give_back(frame);
  }
  if (is_cut(host, view.src)) return pool_.give_back(frame);
  Worker* worker = worker_at(view.dst_port);
  const bool open =
      worker != nullptr && worker->identity.host == host &&
      (worker->state() == ProcessState::kRunning || worker->state() == ProcessState::kPaused);
  if (open) return worker->receive(frame, now_);
  wire::Packet packet;
  const bool ours = ok(wire::parse(view.payload, packet));
  if (ours && worker != nullptr && options_.unreachable_hints && !downlink(host).partitioned) {
    quotes_.push_back({packet.common(), box_at(view.src).value_or(0)});
    events_.push(now_ + kHintDelay, EventKind::kUnreachable, worker->identity.index,
                 static_cast<std::uint32_t>(quotes_.size() - 1));
  }
  pool_.give_back(frame);
}

void World::note_over(RunIndex run_index) {
  const Run& run = *runs_[run_index];
  for (const WorkerIndex index : run.latest)
    if (!workers_[index]->over()) return;
  at(now_, [this, run_index] {
    for (const WorkerIndex index : runs_[run_index]->latest) workers_[index]->leave_together(now_);
  });
}

void World::note_unreliable(HostIndex host) {
  for (const auto& worker : workers_)
    if (worker->identity.host == host)
      oracle_.note_unreliable(worker->identity.run, worker->identity.rank);
}

wire::UdpPath World::path_to_appliance(const Worker& worker, std::uint16_t port_offset,
                                       std::size_t box) const {
  wire::UdpPath path;
  path.src_mac.bytes = {2,
                        1,
                        0,
                        0,
                        static_cast<std::uint8_t>(worker.identity.host >> 8),
                        static_cast<std::uint8_t>(worker.identity.host)};
  path.dst_mac = boxes_[box].appliance->mac();
  path.src = host_address(worker.identity.host, options_.ipv6);
  path.dst = boxes_[box].appliance->address();
  path.src_port = public_port(worker);
  path.dst_port = static_cast<std::uint16_t>(options_.appliance.port + port_offset);
  path.traffic_class = wire::kEcnCapable;
  return path;
}

void World::check_at_end() {
  for (const Box& box : boxes_)
    if (const std::string text = box.appliance->unbalanced(); !text.empty())
      oracle_.violation(text);
  std::size_t queued = 0;
  for (const auto& link : links_) queued += link->counters().queued;
  for (const auto& worker : workers_) {
    queued += worker->waiting_frames();
    if (const std::string text = worker->unbalanced(); !text.empty()) oracle_.violation(text);
  }
  for (const Box& box : boxes_) queued += box.appliance->waiting_frames();
  if (queued != pool_.in_use())
    oracle_.violation("I7: " + std::to_string(pool_.in_use()) + " frames are in use and " +
                      std::to_string(queued) + " are queued");
}

std::string World::report() const {
  std::string text;
  for (const std::string& violation : oracle_.violations()) text += violation + "\n";
  return text;
}

}  // namespace sluice::sim

#include "dataplane/dpdk/appliance.h"

#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "aggregator/base/check.h"
#include "aggregator/base/text.h"
#include "dataplane/dpdk/control.h"
#include "dataplane/dpdk/eal.h"
#include "dataplane/dpdk/guest_fault.h"
#include "dataplane/dpdk/worker.h"

namespace sluice::dataplane {

// Destroyed from the bottom up: control first, then workers, ports, rings and the pool.
struct Appliance::State {
  config::Config config;
  agg::JobsOptions options;  // in use
  bool eal_started = false;
  std::unique_ptr<const Traffic> traffic;  // in use
  Context context;
  std::unique_ptr<Control> control;

  ~State() {
    control.reset();
    for (auto& worker : context.workers) worker->stop();
    const auto drain = [](RingPtr& ring) {
      void* packet;
      while (ring != nullptr && rte_ring_dequeue(ring.get(), &packet) == 0)
        rte_pktmbuf_free(static_cast<rte_mbuf*>(packet));
    };
    for (RingPtr* ring : {&context.from_members, &context.joins, &context.unauthenticated})
      drain(*ring);
    context.workers.clear();
    context.ports.clear();
    for (RingPtr* ring : {&context.from_members, &context.joins, &context.unauthenticated})
      ring->reset();
    context.pool.reset();
    if (eal_started) stop_eal();
  }
};

namespace {

constexpr auto kRound = std::chrono::microseconds(50);  // between two looks at a worker

OwnAddress own_address(const config::ApplianceConfig& config) {
  OwnAddress own;
  own.mac.bytes = config::effective_mac(config);
  const auto& ip = config.address.octets;
  own.ipv4 = wire::ipv4_address(ip[0], ip[1], ip[2], ip[3]);
  if (config.address6) own.ipv6 = {wire::Family::kIpv6, config.address6->octets};
  own.port = config.port;
  own.shard_count = config.shards;
  return own;
}

using BootKey = decltype(agg::JobsOptions::boot_key);

Result<BootKey> make_boot_key() {
  BootKey key;
  if (RAND_bytes(key.data(), static_cast<int>(key.size())) != 1)
    return Status(StatusCode::kIoError, "the system gives no random numbers for the boot key");
  return key;
}

agg::JobsOptions jobs_options(const config::Config& config, const BootKey& boot_key) {
  agg::JobsOptions options;
  options.secret = config.appliance.secret;
  options.older_secrets = config.appliance.older_secrets;
  options.boot_key = boot_key;
  options.shard_count = config.appliance.shards;
  options.max_jobs = config.limits.jobs;
  options.max_workers = config.limits.workers_per_job;
  options.max_chunk_bytes = std::min<std::size_t>(config.limits.chunk_bytes_max, kMaxChunkBytes);
  options.max_job_memory_bytes = std::size_t{config.limits.job_memory_mib} << 20;
  options.max_total_memory_bytes = std::size_t{config.limits.total_memory_mib} << 20;
  const auto share_of = [](std::uint16_t jobs, std::uint32_t mib) {
    return agg::Share{.jobs = jobs == 0 ? kMaxJobs : jobs,
                      .bytes = mib == 0 ? SIZE_MAX : std::size_t{mib} << 20};
  };
  options.per_address = share_of(config.limits.address_jobs, config.limits.address_memory_mib);
  options.per_prefix = share_of(config.limits.prefix_jobs, config.limits.prefix_memory_mib);
  options.member_timeout_ns = config.limits.member_timeout_ns();
  options.resync_hold_ns = config.limits.resync_hold_ns();
  options.store_keep_ns = config.limits.store_keep_ns();
  options.policy = config.policy;
  for (const config::JobConfig& job : config.jobs)
    options.named_jobs.push_back(
        {.job_name = job.name, .policy = job.policy, .reproducible = job.reproducible});
  return options;
}

// Devices first: the number of buffers depends on their offers.
Status open_ports(const config::Config& config, Context& context) {
  std::size_t lanes = 0;
  for (std::size_t index = 0; index < config.ports.size(); ++index) {
    auto port = Port::open(config.ports[index], static_cast<PortIndex>(index), config);
    if (!port.ok()) return port.status();
    context.ports.push_back(std::move(port).value());
    const PortPlan& plan = context.ports.back()->plan();
    context.shares_payloads |= plan.shares_payloads;
    lanes += plan.queues;
  }
  auto pool = make_pool(config, lanes);
  if (!pool.ok()) return pool.status();
  context.pool = std::move(pool).value();
  for (const auto& port : context.ports)
    if (Status status = port->start(context.pool.get(), now_ns(), config); !status.ok())
      return status;
  return Status();
}

std::string table_of_ports(const Context& context) {
  std::vector<PortRow> rows;
  for (const auto& port : context.ports) rows.push_back(port->row());
  return table_of(rows);
}

std::unique_ptr<const Traffic> make_traffic(const config::Config& config, const Context& context) {
  auto traffic = std::make_unique<Traffic>(Classifier(traffic_rules(config.rules)));
  for (const auto& port : context.ports)
    traffic->egress.push_back(
        egress_options(config.ports[port->index()], port->max_frame_bytes(), config));
  return traffic;
}

void log_ports(const Context& context) {
  std::istringstream lines(table_of_ports(context));
  for (std::string line; std::getline(lines, line);) spdlog::info("{}", line);
}

Status build_context(const config::Config& config, Context& context,
                     std::unique_ptr<const Traffic>& traffic) {
  context.own = own_address(config.appliance);
  context.polling = config.appliance.polling;
  context.forwarding = config.forwarding.enabled;
  context.mac_entries = config.forwarding.mac_table_entries;
  context.mac_age_ns = config.forwarding.mac_age_s * kSecond;
  // Job ids rotate over kMaxJobs, however few jobs the limits allow at once.
  context.paths = std::make_unique<PathTable>(kMaxJobs, config.limits.workers_per_job);

  if (Status status = open_ports(config, context); !status.ok()) return status;
  log_ports(context);
  traffic = make_traffic(config, context);
  context.traffic.store(traffic.get());
  context.max_datagram_bytes = rte_pktmbuf_data_room_size(context.pool.get()) -
                               RTE_PKTMBUF_HEADROOM - wire::kMaxUdpHeaderBytes;
  const auto add_ring = [](const char* name, std::uint32_t packets, RingPtr& ring) {
    auto made = make_ring(name, packets, sizeof(rte_mbuf*));
    if (made.ok()) ring = std::move(made).value();
    return made.status();
  };
  if (Status status = add_ring("from_members", kMemberPackets, context.from_members); !status.ok())
    return status;
  if (Status status = add_ring("joins", kUnauthenticatedPackets, context.joins); !status.ok())
    return status;
  if (Status status = add_ring("unauthenticated", kUnauthenticatedPackets, context.unauthenticated);
      !status.ok())
    return status;

  for (std::uint16_t index = 0; index < config.appliance.shards; ++index) {
    auto worker = Worker::create(context, index);
    if (!worker.ok()) return worker.status();
    context.workers.push_back(std::move(worker).value());
  }
  return Status();
}

}  // namespace

Appliance::Appliance(std::unique_ptr<State> state) : state_(std::move(state)) {}
Appliance::~Appliance() = default;

Status Appliance::begin(const config::Config& config, State& state) {
  static_assert(config::kMaxPorts <= sizeof(PortMask) * 8);
  if (config.ports.empty() || config.ports.size() > config::kMaxPorts)
    return Status(StatusCode::kInvalidArgument, "the configuration has " +
                                                    std::to_string(config.ports.size()) +
                                                    " ports; add [[port]] sections, from 1 to " +
                                                    std::to_string(config::kMaxPorts));
  state.config = config;
  if (Status status = start_eal(config); !status.ok()) return status;
  state.eal_started = true;
  return Status();
}

Result<std::string> Appliance::describe_ports(const config::Config& config) {
  State state;
  if (Status status = begin(config, state); !status.ok()) return status;
  if (Status status = open_ports(config, state.context); !status.ok()) return status;
  return table_of_ports(state.context);
}

Result<std::unique_ptr<Appliance>> Appliance::start(const config::Config& config) {
  static_assert(config::kClasses == kClassCount && config::kMaxRules <= RuleTable::kMaxRules);
  auto state = std::make_unique<State>();
  if (Status status = begin(config, *state); !status.ok()) return status;
  if (Status status = handle_guest_faults(); !status.ok()) return status;
  if (Status status = build_context(config, state->context, state->traffic); !status.ok())
    return status;
  const auto boot_key = make_boot_key();
  if (!boot_key.ok()) return boot_key.status();
  state->options = jobs_options(config, boot_key.value());
  state->control = std::make_unique<Control>(state->context, state->options);
  for (auto& worker : state->context.workers) worker->start();
  state->control->start();
  return std::unique_ptr<Appliance>(new Appliance(std::move(state)));
}

std::string Appliance::summary() const {
  const auto& own = state_->context.own;
  const auto& mac = own.mac.bytes;
  return text("%u.%u.%u.%u UDP port %u, MAC %02x:%02x:%02x:%02x:%02x:%02x, %zu port%s, %u shard%s",
              own.ipv4.bytes[0], own.ipv4.bytes[1], own.ipv4.bytes[2], own.ipv4.bytes[3], own.port,
              mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], state_->context.ports.size(),
              state_->context.ports.size() == 1 ? "" : "s", own.shard_count,
              own.shard_count == 1 ? "" : "s");
}

CounterBlocks Appliance::counters() const {
  CounterBlocks blocks{.control_junk = &state_->control->verdicts(),
                       .control_drops = &state_->control->drops()};
  for (const auto& port : state_->context.ports) blocks.ports.push_back(port->view());
  for (const auto& worker : state_->context.workers)
    blocks.lcores.push_back({&worker->counters(), &worker->shard()});
  return blocks;
}

BufferUse Appliance::buffers() const {
  const rte_mempool* pool = state_->context.pool.get();
  return {rte_mempool_in_use_count(pool), pool->size};
}

void Appliance::drain() { state_->control->drain(); }

bool Appliance::is_drained() const { return state_->control->is_drained(); }

bool Appliance::is_draining() const { return state_->control->is_draining(); }

bool Appliance::inspect(const std::function<void(const agg::Jobs&, TimeNs)>& inspection) const {
  return state_->control->inspect(inspection);
}

bool Appliance::operate(const std::function<void(agg::Jobs&, TimeNs)>& operation) {
  return state_->control->inspect(operation);
}

Status Appliance::change(const config::Config& config) {
  Context& context = state_->context;
  CHECK(config.ports.size() == context.ports.size());
  for (const auto& port : context.ports)
    if (config.ports[port->index()].rate_mbps != 0 && port->plan().queues > 1)
      return Status(StatusCode::kInvalidArgument,
                    "port \"" + port->config().name + "\" rate_mbps (0 -> " +
                        std::to_string(config.ports[port->index()].rate_mbps) +
                        "): all workers serve this port, and one serves a shaped port");
  auto traffic = make_traffic(config, context);
  context.traffic.store(traffic.get(), std::memory_order_release);
  for (const auto& worker : context.workers) {
    worker->wake();
    while (worker->adopted() != traffic.get()) std::this_thread::sleep_for(kRound);
  }
  state_->traffic = std::move(traffic);
  state_->options = jobs_options(config, state_->options.boot_key);
  operate([this](agg::Jobs& jobs, TimeNs) { jobs.change_options(state_->options); });
  state_->config = config;
  return Status();
}

}  // namespace sluice::dataplane

// A port's device: created, started, watched and closed. All cold.
#include "dataplane/dpdk/port.h"

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_errno.h>
#include <rte_eth_vhost.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_vhost.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "dataplane/dpdk/carrier.h"
#include "dataplane/dpdk/guest_fault.h"
#include "dataplane/dpdk/idle_wait.h"
#include "dataplane/dpdk/worker.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint16_t kDescriptors = 1024;
constexpr std::size_t kAfPacketFrames = 2048;  // per direction: more than a 2 MB qdisc holds

std::string where(const config::PortConfig& config) {
  switch (config.type) {
    case config::PortType::kVhostUser: return "vhost-user socket " + config.path;
    case config::PortType::kAfPacket: return "af_packet on interface " + config.interface;
    case config::PortType::kAfXdp: return "af_xdp on interface " + config.interface;
    case config::PortType::kTap: return "tap interface " + config.interface;
    case config::PortType::kPci: return "PCI device " + config.pci;
  }
  return "";
}

Status failed(const config::PortConfig& config, const std::string& step, int error,
              const std::string& remedy) {
  return Status(StatusCode::kIoError, "port \"" + config.name + "\" (" + where(config) +
                                          "): " + step + ": " +
                                          rte_strerror(error < 0 ? -error : error) + "; " + remedy);
}

std::string remedy_for(const config::PortConfig& config) {
  switch (config.type) {
    case config::PortType::kVhostUser:
      return "does its directory exist, and may this user write there?";
    case config::PortType::kAfPacket:
      return "does the interface exist, is it up, and has this process CAP_NET_RAW?";
    case config::PortType::kAfXdp:
      return "does the interface exist, and does this run as root on a kernel with AF_XDP?";
    case config::PortType::kTap:
      return "is the name free, and has this process CAP_NET_ADMIN and /dev/net/tun?";
    case config::PortType::kPci:
      return "is the device bound to vfio-pci, or is its driver bifurcated?";
  }
  return "";
}

// Removes the socket file that an earlier process left behind, which would block the name; the
// socket of a live process must not be stolen.
Status clear_stale_socket(const config::PortConfig& config) {
  struct stat info {};
  if (stat(config.path.c_str(), &info) != 0) return Status();
  if (!S_ISSOCK(info.st_mode))
    return failed(config, "the path exists and is no socket", EEXIST, "remove it or change `path`");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, config.path.c_str(), sizeof address.sun_path - 1);
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool alive = probe >= 0 && connect(probe, reinterpret_cast<const sockaddr*>(&address),
                                           sizeof address) == 0;
  if (probe >= 0) close(probe);
  if (alive)
    return failed(config, "another process serves the socket", EADDRINUSE,
                  "is another sluiced running? stop it or change `path`");
  unlink(config.path.c_str());
  return Status();
}

std::string vdev_arguments(const config::PortConfig& config, std::size_t max_frame_bytes) {
  switch (config.type) {
    case config::PortType::kVhostUser: return "iface=" + config.path + ",queues=1";
    case config::PortType::kAfPacket: {
      const std::size_t frame = af_packet_frame_bytes(max_frame_bytes);
      const std::size_t block = 4 * frame;  // whole pages, which frames must fill without a gap
      return "iface=" + config.interface + ",blocksz=" + std::to_string(block) +
             ",framesz=" + std::to_string(frame) + ",framecnt=" + std::to_string(kAfPacketFrames) +
             ",qdisc_bypass=0";  // the kernel's own shapers are obeyed
    }
    case config::PortType::kAfXdp:
      return "iface=" + config.interface + ",start_queue=0,queue_count=1";
    case config::PortType::kTap: return "iface=" + config.interface;
    case config::PortType::kPci: return "";
  }
  return "";
}

const char* driver_of(config::PortType type) {
  switch (type) {
    case config::PortType::kVhostUser: return "net_vhost";
    case config::PortType::kAfPacket: return "net_af_packet";
    case config::PortType::kAfXdp: return "net_af_xdp";
    case config::PortType::kTap: return "net_tap";
    case config::PortType::kPci: return "";
  }
  return "";
}

// DPDK finds drivers in shared libraries, each a package of its own.
Status check_driver(const config::PortConfig& config, const std::string& device) {
  rte_devargs found{};
  const int result = rte_devargs_parse(&found, device.c_str());
  std::free(found.data);  // its copy of the name
  if (result == 0) return Status();
  std::string package = driver_of(config.type);
  std::ranges::replace(package, '_', '-');
  return failed(config, std::string("DPDK has no driver ") + driver_of(config.type), ENODEV,
                "install Debian's package librte-" + package + SLUICE_DPDK_ABI);
}

// Drivers whose other end is a hypervisor: with receive offloads a guest's frame arrives as its
// kernel left it, to be completed by a device that does not exist.
bool is_paravirtual(std::string_view driver) {
  return driver.starts_with("net_virtio") || driver == "net_vmxnet3" || driver == "net_netvsc" ||
         driver == "net_vhost";
}

}  // namespace

Port::Port(const config::PortConfig& config, PortIndex index, const config::Config& appliance)
    : config_(config),
      index_(index),
      worker_count_(appliance.appliance.shards),
      max_frame_bytes_(config.mtu +
                       static_cast<std::uint32_t>(wire::kEthernetBytes + wire::kVlanTagBytes)) {}

Result<std::unique_ptr<Port>> Port::open(const config::PortConfig& config, PortIndex index,
                                         const config::Config& appliance) {
  std::unique_ptr<Port> port(new Port(config, index, appliance));
  const std::vector<int> before = packet_sockets();
  if (Status status = port->probe(); !status.ok()) return status;
  port->find_wake_socket(before);
  if (config.type == config::PortType::kAfPacket) port->open_train_socket();
  if (Status status = port->make_plan(); !status.ok()) return status;
  return port;
}

Status Port::start(rte_mempool* pool, TimeNs now, const config::Config& appliance) {
  for (std::uint16_t queue = 0; queue < plan_.queues; ++queue)
    lanes_.push_back(std::make_unique<Lane>(*this, queue, pool, now,
                                            egress_options(config_, max_frame_bytes_, appliance)));
  const std::vector<int> before = packet_sockets();
  const bool rests = appliance.appliance.polling == config::Polling::kAdaptive;
  bool interrupts = rests && config_.type != config::PortType::kAfPacket &&
                    config_.type != config::PortType::kAfXdp;
  Status status = start_device(pool, interrupts, now);
  if (!status.ok() && std::exchange(interrupts, false)) status = start_device(pool, false, now);
  if (!status.ok()) return status;
  if (lanes_.size() > 1) steer(appliance);
  find_wake_socket(before);
  plan_.woken_by = rests ? find_what_wakes(interrupts) : WokenBy::kNobody;
  return Status();
}

// Frames sent by another socket than the driver's come back to the driver's, which must not see
// them.
void Port::open_train_socket() noexcept {
  if (TrainSocket::hide_outgoing(wake_socket_)) trains_ = TrainSocket::open(config_.interface);
}

std::size_t Port::transmit(std::uint16_t queue, std::span<rte_mbuf*> frames) const noexcept {
  const auto by_driver = [&](std::span<rte_mbuf*> run) {
    return rte_eth_tx_burst(device_, queue, run.data(), static_cast<std::uint16_t>(run.size()));
  };
  if (trains_ == nullptr) return by_driver(frames);
  for (std::size_t sent = 0; sent < frames.size();) {
    const std::span rest = frames.subspan(sent);
    const bool ours = leaves_checksum(rest.front());
    std::size_t count = 1;
    while (count < rest.size() && leaves_checksum(rest[count]) == ours) ++count;
    const std::span run = rest.first(count);
    const std::size_t taken = ours ? trains_->send(run) : by_driver(run);
    sent += taken;
    if (taken < count) return sent;
  }
  return frames.size();
}

Status Port::probe() {
  std::string name = config_.pci;
  if (config_.type == config::PortType::kVhostUser)
    if (Status status = clear_stale_socket(config_); !status.ok()) return status;
  if (config_.type != config::PortType::kPci) {
    name = driver_of(config_.type) + std::to_string(index_);
    if (Status status = check_driver(config_, name); !status.ok()) return status;
    const std::string arguments = vdev_arguments(config_, max_frame_bytes_);
    const int result = rte_eal_hotplug_add("vdev", name.c_str(), arguments.c_str());
    if (result != 0)
      return failed(config_, "the device was not created", result, remedy_for(config_));
    vdev_name_ = name;
  }
  if (rte_eth_dev_get_port_by_name(name.c_str(), &device_) != 0)
    return failed(config_, "DPDK has no such device", ENODEV, remedy_for(config_));
  return Status();
}

Status Port::make_plan() {
  rte_eth_dev_info info{};
  const int result = rte_eth_dev_info_get(device_, &info);
  if (result != 0) return failed(config_, "no device information", result, remedy_for(config_));
  const bool vhost = config_.type == config::PortType::kVhostUser;
  driver_ = info.driver_name;
  if (sets_mtu() && config_.mtu > info.max_mtu)
    return failed(config_, "mtu = " + std::to_string(config_.mtu), ERANGE,
                  "lower it to what the device takes, at most " + std::to_string(info.max_mtu));
  offers_ = {.rx_udp_checksum = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM) != 0,
             .tx_udp_checksum =
                 trains_ != nullptr || (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0,
             .multi_segment = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0,
             .rss = info.reta_size != 0 && info.hash_key_size != 0 &&
                    (info.flow_type_rss_offloads & RTE_ETH_RSS_NONFRAG_IPV4_UDP) != 0,
             .rx_queues = info.max_rx_queues,
             .tx_queues = info.max_tx_queues};
  plan_ = plan_port(offers_, {.shared_memory = vhost,
                              .partial_checksums = is_paravirtual(driver_),
                              .shaped = config_.rate_mbps != 0,
                              .workers = worker_count_});
  return Status();
}

PortRow Port::row() const {
  return {config_.name, driver_ + ": " + where(config_), offers_, plan_};
}

PortView Port::view() const {
  PortView view{config_.name, {}, config_.type == config::PortType::kVhostUser};
  for (const auto& lane : lanes_) view.lanes.push_back(&lane->counters());
  return view;
}

int Port::set_up_queues(rte_mempool* pool) noexcept {
  std::uint16_t rx_descriptors = kDescriptors;
  std::uint16_t tx_descriptors = kDescriptors;
  constexpr auto kAnySocket = static_cast<unsigned>(SOCKET_ID_ANY);
  int result = rte_eth_dev_adjust_nb_rx_tx_desc(device_, &rx_descriptors, &tx_descriptors);
  for (std::uint16_t queue = 0; result == 0 && queue < plan_.queues; ++queue) {
    result = rte_eth_rx_queue_setup(device_, queue, rx_descriptors, kAnySocket, nullptr, pool);
    if (result == 0)
      result = rte_eth_tx_queue_setup(device_, queue, tx_descriptors, kAnySocket, nullptr);
  }
  return result;
}

Status Port::start_device(rte_mempool* pool, bool interrupts, TimeNs now) {
  rte_eth_conf device_config{};
  // The link interrupt stays off: with it DPDK answers from the state that the last interrupt
  // stored, and some cards raise none. vhost reports its peer without it.
  device_config.intr_conf.rxq = interrupts;
  if (sets_mtu()) device_config.rxmode.mtu = config_.mtu;
  if (plan_.rx == ChecksumsBy::kDevice)
    device_config.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
  if (plan_.tx == ChecksumsBy::kDevice && trains_ == nullptr)
    device_config.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  if (plan_.shares_payloads) device_config.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  int result = rte_eth_dev_configure(device_, plan_.queues, plan_.queues, &device_config);
  if (result == 0 && config_.type == config::PortType::kTap)
    result = rte_eth_dev_set_mtu(device_, config_.mtu);
  if (result == 0) result = set_up_queues(pool);
  if (result != 0)
    return failed(config_, "the device was not set up", result,
                  "a line of DPDK's above may say why; " + remedy_for(config_));
  if (config_.type == config::PortType::kVhostUser) {
    const auto callback = [](std::uint16_t device, rte_eth_event_type event, void* port,
                             void* data) { return on_link_event(device, event, port, data); };
    rte_eth_dev_callback_register(device_, RTE_ETH_EVENT_INTR_LSC, callback, this);
  }
  result = rte_eth_dev_start(device_);
  if (result != 0) return failed(config_, "the device did not start", result, remedy_for(config_));
  started_ = true;
  if (config_.type != config::PortType::kAfPacket ||
      !receive_all_by(wake_socket_, config_.interface))
    rte_eth_promiscuous_enable(device_);
  refresh_link(now);
  return Status();
}

// Asks the device to put the datagrams for each shard into the queue of its worker. Datagrams that
// it can't steer come by any queue and are handed over.
void Port::steer(const config::Config& appliance) noexcept {
  for (std::uint16_t shard = 0; shard < plan_.queues; ++shard) {
    const rte_flow_attr attributes{.ingress = 1};
    rte_flow_item_udp udp{};
    udp.hdr.dst_port =
        rte_cpu_to_be_16(static_cast<std::uint16_t>(appliance.appliance.port + 1 + shard));
    rte_flow_item_udp mask{};
    mask.hdr.dst_port = UINT16_MAX;
    const rte_flow_action_queue queue{.index = shard};
    const rte_flow_action actions[] = {{RTE_FLOW_ACTION_TYPE_QUEUE, &queue},
                                       {RTE_FLOW_ACTION_TYPE_END, nullptr}};
    for (const rte_flow_item_type family : {RTE_FLOW_ITEM_TYPE_IPV4, RTE_FLOW_ITEM_TYPE_IPV6}) {
      if (family == RTE_FLOW_ITEM_TYPE_IPV6 && !appliance.appliance.address6) continue;
      const rte_flow_item pattern[] = {
          {.type = RTE_FLOW_ITEM_TYPE_ETH},
          {.type = family},
          {.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &mask},
          {.type = RTE_FLOW_ITEM_TYPE_END}};
      rte_flow_error error{};
      if (rte_flow_create(device_, &attributes, pattern, actions, &error) == nullptr) return;
    }
  }
  plan_.steered_by_device = true;
}

// Called on a thread of DPDK's. vhost calls it before it frees the state of a peer that leaves,
// which must not happen while a worker arms the queue.
int Port::on_link_event(std::uint16_t, int, void* port, void*) {
  { const std::lock_guard until_armed(static_cast<Port*>(port)->arm_mutex_); }
  static_cast<Port*>(port)->refresh_link(now_ns());
  return 0;
}

void Port::refresh_link(TimeNs now) noexcept {
  const std::lock_guard lock(link_mutex_);
  rte_eth_link link{};
  if (rte_eth_link_get_nowait(device_, &link) != 0) return;
  if (link.link_status != RTE_ETH_LINK_UP) memory_lost_ = false;
  const bool of_kernel =
      config_.type == config::PortType::kAfPacket || config_.type == config::PortType::kAfXdp;
  const bool up = link.link_status == RTE_ETH_LINK_UP && !memory_lost_ &&
                  (!of_kernel || has_carrier(config_.interface));
  const bool changed = up_.exchange(up) != up;
  link_counters().link_up.set(up ? 1 : 0);
  link_counters().link_changes.add(changed);
  const auto untold = link_log_.line(changed, now);
  if (!untold) return;
  spdlog::log(
      memory_lost_ ? spdlog::level::err : spdlog::level::info, "port \"{}\" ({}) is {}{}{}",
      config_.name, where(config_), up ? "up" : "down",
      memory_lost_ ? ": its peer took away the memory that it shares, and must connect again" : "",
      *untold == 0 ? ""
                   : "; its link changed " + std::to_string(*untold) +
                         " times besides since the last such line");
}

// Takes the port down if its peer has cut off the memory that it shares: the port would read zeros
// there.
void Port::look_for_lost_memory() noexcept {
  const std::uint32_t faults = guest_faults();
  if (config_.type != config::PortType::kVhostUser || faults == faults_seen_) return;
  const int peer = rte_eth_vhost_get_vid_from_port_id(device_);
  rte_vhost_memory* memory = nullptr;
  if (peer >= 0 && rte_vhost_get_mem_table(peer, &memory) == 0) {
    bool lost = false;
    for (std::uint32_t at = 0; at < memory->nregions; ++at) {
      const auto begin = reinterpret_cast<std::uintptr_t>(memory->regions[at].mmap_addr);
      const std::uintptr_t end = begin + memory->regions[at].mmap_size;
      for (std::uint32_t fault = faults_seen_; fault != faults; ++fault) {
        const AddressRange range = guest_fault(fault);
        lost |= range.begin < end && begin < range.end;
      }
    }
    std::free(memory);
    if (lost) {
      const std::lock_guard lock(link_mutex_);
      memory_lost_ = true;
    }
  }
  faults_seen_ = faults;
}

void Port::refresh(TimeNs now) noexcept {
  look_for_lost_memory();
  refresh_link(now);  // also of vhost: an event may be lost while it starts
  rte_eth_stats stats{};
  if (rte_eth_stats_get(device_, &stats) == 0)
    link_counters().rx_missed.set(stats.imissed + stats.rx_nombuf);
}

Port::~Port() {
  if (started_) {
    rte_eth_promiscuous_disable(device_);
    rte_eth_dev_stop(device_);
  }
  lanes_.clear();
  if (device_ != UINT16_MAX) rte_eth_dev_close(device_);
  if (!vdev_name_.empty()) rte_eal_hotplug_remove("vdev", vdev_name_.c_str());
}

}  // namespace sluice::dataplane

#include "client/transport/dpdk/vhost_port.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr DurationNs kArpInterval = 20 * kMillisecond;
// The appliance answers keepalives four times a second. After this silence its Ethernet address is
// asked for again, for another box may have taken its place.
constexpr DurationNs kSilence = kSecond;
constexpr DurationNs kSilentArpInterval = 250 * kMillisecond;
constexpr DurationNs kLinkCheckInterval = 50 * kMillisecond;
// Without a descriptor to sleep on, the ring is looked at this often.
constexpr DurationNs kPollInterval = 50 * kMicrosecond;
// A transport that sleeps while another one receives checks this often whether the other still
// does.
constexpr DurationNs kTrustInterval = kMillisecond;
constexpr std::uint16_t kFirstEphemeralPort = 49152;
// The most bursts of one look, which goes on while it finds only other inboxes' frames.
constexpr int kBurstsPerLook = 8;
// Opening and closing exchange messages with the appliance, and DPDK waits for them without limit.
constexpr std::chrono::milliseconds kCloseLimit{300};

// All ports of this process.
struct Ports {
  std::mutex mutex;  // also while one is opened or closed: they do so one after the other
  std::vector<VhostPort*> open;
};

Ports& ports() {
  static Ports& instance = *new Ports;  // jobs may end after all that ends with the process
  return instance;
}

Result<wire::IpAddress> parse_ipv4(const std::string& text, const char* what) {
  wire::IpAddress address{wire::Family::kIpv4, {}};
  if (::inet_pton(AF_INET, text.c_str(), address.bytes.data()) != 1) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(what) + " \"" + text + "\" must be an IPv4 address, as in 10.0.0.1");
  }
  return address;
}

std::uint16_t draw_udp_port() {
  std::random_device random;
  return static_cast<std::uint16_t>(kFirstEphemeralPort + random() % (65536 - kFirstEphemeralPort));
}

}  // namespace

std::string to_text(const wire::IpAddress& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, address.bytes.data(), text.data(), text.size());
  return text.data();
}

// ---- opening and closing ----

Result<VhostPort::Shared> VhostPort::open(const sluice_dpdk_plugin& plugin,
                                          const VhostOptions& options, const Log& log) {
  const Result<SocketId> id = find_socket(options.socket_path);
  if (!id.ok()) return id.status();
  Ports& all = ports();
  const std::lock_guard lock(all.mutex);
  for (VhostPort* const port : all.open) {
    if (port->socket_ != id.value() || port->pid_ != ::getpid()) continue;  // not a parent's
    if (port->link_has_gone()) {  // the appliance may be here again, and its socket free
      port->claim_.reset();
      continue;
    }
    if (Status status = port->why_not_shared(options); !status.ok()) return status;
    ++port->users_;
    log.write(SLUICE_LOG_DEBUG, "vhost-user port " + options.socket_path + ": shared by " +
                                    std::to_string(port->users_) + " jobs of this process");
    return Shared(port);
  }
  Shared port(new VhostPort(plugin, options));
  if (Status status = port->open_link(id.value()); !status.ok()) {
    delete port.release();  // not among those that are open
    return status;
  }
  all.open.push_back(port.get());
  port->users_ = 1;
  log.write(SLUICE_LOG_DEBUG, "vhost-user port " + options.socket_path + ": open, " +
                                  (plugin.rx_fd(port->port_) < 0 ? "polled" : "with interrupts"));
  return port;
}

void VhostPort::Close::operator()(VhostPort* port) const {
  Ports& all = ports();
  const std::lock_guard lock(all.mutex);
  if (--port->users_ != 0) return;
  std::erase(all.open, port);
  delete port;
}

VhostPort::~VhostPort() {
  CHECK(inboxes_.empty());
  if (port_ == nullptr) return;
  for (const int fd : fds_) forget_in_children(fd);
  run_bounded(
      kCloseLimit, [this] { plugin_.close(port_); }, [this] { shut_down(duplicates_); });
}

bool VhostPort::link_has_gone() noexcept {
  const Lock lock(mutex_);
  return link_is_gone_ = link_is_gone_ || plugin_.link_up(port_) == 0;
}

Status VhostPort::why_not_shared(const VhostOptions& options) const {
  const auto differs = [&](const char* what, const std::string& ours, const std::string& asked) {
    return Status(StatusCode::kInvalidArgument, "vhost-user socket " + options.socket_path +
                                                    " is open in this process with " + what + " " +
                                                    ours + ", and this job asks for " + asked +
                                                    ": give both the same, or a port each");
  };
  if (options.host != options_.host) return differs("the appliance", options_.host, options.host);
  if (options.mtu_bytes > options_.mtu_bytes)
    return differs("mtu", std::to_string(options_.mtu_bytes), std::to_string(options.mtu_bytes));
  if (options.local_address.empty()) return {};
  const Result<wire::IpAddress> local = parse_ipv4(options.local_address, "the local address");
  if (!local.ok()) return local.status();
  if (local.value() != path_.src)
    return differs("the local address", to_text(path_.src), options.local_address);
  return {};
}

Status VhostPort::open_link(SocketId id) {
  auto remote = parse_ipv4(options_.host, "the appliance's address");
  if (!remote.ok()) return remote.status();
  if (Status status = choose_own_address(); !status.ok()) return status;
  Result<OwnedFd> claim = claim_socket(options_.socket_path, id);
  if (!claim.ok()) return claim.status();
  socket_ = id;
  claim_ = std::move(claim).value();
  path_.dst = remote.value();
  path_.dst_port = options_.port;
  path_.traffic_class = wire::kEcnCapable;
  return open_device();
}

Status VhostPort::open_device() {
  sluice_dpdk_options request{.socket_path = options_.socket_path.c_str(),
                              .mac = {},
                              .mtu_bytes = static_cast<std::uint16_t>(options_.mtu_bytes),
                              .log = nullptr};
  std::copy(path_.src_mac.bytes.begin(), path_.src_mac.bytes.end(), request.mac);
  std::string why;
  std::optional<std::chrono::steady_clock::time_point> accepted;
  bool silent = false;
  run_bounded(
      std::chrono::milliseconds(0),
      [&] {
        port_ = plugin_.open(&request);
        if (port_ == nullptr) why = plugin_.error();
      },
      [&] {
        const std::vector<int> fds = descriptors_of(options_.socket_path);
        const auto now = std::chrono::steady_clock::now();
        if (!fds.empty() && !accepted) accepted = now;  // before that DPDK starts
        silent = accepted && now - *accepted >= options_.open_limit;
        if (silent) shut_down(duplicate(fds));
      });
  // Also where DPDK takes it for open: its socket is shut down.
  if (silent && port_ != nullptr) plugin_.close(std::exchange(port_, nullptr));
  if (port_ == nullptr) {
    return {StatusCode::kUnreachable,
            "vhost-user port " + options_.socket_path + ": " +
                (silent ? "the other side has accepted and says nothing; is the appliance stopped?"
                        : why)};
  }
  fds_ = descriptors_of(options_.socket_path);
  for (const int fd : fds_) close_in_children(fd);
  duplicates_ = duplicate(fds_);
  return {};
}

Status VhostPort::choose_own_address() {
  std::random_device random;
  path_.src_mac.bytes[0] = 0x02;  // locally administered
  for (std::size_t i = 1; i < 6; ++i) {
    path_.src_mac.bytes[i] = static_cast<std::uint8_t>(random());
  }
  if (!options_.local_address.empty()) {
    auto local = parse_ipv4(options_.local_address, "the local address");
    if (!local.ok()) return local.status();
    path_.src = local.value();
    return {};
  }
  // Ranks of one job differ in the last byte; 169.254.0 and 169.254.255 are reserved (RFC 3927).
  const unsigned last = options_.rank == kAnyRank ? random() : options_.rank.value;
  path_.src = wire::ipv4_address(169, 254, static_cast<std::uint8_t>(1 + random() % 254),
                                 static_cast<std::uint8_t>(1 + last % 254));
  return {};
}

Result<std::unique_ptr<VhostPort::Inbox>> VhostPort::attach() {
  auto inbox = std::make_unique<Inbox>();
  const std::uint32_t capacity = plugin_.receive_capacity(port_);
  inbox->waiting.resize(capacity / 2);
  inbox->ready = OwnedFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const Lock lock(mutex_);
  inbox->path = path_;
  if (inboxes_.size() == kMaxInboxes)
    return Status(StatusCode::kRefused, "vhost-user socket " + options_.socket_path +
                                            " already carries " + std::to_string(kMaxInboxes) +
                                            " jobs of this process: use another port");
  const auto in_use = [this](std::uint16_t udp_port) {
    return std::ranges::any_of(
        inboxes_, [udp_port](const Inbox* other) { return other->path.src_port == udp_port; });
  };
  do inbox->path.src_port = draw_udp_port();
  while (in_use(inbox->path.src_port));
  inboxes_.push_back(inbox.get());
  inbox->credit_frames = capacity * 3 / 4 / static_cast<std::uint32_t>(inboxes_.size());
  return inbox;
}

void VhostPort::detach(std::unique_ptr<Inbox> inbox) {
  const Lock lock(mutex_);
  plugin_.give_back(port_, inbox->lent.data(), inbox->lent_count);
  for (; inbox->count != 0; --inbox->count)
    plugin_.give_back(port_, &inbox->waiting[inbox->first++ % inbox->waiting.size()].frame, 1);
  std::erase(inboxes_, inbox.get());
}

// ---- frames ----

std::size_t VhostPort::receive(Inbox& inbox, std::span<Incoming, kBurst> datagrams,
                               TimeNs now) noexcept {
  const Lock lock(mutex_);
  now_ns_ = std::max(now_ns_, now);
  if (inbox.lent_count != 0) plugin_.give_back(port_, inbox.lent.data(), inbox.lent_count);
  keep_house(now);
  if (inbox.count == 0) look(inbox);
  inbox.path.dst_mac = path_.dst_mac;
  inbox.link_is_gone = link_is_gone_;
  inbox.receive_drops = inbox.dropped;
  inbox.lent_count = static_cast<std::uint32_t>(std::min(inbox.count, kBurst));
  for (std::uint32_t i = 0; i < inbox.lent_count; ++i) {
    const Received& received = inbox.waiting[inbox.first];
    inbox.lent[i] = received.frame;
    datagrams[i].bytes = received.payload;
    if (++inbox.first == inbox.waiting.size()) inbox.first = 0;
  }
  inbox.count -= inbox.lent_count;
  return inbox.lent_count;
}

std::uint32_t VhostPort::send(std::span<const sluice_dpdk_frame> frames) noexcept {
  const Lock lock(mutex_);
  return plugin_.tx_burst(port_, frames.data(), static_cast<std::uint32_t>(frames.size()));
}

// Receives, and returns whether a frame is there for `inbox`.
bool VhostPort::look(Inbox& inbox) noexcept {
  ++looks_;
  ++inbox.looks;
  for (int i = 0; i < kBurstsPerLook && inbox.count == 0; ++i)
    if (take_burst(inbox) < kBurst) break;
  return inbox.count != 0;
}

std::uint32_t VhostPort::take_burst(const Inbox& looking) noexcept {
  std::array<sluice_dpdk_frame, kBurst> frames;
  std::array<sluice_dpdk_frame, kBurst> unwanted;
  const std::uint32_t count = plugin_.rx_burst(port_, frames.data(), kBurst);
  std::uint32_t unwanted_count = 0;
  for (const sluice_dpdk_frame& held : std::span(frames).first(count)) {
    wire::Frame frame;
    // Shared memory does not corrupt bytes, so the sender's checksum is not verified.
    const bool valid =
        ok(wire::parse_frame({held.data, held.bytes}, wire::UdpChecksums::kTrust, frame));
    if (valid && frame.kind == wire::FrameKind::kArp) handle_arp(frame);
    if (!valid || frame.kind != wire::FrameKind::kUdp || !hand_over(frame, held, looking))
      unwanted[unwanted_count++] = held;
  }
  if (unwanted_count != 0) plugin_.give_back(port_, unwanted.data(), unwanted_count);
  return count;
}

// False: the frame is for no inbox, or its inbox is full. Such a frame is lost, as on any network.
bool VhostPort::hand_over(const wire::Frame& frame, const sluice_dpdk_frame& held,
                          const Inbox& looking) noexcept {
  if (frame.dst != path_.src || frame.src != path_.dst) return false;
  const auto to = std::ranges::find_if(
      inboxes_, [&](const Inbox* inbox) { return inbox->path.src_port == frame.dst_port; });
  if (to == inboxes_.end()) return false;
  heard_ns_ = now_ns_;
  asked_ = false;
  Inbox& inbox = **to;
  if (inbox.count == inbox.waiting.size()) {
    ++inbox.dropped;
    return false;
  }
  const std::size_t behind = inbox.first + inbox.count++;
  inbox.waiting[behind % inbox.waiting.size()] = {held, frame.payload};
  if (&inbox != &looking && std::exchange(inbox.asleep, false))
    ::eventfd_write(inbox.ready.get(), 1);
  return true;
}

// ---- sleeping ----

// A frame wakes no sleeper while another transport receives; a sleeper checks by itself whether
// that one still does.
bool VhostPort::somebody_else_looks(Inbox& inbox) const noexcept {
  const std::uint64_t looks = looks_ - inbox.looks;
  const bool looked = std::exchange(inbox.others_looks, looks) != looks;
  return looked && std::ranges::any_of(inboxes_, [&](const Inbox* other) {
           return other != &inbox && !other->asleep;
         });
}

void VhostPort::wait(Inbox& inbox, int wake_fd, DurationNs timeout_ns) noexcept {
  const int rx_fd = plugin_.rx_fd(port_);
  Lock lock(mutex_);
  const bool arms = !somebody_else_looks(inbox);
  if (arms && armed_++ == 0) plugin_.arm(port_, 1);
  // What arrived before arming raises no interrupt, so look once more.
  if (!look(inbox)) {
    inbox.asleep = true;
    const DurationNs bound = path_.dst_mac.is_zero() ? kArpInterval
                             : !arms                 ? kTrustInterval
                                                     : kLinkCheckInterval;
    const timespec timeout{0, std::min(timeout_ns, rx_fd < 0 ? kPollInterval : bound)};
    std::array<pollfd, 3> fds{
        {{wake_fd, POLLIN, 0}, {inbox.ready.get(), POLLIN, 0}, {arms ? rx_fd : -1, POLLIN, 0}}};
    lock.unlock();
    ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
    lock.lock();
    inbox.asleep = false;
    eventfd_t drained = 0;
    if ((fds[1].revents & POLLIN) != 0) ::eventfd_read(inbox.ready.get(), &drained);
    if ((fds[2].revents & POLLIN) != 0 && armed_ > 1) ::eventfd_read(rx_fd, &drained);
  }
  if (arms && --armed_ == 0) plugin_.arm(port_, 0);  // empties the descriptor, too
}

// ---- the link ----

void VhostPort::keep_house(TimeNs now) noexcept {
  const bool known = !path_.dst_mac.is_zero();
  if (now >= next_arp_ns_ && (!known || now - heard_ns_ >= kSilence)) {
    next_arp_ns_ = now + (known ? kSilentArpInterval : kArpInterval);
    asked_ = true;
    send_arp(wire::kBroadcastMac, {.operation = wire::kArpRequest,
                                   .sender_mac = path_.src_mac,
                                   .sender = path_.src,
                                   .target_mac = {},
                                   .target = path_.dst});
  }
  if (now >= next_link_check_ns_) {
    next_link_check_ns_ = now + kLinkCheckInterval;
    link_is_gone_ = link_is_gone_ || plugin_.link_up(port_) == 0;
  }
}

void VhostPort::handle_arp(const wire::Frame& frame) noexcept {
  const std::optional<wire::ArpPacket> arp = wire::parse_arp(frame.payload);
  if (!arp) return;
  const wire::ArpPacket& packet = *arp;
  if (packet.operation == wire::kArpReply) {
    // Only the reply that was asked for: any host on the link can send one.
    if (!asked_ || packet.sender != path_.dst || packet.target != path_.src ||
        packet.sender_mac.is_group() || packet.sender_mac.is_zero())
      return;
    asked_ = false;
    path_.dst_mac = packet.sender_mac;
    heard_ns_ = now_ns_;
  } else if (packet.operation == wire::kArpRequest && packet.target == path_.src) {
    send_arp(packet.sender_mac, {.operation = wire::kArpReply,
                                 .sender_mac = path_.src_mac,
                                 .sender = path_.src,
                                 .target_mac = packet.sender_mac,
                                 .target = packet.sender});
  }
}

void VhostPort::send_arp(const wire::Mac& to, const wire::ArpPacket& packet) noexcept {
  std::array<std::uint8_t, 64> bytes{};
  const std::size_t size = wire::encode_arp_frame(bytes, to, wire::kNoVlan, packet);
  const sluice_dpdk_frame frame{bytes.data(), static_cast<std::uint32_t>(size), 0, nullptr,
                                nullptr};
  plugin_.tx_burst(port_, &frame, 1);  // a lost one is asked again
}

}  // namespace sluice::client

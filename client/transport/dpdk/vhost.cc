#include "client/transport/dpdk/vhost.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/wire/inet.h"
#include "client/fork.h"
#include "client/transport/dpdk/loader.h"
#include "client/transport/dpdk/socket.h"

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
constexpr std::uint16_t kFirstEphemeralPort = 49152;
// Opening and closing exchange messages with the appliance, and DPDK waits for them without limit.
constexpr std::chrono::milliseconds kOpenLimit{4000};
constexpr std::chrono::milliseconds kCloseLimit{300};

Result<wire::IpAddress> parse_ipv4(const std::string& text, const char* what) {
  wire::IpAddress address{wire::Family::kIpv4, {}};
  if (::inet_pton(AF_INET, text.c_str(), address.bytes.data()) != 1) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(what) + " \"" + text + "\" must be an IPv4 address, as in 10.0.0.1");
  }
  return address;
}

std::string to_text(const wire::IpAddress& address, std::uint16_t port) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, address.bytes.data(), text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(port);
}

class VhostTransport final : public Transport {
 public:
  VhostTransport(const VhostOptions& options, const sluice_dpdk_plugin& plugin)
      : options_(options), plugin_(plugin) {}
  ~VhostTransport() override {
    if (port_ == nullptr) return;
    for (const int fd : fds_) forget_in_children(fd);
    run_bounded(
        kCloseLimit, [this] { plugin_.close(port_); }, [this] { shut_down(duplicates_); });
  }

  Status open(const Log& log) {
    auto remote = parse_ipv4(options_.host, "the appliance's address");
    if (!remote.ok()) return remote.status();
    if (Status status = choose_own_address(); !status.ok()) return status;
    struct stat info {};
    if (Status status = check_socket(options_.socket_path, info); !status.ok()) return status;
    Result<OwnedFd> claim = claim_socket(options_.socket_path, info);
    if (!claim.ok()) return claim.status();
    claim_ = std::move(claim).value();
    path_.dst = remote.value();
    path_.dst_port = options_.port;
    path_.traffic_class = wire::kEcnCapable;
    if (Status status = open_port(); !status.ok()) return status;
    log.write(SLUICE_LOG_DEBUG, "vhost-user port " + options_.socket_path + ": open, " +
                                    (plugin_.rx_fd(port_) < 0 ? "polled" : "with interrupts"));
    return {};
  }

  TransportFacts facts() const override {
    return {.local_address = to_text(path_.src, path_.src_port),
            .path_datagram_bytes = options_.mtu_bytes - wire::kIpv4Bytes - wire::kUdpBytes,
            .receive_credit_packets = plugin_.receive_capacity(port_) * 3 / 4};
  }

  std::span<const Incoming> receive(TimeNs now) noexcept override {
    keep_house(now);
    const std::uint32_t count =
        peeked_ != 0 ? std::exchange(peeked_, 0) : plugin_.rx_burst(port_, rx_.data(), kBurst);
    std::size_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      wire::Frame frame;
      // Shared memory does not corrupt bytes: the sender's checksum is not verified again.
      if (!ok(wire::parse_frame({rx_[i].data, rx_[i].bytes}, wire::UdpChecksums::kTrust, frame))) {
        continue;
      }
      if (frame.kind == wire::FrameKind::kArp) handle_arp(frame, now);
      if (frame.kind == wire::FrameKind::kUdp && is_for_us(frame)) {
        heard_ns_ = now;
        asked_ = false;
        incoming_[kept++].bytes = frame.payload;
      }
    }
    return {incoming_.data(), kept};
  }

  std::size_t send(std::span<const Outgoing> datagrams, TimeNs) noexcept override {
    if (path_.dst_mac.is_zero()) return 0;  // not known yet: keep_house() asks
    std::array<sluice_dpdk_frame, kBurst> frames;
    const std::size_t header_bytes = wire::udp_header_bytes(path_);
    const std::size_t count = std::min(datagrams.size(), kBurst);
    const std::size_t longest = options_.mtu_bytes + wire::kEthernetBytes;
    std::size_t ready = 0;
    for (; ready < count; ++ready) {
      const Outgoing& datagram = datagrams[ready];
      const std::size_t frame_bytes = header_bytes + datagram.total_bytes();
      if (frame_bytes > longest) break;
      path_.dst_port = static_cast<std::uint16_t>(options_.port + datagram.port_offset);
      DCHECK(datagram.payload.empty() || datagram.bytes % 2 == 0);  // or its sum would be shifted
      wire::encode_udp_headers(
          {datagram.data - header_bytes, header_bytes}, path_, datagram.total_bytes(),
          wire::sum_bytes({datagram.data, datagram.bytes}) + wire::sum_bytes(datagram.payload));
      frames[ready] = {
          datagram.data - header_bytes, static_cast<std::uint32_t>(header_bytes + datagram.bytes),
          static_cast<std::uint32_t>(datagram.payload.size()), datagram.payload.data()};
    }
    if (ready == 0 && count != 0) {  // the first one is too long: taken, and lost
      too_big_bytes_ = datagrams[0].total_bytes();
      ++send_errors_;
      return 1;
    }
    return plugin_.tx_burst(port_, frames.data(), static_cast<std::uint32_t>(ready));
  }

  bool poll_path_event(PathEvent& event) noexcept override {
    if (too_big_bytes_ != 0) {
      event = {PathEvent::Kind::kTooBig,
               std::exchange(too_big_bytes_, 0),
               facts().path_datagram_bytes,
               true,
               {}};
      return true;
    }
    if (!broken_ || reported_) return false;
    reported_ = true;
    event = {PathEvent::Kind::kBroken, 0, 0, false,
             Status(StatusCode::kUnreachable,
                    "the appliance at " + to_text(path_.dst, options_.port) +
                        " has closed its vhost-user port " + options_.socket_path +
                        ": it has ended, or was restarted")};
    return true;
  }

  void wait(int wake_fd, DurationNs timeout_ns) noexcept override {
    const int rx_fd = plugin_.rx_fd(port_);
    const DurationNs bound = path_.dst_mac.is_zero() ? kArpInterval : kLinkCheckInterval;
    const DurationNs sleep_ns = std::min(timeout_ns, rx_fd < 0 ? kPollInterval : bound);
    const timespec timeout{0, sleep_ns};
    std::array<pollfd, 2> fds{{{wake_fd, POLLIN, 0}, {rx_fd, POLLIN, 0}}};
    plugin_.arm(port_, 1);
    // What arrived before arming raises no interrupt, so look once more.
    peeked_ = plugin_.rx_burst(port_, rx_.data(), kBurst);
    if (peeked_ == 0) ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
    plugin_.arm(port_, 0);
  }

  TransportCounters counters() const noexcept override { return {.send_errors = send_errors_}; }

 private:
  Status open_port() {
    sluice_dpdk_options request{.socket_path = options_.socket_path.c_str(),
                                .mac = {},
                                .mtu_bytes = static_cast<std::uint16_t>(options_.mtu_bytes),
                                .log = nullptr};
    std::copy(path_.src_mac.bytes.begin(), path_.src_mac.bytes.end(), request.mac);
    std::string why;
    bool silent = false;
    run_bounded(
        kOpenLimit,
        [&] {
          port_ = plugin_.open(&request);
          if (port_ == nullptr) why = plugin_.error();
        },
        [&] {
          silent = true;
          shut_down(duplicate(descriptors_of(options_.socket_path)));
        });
    if (port_ == nullptr) {
      return {
          StatusCode::kUnreachable,
          "vhost-user port " + options_.socket_path + ": " +
              (silent ? "the other side has accepted and says nothing; is the appliance stopped?"
                      : why + "; has the appliance ended?")};
    }
    fds_ = descriptors_of(options_.socket_path);
    for (const int fd : fds_) close_in_children(fd);
    duplicates_ = duplicate(fds_);
    return {};
  }

  Status choose_own_address() {
    std::random_device random;
    path_.src_mac.bytes[0] = 0x02;  // locally administered
    for (std::size_t i = 1; i < 6; ++i) {
      path_.src_mac.bytes[i] = static_cast<std::uint8_t>(random());
    }
    path_.src_port =
        static_cast<std::uint16_t>(kFirstEphemeralPort + random() % (65536 - kFirstEphemeralPort));
    if (!options_.local_address.empty()) {
      auto local = parse_ipv4(options_.local_address, "the local address");
      if (!local.ok()) return local.status();
      path_.src = local.value();
      return {};
    }
    // Ranks of one job differ in the last byte; 169.254.0 and 169.254.255 are reserved (RFC 3927).
    path_.src = wire::ipv4_address(169, 254, static_cast<std::uint8_t>(1 + random() % 254),
                                   static_cast<std::uint8_t>(1 + options_.rank.value % 254));
    return {};
  }

  bool is_for_us(const wire::Frame& frame) const noexcept {
    return frame.dst == path_.src && frame.dst_port == path_.src_port && frame.src == path_.dst;
  }

  void keep_house(TimeNs now) noexcept {
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
      broken_ = broken_ || plugin_.link_up(port_) == 0;
    }
  }

  void handle_arp(const wire::Frame& frame, TimeNs now) noexcept {
    const std::optional<wire::ArpPacket> arp = wire::parse_arp(frame.payload);
    if (!arp) return;
    const wire::ArpPacket& packet = *arp;
    if (packet.operation == wire::kArpReply) {
      // Only what was asked for: anybody on the link can send a reply.
      if (!asked_ || packet.sender != path_.dst || packet.target != path_.src ||
          packet.sender_mac.is_group() || packet.sender_mac.is_zero())
        return;
      asked_ = false;
      path_.dst_mac = packet.sender_mac;
      heard_ns_ = now;
    } else if (packet.operation == wire::kArpRequest && packet.target == path_.src) {
      send_arp(packet.sender_mac, {.operation = wire::kArpReply,
                                   .sender_mac = path_.src_mac,
                                   .sender = path_.src,
                                   .target_mac = packet.sender_mac,
                                   .target = packet.sender});
    }
  }

  void send_arp(const wire::Mac& to, const wire::ArpPacket& packet) noexcept {
    std::array<std::uint8_t, 64> bytes{};
    const std::size_t size = wire::encode_arp_frame(bytes, to, wire::kNoVlan, packet);
    const sluice_dpdk_frame frame{bytes.data(), static_cast<std::uint32_t>(size), 0, nullptr};
    plugin_.tx_burst(port_, &frame, 1);  // a lost one is asked again
  }

  const VhostOptions options_;
  const sluice_dpdk_plugin& plugin_;
  sluice_dpdk_port* port_ = nullptr;
  OwnedFd claim_;
  std::vector<int> fds_;             // of the socket, owned by the plug-in
  std::vector<OwnedFd> duplicates_;  // ours, of the same socket
  wire::UdpPath path_;
  TimeNs next_arp_ns_ = 0;
  TimeNs heard_ns_ = 0;  // the appliance's last frame for us, or its answer to ARP
  bool asked_ = false;   // an ARP request of ours waits for its answer
  TimeNs next_link_check_ns_ = 0;
  std::size_t too_big_bytes_ = 0;
  bool broken_ = false;
  bool reported_ = false;
  std::uint64_t send_errors_ = 0;
  std::array<sluice_dpdk_frame, kBurst> rx_{};
  std::uint32_t peeked_ = 0;  // frames in rx_ that wait() found, for the next receive()
  std::array<Incoming, kBurst> incoming_{};
};

}  // namespace

Result<std::unique_ptr<Transport>> open_vhost(const VhostOptions& options, const Log& log) {
  const Result<const sluice_dpdk_plugin*> plugin = load_dpdk_plugin();
  if (!plugin.ok()) return plugin.status();
  return open_vhost_over(*plugin.value(), options, log);
}

Result<std::unique_ptr<Transport>> open_vhost_over(const sluice_dpdk_plugin& plugin,
                                                   const VhostOptions& options, const Log& log) {
  constexpr std::size_t kSmallestMtu = 256;
  constexpr std::size_t kLargestMtu = 9216;
  if (options.mtu_bytes < kSmallestMtu || options.mtu_bytes > kLargestMtu) {
    return Status(StatusCode::kInvalidArgument,
                  "mtu " + std::to_string(options.mtu_bytes) + " must be 256 to 9216 here");
  }
  auto transport = std::make_unique<VhostTransport>(options, plugin);
  if (Status status = transport->open(log); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace sluice::client

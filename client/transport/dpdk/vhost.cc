#include "client/transport/dpdk/vhost.h"

#include <algorithm>
#include <array>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/wire/inet.h"
#include "client/transport/dpdk/loader.h"
#include "client/transport/dpdk/vhost_port.h"

namespace sluice::client {
namespace {

class VhostTransport final : public Transport {
 public:
  VhostTransport(const VhostOptions& options, VhostPort::Shared port,
                 std::unique_ptr<VhostPort::Inbox> inbox)
      : options_(options), port_(std::move(port)), inbox_(std::move(inbox)) {}
  ~VhostTransport() override { port_->detach(std::move(inbox_)); }

  TransportFacts facts() const override {
    return {.local_address = address_of(inbox_->path.src, inbox_->path.src_port),
            .path_datagram_bytes = options_.mtu_bytes - wire::kIpv4Bytes - wire::kUdpBytes,
            .receive_credit_packets = inbox_->credit_frames};
  }

  std::span<const Incoming> receive(TimeNs now) noexcept override {
    return std::span(incoming_).first(port_->receive(*inbox_, incoming_, now));
  }

  std::size_t send(std::span<const Outgoing> datagrams, TimeNs) noexcept override {
    wire::UdpPath& path = inbox_->path;
    if (path.dst_mac.is_zero()) return 0;  // not known yet: the port asks
    std::array<sluice_dpdk_frame, kBurst> frames;
    const std::size_t header_bytes = wire::udp_header_bytes(path);
    const std::size_t count = std::min(datagrams.size(), kBurst);
    const std::size_t longest = options_.mtu_bytes + wire::kEthernetBytes;
    std::size_t ready = 0;
    for (; ready < count; ++ready) {
      const Outgoing& datagram = datagrams[ready];
      const std::size_t frame_bytes = header_bytes + datagram.total_bytes();
      if (frame_bytes > longest) break;
      path.dst_port = static_cast<std::uint16_t>(options_.port + datagram.port_offset);
      DCHECK(datagram.payload.empty() || datagram.bytes % 2 == 0);  // or its sum would be shifted
      wire::encode_udp_headers(
          {datagram.data - header_bytes, header_bytes}, path, datagram.total_bytes(),
          wire::sum_bytes({datagram.data, datagram.bytes}) + wire::sum_bytes(datagram.payload));
      frames[ready] = {
          datagram.data - header_bytes, static_cast<std::uint32_t>(header_bytes + datagram.bytes),
          static_cast<std::uint32_t>(datagram.payload.size()), datagram.payload.data(), nullptr};
    }
    if (ready == 0 && count != 0) {  // the first one is too long: taken, and lost
      too_big_bytes_ = datagrams[0].total_bytes();
      ++send_errors_;
      return 1;
    }
    return port_->send(std::span(frames).first(ready));
  }

  bool poll_path_event(PathEvent& event) noexcept override {
    if (too_big_bytes_ != 0) {
      event = {.kind = PathEvent::Kind::kTooBig,
               .datagram_bytes = std::exchange(too_big_bytes_, 0),
               .path_datagram_bytes = facts().path_datagram_bytes,
               .certain = true};
      return true;
    }
    if (!inbox_->link_is_gone || reported_) return false;
    reported_ = true;
    event = {.kind = PathEvent::Kind::kBroken,
             .status = Status(StatusCode::kUnreachable,
                              "the appliance at " + address_of(inbox_->path.dst, options_.port) +
                                  " has closed its vhost-user port " + options_.socket_path +
                                  ": it has ended, or was restarted")};
    return true;
  }

  void wait(int wake_fd, DurationNs timeout_ns) noexcept override {
    port_->wait(*inbox_, wake_fd, timeout_ns);
  }

  TransportCounters counters() const noexcept override {
    return {.send_errors = send_errors_, .receive_drops = inbox_->receive_drops};
  }

 private:
  static std::string address_of(const wire::IpAddress& address, std::uint16_t port) {
    return to_text(address) + ":" + std::to_string(port);
  }

  const VhostOptions options_;
  const VhostPort::Shared port_;
  std::unique_ptr<VhostPort::Inbox> inbox_;
  std::size_t too_big_bytes_ = 0;
  bool reported_ = false;
  std::uint64_t send_errors_ = 0;
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
  Result<VhostPort::Shared> port = VhostPort::open(plugin, options, log);
  if (!port.ok()) return port.status();
  VhostPort::Shared shared = std::move(port).value();
  Result<std::unique_ptr<VhostPort::Inbox>> inbox = shared->attach();
  if (!inbox.ok()) return inbox.status();
  return std::unique_ptr<Transport>(
      std::make_unique<VhostTransport>(options, std::move(shared), std::move(inbox).value()));
}

}  // namespace sluice::client

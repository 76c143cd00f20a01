#include "client/transport/udp/udp.h"

#include <linux/errqueue.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "aggregator/wire/inet.h"
#include "client/fork.h"
#include "client/transport/udp/moderation.h"
#include "client/transport/udp/pace.h"
#include "client/transport/udp/socket.h"
#include "client/transport/udp/trains.h"

namespace sluice::client {
namespace {

// Datagrams that wait in this host can't be overtaken any more, so few may: enough for the wire
// while the progress thread wakes up, about 110 frames. (The kernel doubles the number, and charges
// for whole buffers.)
constexpr int kSendBufferBytes = 128 << 10;
constexpr std::size_t kMinBufferCostBytes = 2304;  // what the kernel charges for a 1,500-byte frame
constexpr int kMaxErrorsPerDrain = 64;

int port_of(const sockaddr_storage& address) noexcept {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

class UdpTransport final : public Transport {
 public:
  explicit UdpTransport(const Log& log) : log_(log) {}

  Status open(const UdpOptions& options) {
    auto places = options.others;
    places.insert(places.begin(), {options.host, options.port});
    for (const auto& [host, port] : places) {
      auto remote = resolve(host, port, family_, 0);
      if (!remote.ok()) return remote.status();
      family_ = remote.value().family();
      Remote& added = remotes_.emplace_back(Remote{.address = remote.value(), .targets = {}});
      for (std::size_t offset = 0; offset < added.targets.size(); ++offset) {
        added.targets[offset] = added.address;
        added.targets[offset].set_port(static_cast<std::uint16_t>(port + offset));
      }
    }
    starts_late_ = options.starts_late;
    socket_ = OwnedFd(::socket(family_, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_) return io_error("cannot open a UDP socket");
    if (Status status = bind_local(options); !status.ok()) return status;
    set_options(options.sharers);
    if (options.trains) {
      if (!TrainSender::offered(socket_.get())) sender_.give_up();
      facts_.offloads = std::string(sender_.trains() ? "UDP_SEGMENT" : "") +
                        (TrainReceiver::switch_on(socket_.get()) ? " UDP_GRO" : "");
    } else {
      sender_.give_up();
    }
    return {};
  }

  TransportFacts facts() const override { return facts_; }

  std::span<const Incoming> receive(TimeNs now) noexcept override {
    if (!receiver_.fetch(socket_.get())) {
      if (errno != EAGAIN && errno != EINTR) read_errors();
      return {};
    }
    const std::size_t count = receiver_.take(
        incoming_, [this](const sockaddr_storage& from) { return index_of(from).has_value(); });
    moderation_.on_receive(static_cast<std::uint32_t>(count), now);
    return {incoming_.data(), count};
  }

  // At most one train, or every second train would be short.
  std::size_t send_limit_bytes() const noexcept override {
    return std::min(pace_.limit_bytes(), kMaxTrainBytes - kMaxDatagramBytes);
  }

  std::size_t send(std::span<const Outgoing> datagrams, TimeNs now) noexcept override {
    datagrams = datagrams.first(std::min(datagrams.size(), kBurst));
    std::size_t taken = 0;
    std::size_t bytes = 0;
    blocked_ = false;
    // An error belongs to the first message that was not sent, or to a datagram sent earlier.
    // Either way the loop ends after as many errors as there are datagrams.
    for (std::size_t errors = 0; taken < datagrams.size() && errors <= datagrams.size();) {
      const std::span<mmsghdr> messages = sender_.prepare(
          datagrams.subspan(taken), [this](const Outgoing& datagram) -> auto& {
            return remotes_[datagram.address].targets[datagram.port_offset];
          });
      const int sent = ::sendmmsg(socket_.get(), messages.data(),
                                  static_cast<unsigned>(messages.size()), MSG_DONTWAIT);
      for (int i = 0; i < sent; ++i) {
        const std::size_t train = sender_.train(static_cast<std::size_t>(i));
        bytes += messages[static_cast<std::size_t>(i)].msg_len;
        taken += train;
        if (train > 1) segmented_ += train;
      }
      if (sent > 0 || errno == EINTR) continue;
      if (errno == EAGAIN || errno == ENOBUFS) {
        blocked_ = true;
        break;
      }
      if (sender_.train(0) > 1 && (errno == EINVAL || errno == EIO)) {
        give_up_trains(errno);
        continue;
      }
      ++errors;
      taken += handle_send_error(errno, datagrams[taken]);
    }
    pace_.on_send(bytes, blocked_, now);
    return taken;
  }

  bool poll_path_event(PathEvent& event) noexcept override {
    if (events_.empty()) return false;
    event = std::move(events_.front());
    events_.erase(events_.begin());
    return true;
  }

  void wait(int wake_fd, DurationNs timeout_ns) noexcept override {
    const DurationNs rest_ns = std::min(timeout_ns, moderation_.take_rest());
    if (rest_ns != 0) timeout_ns = rest_ns;
    if (!blocked_) pace_.on_rest();
    // During a rest arriving packets do not end the wait, but room to send does.
    const short socket_events =
        static_cast<short>((rest_ns == 0 ? POLLIN : 0) | (blocked_ ? POLLOUT : 0));
    std::array<pollfd, 2> fds{
        {{socket_events == 0 ? -1 : socket_.get(), socket_events, 0}, {wake_fd, POLLIN, 0}}};
    const timespec timeout{timeout_ns / kSecond, timeout_ns % kSecond};
    ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
    if ((fds[0].revents & POLLERR) != 0) read_errors();
  }

  int poll_fd() const noexcept override { return socket_.get(); }

  TransportCounters counters() const noexcept override {
    return {.send_errors = send_errors_,
            .segmented = segmented_,
            .coalesced = receiver_.coalesced(),
            .receive_drops = receiver_.dropped()};
  }

 private:
  struct TooBigReports {
    bool local = false;    // of this host, about a datagram that was not sent
    bool network = false;  // by ICMP, about one sent earlier
  };

  Status bind_local(const UdpOptions& options) {
    if (!options.local_address.empty()) {
      auto local = resolve(options.local_address, 0, family_, AI_NUMERICHOST);
      if (!local.ok()) return local.status();
      if (::bind(socket_.get(), local.value().get(), local.value().bytes) != 0) {
        return io_error("local address " + options.local_address +
                        " cannot be used; it must be an address of this host");
      }
    }
    // A connected socket knows the source address and the interface's MTU; ours stays unconnected.
    const SocketAddress& remote = remotes_.front().address;
    OwnedFd probe(::socket(family_, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || ::connect(probe.get(), remote.get(), remote.bytes) != 0) {
      return io_error("no route to " + remote.text() +
                      (remote.needs_interface()
                           ? ", a link-local address: name its interface too, as in [fe80::1%eth0]"
                           : ""));
    }
    const bool ipv6 = family_ == AF_INET6;
    const int local_mtu = ipv6 ? get_int(probe.get(), IPPROTO_IPV6, IPV6_MTU)
                               : get_int(probe.get(), IPPROTO_IP, IP_MTU);
    std::size_t mtu_bytes = options.mtu_bytes;
    if (local_mtu > 0) mtu_bytes = std::min(mtu_bytes, static_cast<std::size_t>(local_mtu));
    header_bytes_ = wire::kUdpBytes + (ipv6 ? wire::kIpv6Bytes : wire::kIpv4Bytes);
    facts_.path_datagram_bytes = mtu_bytes > header_bytes_ ? mtu_bytes - header_bytes_ : 0;
    SocketAddress local;
    local.bytes = sizeof local.storage;
    if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local.storage), &local.bytes) ==
        0) {
      facts_.local_address = local.text();
    }
    return {};
  }

  void set_options(std::uint32_t sharers) noexcept {
    const int fd = socket_.get();
    mark_datagrams(fd, family_);
    if (family_ == AF_INET)
      set_int(fd, IPPROTO_IP, IP_RECVERR, 1);
    else
      set_int(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
    grow_receive_buffer(fd);
    set_int(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
    set_int(fd, SOL_SOCKET, SO_SNDBUF, kSendBufferBytes / static_cast<int>(sharers));
    // The kernel charges for whole buffers: twice the payload is a safe guess for large frames. An
    // eighth is left for control packets and for what arrives late.
    const std::size_t cost = std::max(kMinBufferCostBytes, 2 * facts_.path_datagram_bytes);
    const auto buffer_bytes = static_cast<std::size_t>(get_int(fd, SOL_SOCKET, SO_RCVBUF));
    facts_.receive_credit_packets =
        static_cast<std::uint32_t>(std::max<std::size_t>(8, buffer_bytes / cost * 7 / 8));
    facts_.more_credit = way_to_grow_receive_buffer(buffer_bytes);
    moderation_ = Moderation(facts_.receive_credit_packets);
  }

  // No checksums by the device, or a path that no longer carries so much.
  void give_up_trains(int error) noexcept {
    sender_.give_up();
    log_.write(SLUICE_LOG_WARN, refused_trains("to " + remotes_.front().address.text(), error));
  }

  // Returns how many datagrams the error consumed: 0 for a pending error of an earlier datagram.
  std::size_t handle_send_error(int error, const Outgoing& datagram) noexcept {
    if (error == ECONNREFUSED) {  // reported once, by whatever call comes next
      read_errors();
      return 0;
    }
    ++send_errors_;
    if (error == EMSGSIZE) {
      const TooBigReports reports = read_errors();  // carries the MTU
      if (!reports.local && reports.network) return 0;
      if (!reports.local)
        push_event({.kind = PathEvent::Kind::kTooBig,
                    .address = datagram.address,
                    .datagram_bytes = datagram.total_bytes(),
                    .certain = true});
    } else {
      push_event({.kind = PathEvent::Kind::kUnreachable, .address = datagram.address});
      read_errors();
    }
    return 1;
  }

  // The appliance that has this address. Two of one host differ by their ports.
  std::optional<std::uint16_t> index_of(const sockaddr_storage& peer) const noexcept {
    std::optional<std::uint16_t> found;
    for (std::uint16_t index = 0; index < remotes_.size(); ++index) {
      const Remote& remote = remotes_[index];
      if (!remote.address.same_host(peer)) continue;
      if (!found) found = index;
      if (port_of(peer) - port_of(remote.address.storage) <= int{kMaxShards} &&
          port_of(peer) >= port_of(remote.address.storage))
        found = index;
    }
    return found;
  }

  void push_event(PathEvent event) noexcept {
    if (starts_late_ && event.kind == PathEvent::Kind::kUnreachable) return;
    if (events_.size() < kMaxPathEvents) events_.push_back(std::move(event));
  }

  // Returns the senders of errors about a datagram that was too big.
  TooBigReports read_errors() noexcept {
    TooBigReports reports;
    for (int i = 0; i < kMaxErrorsPerDrain; ++i) {
      alignas(cmsghdr) std::array<char, 512> control{};
      std::array<std::uint8_t, 64> start{};  // only the length of the offending datagram matters
      iovec iov{start.data(), start.size()};
      sockaddr_storage to{};
      msghdr message{.msg_name = &to,
                     .msg_namelen = sizeof to,
                     .msg_iov = &iov,
                     .msg_iovlen = 1,
                     .msg_control = control.data(),
                     .msg_controllen = control.size()};
      const ssize_t bytes =
          ::recvmsg(socket_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT | MSG_TRUNC);
      if (bytes < 0) break;
      for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        const bool is_error = (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR) ||
                              (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR);
        if (is_error) {
          sock_extended_err error;
          std::memcpy(&error, CMSG_DATA(part), sizeof error);
          handle_network_error(error, index_of(to).value_or(0), static_cast<std::size_t>(bytes),
                               reports);
        }
      }
    }
    return reports;
  }

  void handle_network_error(const sock_extended_err& error, std::uint16_t address,
                            std::size_t datagram_bytes, TooBigReports& reports) noexcept {
    if (error.ee_errno == EMSGSIZE) {
      const std::size_t path =
          error.ee_info > header_bytes_ ? error.ee_info - header_bytes_ : std::size_t{0};
      const bool local = error.ee_origin == SO_EE_ORIGIN_LOCAL;
      (local ? reports.local : reports.network) = true;
      push_event({.kind = PathEvent::Kind::kTooBig,
                  .address = address,
                  .datagram_bytes = datagram_bytes,
                  .path_datagram_bytes = path,
                  .certain = local});
    } else if (error.ee_errno == ECONNREFUSED || error.ee_errno == EHOSTUNREACH ||
               error.ee_errno == ENETUNREACH) {
      push_event({.kind = PathEvent::Kind::kUnreachable, .address = address});
    }
  }

  const Log log_;
  OwnedFd socket_;
  struct Remote {
    SocketAddress address;
    std::array<SocketAddress, kMaxShards + 1> targets;
  };
  std::vector<Remote> remotes_;  // as options name them
  int family_ = AF_UNSPEC;       // of all
  bool starts_late_ = false;
  std::size_t header_bytes_ = 0;
  TransportFacts facts_;
  Moderation moderation_{0};  // set when the receive buffer's size is known
  bool blocked_ = false;      // the last send() left something
  std::uint64_t send_errors_ = 0;
  std::vector<PathEvent> events_;  // few, and rarely any
  Pace pace_;
  TrainSender sender_{true};
  TrainReceiver receiver_;
  std::array<Incoming, kBurst> incoming_{};
  std::uint64_t segmented_ = 0;
};

}  // namespace

Result<std::unique_ptr<Transport>> open_udp(const UdpOptions& options, const Log& log) {
  auto transport = std::make_unique<UdpTransport>(log);
  if (Status status = transport->open(options); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace sluice::client

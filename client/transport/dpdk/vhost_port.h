// A vhost-user socket that this process has open, and the transports on it.
//
// vhost-user is point to point: a socket has one link and belongs to one process. The jobs of the
// process share it: each has a transport (vhost.cc) with an inbox here, and a frame is for the
// inbox whose UDP port it names. There is no thread: a transport that receives takes frames for all
// inboxes and wakes the transports that sleep.
//
// Any thread. A call locks the port for a burst at most; opening and closing take as long as the
// appliance needs.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "aggregator/wire/inet.h"
#include "client/fork.h"
#include "client/transport/dpdk/socket.h"
#include "client/transport/dpdk/vhost.h"

namespace sluice::client {

std::string to_text(const wire::IpAddress& address);  // an IPv4 address

class VhostPort {
 public:
  static constexpr std::size_t kMaxInboxes = 16;

  struct Close {
    void operator()(VhostPort* port) const;
  };
  using Shared = std::unique_ptr<VhostPort, Close>;

  struct Received {
    sluice_dpdk_frame frame;
    std::span<const std::uint8_t> payload;
  };
  // The inbox of one transport.
  struct Inbox {
    // For the transport's thread; up to date as of the last receive().
    wire::UdpPath path;               // to the appliance; without MAC address while it is not known
    bool link_is_gone = false;        // for good
    std::uint32_t credit_frames = 0;  // its share of the frames that may wait to be received
    std::uint64_t receive_drops = 0;  // frames for it that were dropped for lack of room
    std::array<sluice_dpdk_frame, kBurst> lent{};
    std::uint32_t lent_count = 0;
    // Under the port's lock.
    std::vector<Received> waiting;  // a ring
    std::size_t first = 0;
    std::size_t count = 0;
    std::uint64_t dropped = 0;
    bool asleep = false;
    std::uint64_t looks = 0;         // receives of this transport
    std::uint64_t others_looks = 0;  // receives of the other transports, when it slept last
    OwnedFd ready;                   // an eventfd: the transport sleeps, and a frame came for it
  };

  // The port that this process has open at the socket; opens it if there is none.
  static Result<Shared> open(const sluice_dpdk_plugin& plugin, const VhostOptions& options,
                             const Log& log);

  Result<std::unique_ptr<Inbox>> attach();
  void detach(std::unique_ptr<Inbox> inbox);

  // Receives up to kBurst datagrams, which are valid until the next call. Also does the
  // housekeeping of the link.
  std::size_t receive(Inbox& inbox, std::span<Incoming, kBurst> datagrams, TimeNs now) noexcept;
  // Sends frames; returns how many the ring has taken.
  std::uint32_t send(std::span<const sluice_dpdk_frame> frames) noexcept;
  // As Transport::wait().
  void wait(Inbox& inbox, int wake_fd, DurationNs timeout_ns) noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  VhostPort(const sluice_dpdk_plugin& plugin, const VhostOptions& options)
      : plugin_(plugin), options_(options) {}
  ~VhostPort();

  Status open_link(SocketId id);
  Status open_device();
  Status choose_own_address();
  Status why_not_shared(const VhostOptions& options) const;
  bool link_has_gone() noexcept;
  // With the lock held.
  bool look(Inbox& inbox) noexcept;
  std::uint32_t take_burst(const Inbox& looking) noexcept;
  bool hand_over(const wire::Frame& frame, const sluice_dpdk_frame& held,
                 const Inbox& looking) noexcept;
  bool somebody_else_looks(Inbox& inbox) const noexcept;
  void keep_house(TimeNs now) noexcept;
  void handle_arp(const wire::Frame& frame) noexcept;
  void send_arp(const wire::Mac& to, const wire::ArpPacket& packet) noexcept;

  const sluice_dpdk_plugin& plugin_;
  const VhostOptions options_;
  SocketId socket_;
  const pid_t pid_ = ::getpid();
  std::size_t users_ = 0;  // under the lock of all ports, as the claim
  OwnedFd claim_;
  sluice_dpdk_port* port_ = nullptr;
  std::vector<int> fds_;             // of the socket, owned by the plug-in
  std::vector<OwnedFd> duplicates_;  // duplicates of them, owned by this object
  wire::UdpPath path_;               // without its own UDP port

  std::mutex mutex_;  // guards all that follows, and the calls of the plug-in
  std::vector<Inbox*> inboxes_;
  std::uint64_t looks_ = 0;
  std::uint32_t armed_ = 0;  // sleeping transports that a frame wakes
  TimeNs now_ns_ = 0;
  TimeNs next_arp_ns_ = 0;
  TimeNs heard_ns_ = 0;  // when the appliance's last frame, or its answer to ARP, came
  bool asked_ = false;   // an ARP request waits for its answer
  TimeNs next_link_check_ns_ = 0;
  bool link_is_gone_ = false;
};

}  // namespace sluice::client

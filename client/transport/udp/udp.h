// Kernel UDP sockets: the default transport.
//
// A transport has one unconnected socket, so that one source port sends to the control port and to
// every data port. "Don't fragment" is set, ICMP errors are read from the error queue, and
// datagrams carry ECT(0). The kernel computes and verifies UDP checksums. Datagrams are sent and
// received in trains (trains.h) if the kernel and the device can.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/base/status.h"
#include "client/log.h"
#include "client/transport/transport.h"

namespace sluice::client {

struct UdpOptions {
  std::string host;  // a name, an IPv4 or an IPv6 address
  std::uint16_t port = kDefaultPort;
  // Further appliances, of the same address family. A datagram says which one it is for.
  std::vector<std::pair<std::string, std::uint16_t>> others;
  std::string local_address;  // empty: the kernel chooses
  std::size_t mtu_bytes = 1500;
  bool trains = true;         // if the kernel supports them
  std::uint32_t sharers = 1;  // sockets that send through the same port at the same time
  bool starts_late =
      false;  // the other end may not listen yet: no event tells that nothing listens
};

// Resolves the host (may block as long as the system's resolver does) and opens the socket. Tells
// fork.h of the descriptor, and `log` when trains are refused.
Result<std::unique_ptr<Transport>> open_udp(const UdpOptions& options, const Log& log = {});

}  // namespace sluice::client

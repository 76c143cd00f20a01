// A vhost-user link to an appliance on the same machine, through the DPDK plug-in.
//
// This part has no DPDK: it speaks ARP, IPv4 and UDP in the frames that the plug-in moves, with an
// IP address, a UDP port and a MAC address of its own. The appliance learns them from the packets.
// Two workers that draw the same IP address still differ in MAC address and UDP port. The jobs of a
// process at one socket differ in the UDP port only (vhost_port.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "aggregator/base/status.h"
#include "aggregator/base/types.h"
#include "client/log.h"
#include "client/transport/dpdk/plugin.h"
#include "client/transport/transport.h"

namespace sluice::client {

struct VhostOptions {
  std::string host;  // the appliance's IPv4 address
  std::uint16_t port = kDefaultPort;
  std::string socket_path;
  std::string local_address;  // IPv4; empty: drawn from 169.254.0.0/16
  std::size_t mtu_bytes = 1500;
  Rank rank;
  // How long opening the link may take from when the appliance has accepted.
  std::chrono::milliseconds open_limit{10'000};
};

Result<std::unique_ptr<Transport>> open_vhost(const VhostOptions& options, const Log& log);

// As open_vhost(), with a given plug-in, which must outlive the transport.
Result<std::unique_ptr<Transport>> open_vhost_over(const sluice_dpdk_plugin& plugin,
                                                   const VhostOptions& options, const Log& log);

}  // namespace sluice::client

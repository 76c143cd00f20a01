// Chooses and opens the transport that an address asks for.
#pragma once

#include <memory>
#include <string>

#include "aggregator/base/status.h"
#include "aggregator/base/types.h"
#include "client/address.h"
#include "client/log.h"
#include "client/transport/transport.h"

namespace sluice::client {

struct TransportRequest {
  Address address;
  std::string local_address;  // empty: chosen
  std::string secret;         // inproc: of the appliance, if this worker makes it
  std::size_t mtu_bytes = 1500;
  Rank rank;
  std::uint32_t sharers = 1;  // udp: transports that send through the same port at once
  bool starts_late = false;   // udp: what listens there may not yet
};

// May block: host names are resolved, the DPDK plug-in is loaded and started.
Result<std::unique_ptr<Transport>> open_transport(const TransportRequest& request, const Log& log);

}  // namespace sluice::client

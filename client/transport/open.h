// Opens the transport that an address names.
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
  std::string secret;         // inproc: of the appliance, if this worker creates it
  std::size_t mtu_bytes = 1500;
  Rank rank;
  std::uint32_t sharers = 1;  // udp: transports that send through the same port at the same time
  bool starts_late = false;   // udp: the other end may not listen yet
};

// May block while host names are resolved, or the DPDK plug-in is loaded and started.
Result<std::unique_ptr<Transport>> open_transport(const TransportRequest& request, const Log& log);

}  // namespace sluice::client

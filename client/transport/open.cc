#include "client/transport/open.h"

#include "client/transport/inproc/inproc.h"
#include "client/transport/udp/udp.h"

namespace sluice::client {

Result<std::unique_ptr<Transport>> open_transport(const TransportRequest& request,
                                                  [[maybe_unused]] const Log& log) {
  const Address& address = request.address;
  switch (address.scheme) {
    case Address::Scheme::kUdp:
      return open_udp({.host = address.host,
                       .port = address.port,
                       .local_address = request.local_address,
                       .mtu_bytes = request.mtu_bytes});
    case Address::Scheme::kInproc:
      return open_inproc(
          {.name = address.host, .secret = request.secret, .mtu_bytes = request.mtu_bytes});
    case Address::Scheme::kVhost: break;
  }
  return Status(StatusCode::kNotFound, "vhost: this build has no DPDK plug-in");
}

}  // namespace sluice::client

#include "client/transport/open.h"

#include "client/transport/dpdk/vhost.h"
#include "client/transport/inproc/inproc.h"
#include "client/transport/udp/udp.h"

namespace sluice::client {

Result<std::unique_ptr<Transport>> open_transport(const TransportRequest& request, const Log& log) {
  const Address& address = request.address;
  switch (address.scheme) {
    case Address::Scheme::kUdp:
      return open_udp({.host = address.host,
                       .port = address.port,
                       .others = address.others,
                       .local_address = request.local_address,
                       .mtu_bytes = request.mtu_bytes,
                       .sharers = request.sharers,
                       .starts_late = request.starts_late},
                      log);
    case Address::Scheme::kVhost:
      return open_vhost({.host = address.host,
                         .port = address.port,
                         .socket_path = address.path,
                         .local_address = request.local_address,
                         .mtu_bytes = request.mtu_bytes,
                         .rank = request.rank},
                        log);
    case Address::Scheme::kInproc: break;
  }
  return open_inproc(
      {.name = address.host, .secret = request.secret, .mtu_bytes = request.mtu_bytes});
}

}  // namespace sluice::client

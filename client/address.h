// The address of an appliance as users write it: udp://host:port,...,
// vhost://host:port/path/to/socket, inproc://name. Pure text; nothing is resolved or opened here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"

namespace sluice::client {

struct Address {
  enum class Scheme : std::uint8_t { kUdp, kVhost, kInproc };
  Scheme scheme{};
  std::string host;  // a name or an IP address without brackets; the name for inproc
  std::uint16_t port = kDefaultPort;
  std::string path;  // vhost: the socket, absolute
  // udp: where the job moves when the appliance is lost, in that order, and then to the first again
  std::vector<std::pair<std::string, std::uint16_t>> others;
};

// "udp://10.0.0.1:7700" of each host of an address, the first first.
std::vector<std::string> texts_of(const Address& address);

// The message of a failure shows the address and an example of what is expected.
Result<Address> parse_address(std::string_view text);

}  // namespace sluice::client

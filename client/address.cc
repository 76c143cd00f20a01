#include "client/address.h"

#include <charconv>

namespace sluice::client {
namespace {

Status bad_address(std::string_view text, std::string_view why) {
  return {StatusCode::kInvalidArgument, "address \"" + std::string(text) +
                                            "\": " + std::string(why) +
                                            "; expected udp://10.0.0.1:7700 (or several, with "
                                            "commas), vhost://10.0.0.1:7700/path/to/socket, "
                                            "inproc://name or bcube://n,k?levels=ADDRESS,..."};
}

// Splits "host", "host:port", "[v6]" or "[v6]:port". Empty result: fine.
std::string_view split_host_port(std::string_view text, Address& address) {
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return "the bracket of the IPv6 address is not closed";
    address.host = text.substr(1, close - 1);
    port = text.substr(close + 1);
  } else {
    const std::size_t colon = text.find(':');
    if (colon != text.rfind(':'))
      return "an IPv6 address needs brackets, as in udp://[fd00::1]:7700";
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon);
  }
  if (address.host.empty()) return "the host is missing";
  if (port.empty()) return {};
  if (port[0] != ':') return "the closing bracket must be followed by :port or nothing";
  port.remove_prefix(1);
  if (port.find('/') != std::string_view::npos)
    return "nothing follows the port: the job's name is an option of its own";
  unsigned value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  // The data ports follow the control port.
  if (error != std::errc() || end != port.data() + port.size() || value == 0 ||
      value > 65535 - kMaxShards) {
    return "the port must be a number from 1 to 65519";
  }
  address.port = static_cast<std::uint16_t>(value);
  return {};
}

}  // namespace

Result<Address> parse_address(std::string_view text) {
  const std::size_t separator = text.find("://");
  if (separator == std::string_view::npos) return bad_address(text, "no scheme");
  const std::string_view scheme = text.substr(0, separator);
  std::string_view rest = text.substr(separator + 3);
  Address address;
  if (scheme == "inproc") {
    if (rest.empty()) return bad_address(text, "the name is missing");
    address.scheme = Address::Scheme::kInproc;
    address.host = rest;
    return address;
  }
  if (scheme == "vhost") {
    address.scheme = Address::Scheme::kVhost;
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos || slash + 1 == rest.size()) {
      return bad_address(text, "the path of the vhost-user socket is missing");
    }
    address.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  } else if (scheme == "udp") {
    address.scheme = Address::Scheme::kUdp;
    if (rest.ends_with('/')) rest.remove_suffix(1);
    const std::size_t comma = rest.find(',');
    for (std::string_view others = rest; comma != std::string_view::npos;) {
      others.remove_prefix(others.find(',') + 1);
      Address other;
      const std::string_view problem = split_host_port(others.substr(0, others.find(',')), other);
      if (!problem.empty()) return bad_address(text, problem);
      address.others.emplace_back(std::move(other.host), other.port);
      if (others.find(',') == std::string_view::npos) break;
    }
    rest = rest.substr(0, comma);
  } else {
    return bad_address(text, "unknown scheme \"" + std::string(scheme) + "\"");
  }
  const std::string_view problem = split_host_port(rest, address);
  if (!problem.empty()) return bad_address(text, problem);
  return address;
}

std::vector<std::string> texts_of(const Address& address) {
  std::vector<std::string> texts;
  const auto add = [&](const std::string& host, std::uint16_t port) {
    const bool ipv6 = host.find(':') != std::string::npos;
    texts.push_back("udp://" + (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port));
  };
  add(address.host, address.port);
  for (const auto& [host, port] : address.others) add(host, port);
  return texts;
}

}  // namespace sluice::client

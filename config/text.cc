#include "config/text.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <vector>

namespace sluice::config {
namespace {

constexpr std::string_view kPollingNames[] = {"adaptive", "busy"};
constexpr std::string_view kLogLevelNames[] = {"trace", "debug", "info", "warning", "error"};
constexpr std::string_view kPortTypeNames[] = {"vhost-user", "af_packet", "af_xdp", "tap", "pci"};
constexpr std::string_view kProtocolNames[] = {"udp", "tcp"};

std::optional<unsigned> parse_decimal(std::string_view text, unsigned max) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

// Splits "address/length", asks inet_pton for the address and checks the length.
template <class Prefix>
std::optional<Prefix> parse_prefix(std::string_view text, int family, unsigned max_length) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto length = parse_decimal(text.substr(slash + 1), max_length);
  Prefix prefix;
  if (!length || inet_pton(family, std::string(text.substr(0, slash)).c_str(), &prefix.octets) != 1)
    return std::nullopt;
  prefix.prefix_length = static_cast<std::uint8_t>(*length);
  return prefix;
}

template <class Prefix>
std::string prefix_text(const Prefix& prefix, int family) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, &prefix.octets, text, sizeof text);
  return std::string(text) + "/" + std::to_string(prefix.prefix_length);
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// 'h' stands for a hexadecimal digit, 'o' for an octal one, anything else for itself.
bool matches(std::string_view text, std::string_view pattern) {
  return std::ranges::equal(text, pattern, [](char c, char p) {
    return p == 'h' ? is_hex(c) : p == 'o' ? c >= '0' && c <= '7' : c == p;
  });
}

}  // namespace

std::optional<Ipv4Prefix> parse_ipv4_prefix(std::string_view text) {
  return parse_prefix<Ipv4Prefix>(text, AF_INET, 32);
}

std::optional<Ipv6Prefix> parse_ipv6_prefix(std::string_view text) {
  return parse_prefix<Ipv6Prefix>(text, AF_INET6, 128);
}

std::optional<IpPrefix> parse_ip_prefix(std::string_view text) {
  if (const auto prefix = parse_ipv4_prefix(text)) return *prefix;
  if (const auto prefix = parse_ipv6_prefix(text)) return *prefix;
  return std::nullopt;
}

std::optional<MacAddress> parse_mac(std::string_view text) {
  if (!matches(text, "hh:hh:hh:hh:hh:hh")) return std::nullopt;
  MacAddress mac{};
  for (std::size_t i = 0; i < mac.size(); ++i)
    std::from_chars(text.data() + 3 * i, text.data() + 3 * i + 2, mac[i], 16);
  return mac;
}

std::string to_text(const Ipv4Prefix& prefix) { return prefix_text(prefix, AF_INET); }
std::string to_text(const Ipv6Prefix& prefix) { return prefix_text(prefix, AF_INET6); }
std::string to_text(const IpPrefix& prefix) {
  return std::visit([](const auto& either) { return to_text(either); }, prefix);
}

std::string to_text(const MacAddress& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
                mac[4], mac[5]);
  return text;
}

std::string to_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string result(text, end);
  // TOML tells floats from integers by the point or the exponent.
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

std::span<const std::string_view> names_of(Polling) { return kPollingNames; }
std::span<const std::string_view> names_of(LogLevel) { return kLogLevelNames; }
std::span<const std::string_view> names_of(PortType) { return kPortTypeNames; }
std::span<const std::string_view> names_of(Protocol) { return kProtocolNames; }

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned char>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + '"';
}

bool is_label(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

bool is_file_mode(std::string_view text) {
  return (text.size() == 3 || (text.size() == 4 && text[0] == '0')) &&
         std::ranges::all_of(text, [](char digit) { return '0' <= digit && digit <= '7'; });
}

bool is_pci_address(std::string_view text) { return matches(text, "hhhh:hh:hh.o"); }

bool is_host_and_port(std::string_view text) {
  if (text.empty()) return true;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const auto port = parse_decimal(text.substr(colon + 1), 65535);
  if (!port || *port == 0) return false;
  std::string host(text.substr(0, colon));
  in6_addr address;
  if (host.front() == '[' && host.back() == ']')
    return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address) == 1;
  return host == "localhost" || inet_pton(AF_INET, host.c_str(), &address) == 1;
}

}  // namespace sluice::config

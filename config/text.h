// Text forms of the values that a config file holds: addresses, enumerations, TOML literals.
//
// Pure: no files, no host. Not for wire data. Called by the reader, the checks and the renderer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "aggregator/base/spelling.h"
#include "config/config.h"

namespace sluice::config {

std::optional<Ipv4Prefix> parse_ipv4_prefix(std::string_view text);  // "10.77.0.1/24"
std::optional<Ipv6Prefix> parse_ipv6_prefix(std::string_view text);  // "fd00::1/64"
std::optional<IpPrefix> parse_ip_prefix(std::string_view text);      // either of them
std::optional<MacAddress> parse_mac(std::string_view text);          // "02:51:0a:4d:00:01"

std::string to_text(const Ipv4Prefix& prefix);
std::string to_text(const Ipv6Prefix& prefix);
std::string to_text(const IpPrefix& prefix);
std::string to_text(const MacAddress& mac);
std::string to_text(double value);  // shortest form that reads back as the same TOML float

// The names of an enumeration in the file, in the order of its enumerators.
std::span<const std::string_view> names_of(Polling);
std::span<const std::string_view> names_of(LogLevel);
std::span<const std::string_view> names_of(PortType);
std::span<const std::string_view> names_of(Protocol);

template <class Enum>
std::string_view label_of(Enum value) {
  return names_of(value)[static_cast<std::size_t>(value)];
}

// A TOML basic string: quoted, with quotes, backslashes and control characters escaped.
std::string in_quotes(std::string_view text);

// Forms of strings, each with the wording of its error.
bool is_label(std::string_view text);          // letters, digits, '_' and '-'
bool is_printable(std::string_view text);      // ASCII from space to '~'
bool is_file_mode(std::string_view text);      // 660 or 0660, octal
bool is_pci_address(std::string_view text);    // 0000:01:00.0
bool is_host_and_port(std::string_view text);  // 127.0.0.1:9464, [::1]:9464, or empty

}  // namespace sluice::config

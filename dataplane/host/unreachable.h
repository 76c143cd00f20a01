// Reads ICMP "destination unreachable" about a datagram of the appliance: a worker process, or its
// host, is gone.
//
// Such an error is only a hint, and only "port unreachable" is one: a host or a network may be back
// in a second. Anyone can forge an error, so it must quote the head of the appliance's datagram
// with the member's cookie, which no other host has seen. Linux quotes as much as fits into 576
// bytes. The death of a worker on a host that quotes only eight bytes behind the IP header is
// noticed by its silence.
#pragma once

#include <cstdint>
#include <optional>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "dataplane/core/steer.h"

namespace sluice::dataplane {

enum class UnreachableKind : std::uint8_t {
  kPort,    // the host is alive, but no process listens
  kHost,    // host, network or administrative
  kTooBig,  // the datagram exceeds the path's MTU
};

struct Unreachable {
  UnreachableKind kind{};
  wire::IpAddress member;  // the datagram's destination
  std::uint16_t member_port = 0;
  std::uint16_t own_port = 0;
  std::optional<wire::CommonHeader> quoted;  // of the datagram; nothing: the quote is too short
};

// Nothing unless the frame is such an error and quotes a UDP datagram from an address of the
// appliance.
std::optional<Unreachable> parse_unreachable(const wire::Frame& frame,
                                             const OwnAddress& own) noexcept;

}  // namespace sluice::dataplane

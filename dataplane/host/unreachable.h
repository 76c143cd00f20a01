// ICMP "destination unreachable" about a datagram of ours: a worker process is gone, or its host
// is.
//
// Only a hint, and only "port unreachable": a host or a network may be back in a second. Anyone can
// forge one, so it must quote the head of our datagram with the member's cookie, which nobody else
// has seen. Linux quotes all that fits into 576 bytes; of a host that quotes eight bytes after the
// IP header the silence tells.
#pragma once

#include <cstdint>
#include <optional>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "dataplane/core/steer.h"

namespace sluice::dataplane {

enum class UnreachableKind : std::uint8_t {
  kPort,    // the host lives, the process does not listen any more
  kHost,    // host, network or administrative
  kTooBig,  // the path's MTU does not carry our datagram
};

struct Unreachable {
  UnreachableKind kind{};
  wire::IpAddress member;  // whom we had written to
  std::uint16_t member_port = 0;
  std::uint16_t own_port = 0;
  std::optional<wire::CommonHeader> quoted;  // of our datagram; nothing: the quote is too short
};

// Nothing unless the frame is such an error and quotes a UDP datagram from one of our addresses.
std::optional<Unreachable> parse_unreachable(const wire::Frame& frame,
                                             const OwnAddress& own) noexcept;

}  // namespace sluice::dataplane

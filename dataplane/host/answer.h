// The appliance's answers as a host: to ARP requests and neighbour solicitations for its addresses,
// and to pings.
//
// Pure: a parsed frame goes in, a reply frame comes out. The reply is not longer than the request,
// except in one case by eight bytes, to a sender that is proven to be on the link (neighbour.h).
// There is no neighbour table: the appliance only replies along the path by which a frame came.
// Called by lcore workers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/wire/inet.h"
#include "dataplane/core/steer.h"

namespace sluice::dataplane {

enum class HostOutcome : std::uint8_t {
  kAnswered,     // a reply of `reply_bytes` is in the caller's buffer
  kIgnored,      // nothing to answer: for another host, or of a kind that needs no reply
  kConflict,     // another host claims an address of the appliance
  kUnreachable,  // an ICMP error about a datagram of the appliance: see parse_unreachable()
};

struct HostAnswer {
  HostOutcome outcome = HostOutcome::kIgnored;
  std::size_t reply_bytes = 0;
};

// Whether answer_as_host() would answer the frame as a ping. Same precondition.
bool is_ping(const wire::Frame& frame, const OwnAddress& own) noexcept;

// `frame` is kArp, kIcmp4 or kIcmp6 and has passed steer(). `out` must not overlap the frame.
HostAnswer answer_as_host(const wire::Frame& frame, const OwnAddress& own,
                          wire::MutableBytes out) noexcept;

// Writes an ARP probe (RFC 5227) for the appliance's own IPv4 address, which another host that has
// the address answers: see kConflict. It names no sender, so nobody takes the address to be
// elsewhere because of it. Returns its bytes, 0 when `out` has no room.
std::size_t write_probe(const OwnAddress& own, wire::MutableBytes out) noexcept;

}  // namespace sluice::dataplane

// Neighbour discovery for the appliance's own IPv6 address (RFC 4861 and 4862), which is for IPv6
// what ARP is for IPv4.
//
// Pure, like answer.h, which calls it. It answers solicitations and detects hosts that claim the
// address. It sends no solicitations, because the appliance only replies along paths by which
// frames came.
#pragma once

#include "dataplane/host/answer.h"

namespace sluice::dataplane {

// `frame` is ICMPv6 of type 135 or 136 and has passed steer(); others are ignored.
//
// The advertisement carries the appliance's Ethernet address if that makes it no longer than the
// request. A normal solicitation to the group has the sender's own address as an option, so the
// answer fits; a unicast solicitation already has the appliance's address and needs none. One reply
// is eight bytes longer, because the RFC demands the option: that to a host that probes, without a
// nonce, whether the appliance's address is free.
HostAnswer answer_neighbour(const wire::Frame& frame, const OwnAddress& own,
                            wire::MutableBytes out) noexcept;

}  // namespace sluice::dataplane

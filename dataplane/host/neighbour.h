// Neighbour discovery for the appliance's own IPv6 address (RFC 4861 and 4862): what ARP is to
// IPv4.
//
// Pure, like answer.h, which calls it. It answers solicitations and notices hosts that claim the
// address; it solicits nobody, because the appliance only replies along paths that frames came by.
#pragma once

#include "dataplane/host/answer.h"

namespace sluice::dataplane {

// `frame` is ICMPv6 of type 135 or 136 and has passed steer(); others are ignored.
//
// The advertisement carries our Ethernet address where that makes it no longer than the request: an
// honest solicitation to our group names the sender's own, and one to us alone needs no answer that
// it has already. One reply is longer, by eight bytes, as the RFC demands the option there: to a
// host that probes whether our address is free, without a nonce.
HostAnswer answer_neighbour(const wire::Frame& frame, const OwnAddress& own,
                            wire::MutableBytes out) noexcept;

}  // namespace sluice::dataplane

// Explicit congestion notification (RFC 3168): the mark that a switch sets in frames before it has
// to drop any.
//
// Pure; the owner of the frame calls it. The queue decides when to mark
// (dataplane/core/egress_queue.h), and client/core how a sender reacts.
#pragma once

#include "aggregator/wire/inet.h"

namespace sluice::wire {

// Sets "congestion experienced" in an Ethernet frame, tagged or not, that carries IPv4 or IPv6.
// True: the frame carries the mark now. False: the frame is not IP or its sender is not
// ECN-capable, and it is unchanged. The IPv4 header checksum is patched (RFC 1624), so a header
// that was corrupt stays corrupt.
bool mark_congestion(MutableBytes frame) noexcept;

}  // namespace sluice::wire

// Explicit congestion notification (RFC 3168): what a switch does to a frame before it has to drop
// one.
//
// Pure; whoever owns the frame calls it. When to mark is the queue's decision
// (dataplane/core/egress_queue.h), what a sender makes of a mark the client's (client/core).
#pragma once

#include "aggregator/wire/inet.h"

namespace sluice::wire {

// Sets "congestion experienced" in an Ethernet frame, tagged or not, that carries IPv4 or IPv6.
// True when the frame carries the mark afterwards; false, and untouched, when it is no IP or its
// sender does not say that it understands marks. The IPv4 header checksum is patched (RFC 1624), so
// a header that was corrupt stays corrupt.
bool mark_congestion(MutableBytes frame) noexcept;

}  // namespace sluice::wire

// What the appliance answers for itself as a host: ARP requests and neighbour solicitations for its
// addresses, and pings.
//
// Pure: a parsed frame in, a reply frame out, not longer than the request but for one case of eight
// bytes, to a sender that is proven to be on the link (neighbour.h). It keeps no neighbour
// table: the appliance only ever replies to the path that a frame came by. Called by lcore workers.
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
  kUnreachable,  // an ICMP error about something we sent: see parse_unreachable()
};

struct HostAnswer {
  HostOutcome outcome = HostOutcome::kIgnored;
  std::size_t reply_bytes = 0;
};

// A ping to us, which answer_as_host() would answer. Same precondition.
bool is_ping(const wire::Frame& frame, const OwnAddress& own) noexcept;

// `frame` is kArp, kIcmp4 or kIcmp6 and has passed steer(). `out` must not overlap the frame.
HostAnswer answer_as_host(const wire::Frame& frame, const OwnAddress& own,
                          wire::MutableBytes out) noexcept;

}  // namespace sluice::dataplane

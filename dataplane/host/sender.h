// Who sent a frame, for agg::Intake: the Ethernet address of a neighbour, the IP address of
// everybody else. Pure.
#pragma once

#include <cstdint>

#include "aggregator/wire/inet.h"

namespace sluice::dataplane {

std::uint64_t sender_of(const wire::Frame& frame) noexcept;

}  // namespace sluice::dataplane

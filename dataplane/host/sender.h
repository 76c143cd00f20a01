// Identifies the sender of a frame for agg::Intake: by its Ethernet address if it is a neighbour,
// else by its IP address. Pure.
#pragma once

#include <cstdint>

#include "aggregator/wire/inet.h"

namespace sluice::dataplane {

std::uint64_t sender_of(const wire::Frame& frame) noexcept;

}  // namespace sluice::dataplane

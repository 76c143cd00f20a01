#include "aggregator/appliance/intake.h"

namespace sluice::agg {
namespace {

struct Limits {
  RateLimit port;
  RateLimit sender;
};

constexpr RateLimit per_second(std::uint32_t count, std::uint32_t burst) noexcept {
  return {.interval_ns = kSecond / count, .burst = burst};
}

// A member sends about ten control packets a second. 1,024 ranks that start together send 2,048
// joins, perhaps from behind one address, and ask as often for the appliance's Ethernet address.
// Pings are rare and may be long: 2,000 a second of 1,500 bytes are 24 Mb/s of the most urgent
// class.
constexpr std::array<Limits, kPuntReasonCount> kLimits{{
    {.port = per_second(200'000, 4096), .sender = per_second(1000, 128)},  // kMember
    {.port = per_second(20'000, 1024), .sender = per_second(2000, 512)},   // kJoin
    {.port = per_second(5000, 256), .sender = per_second(500, 64)},        // kUnauthenticated
    {.port = per_second(20'000, 1024), .sender = per_second(1000, 64)},    // kNeighbour
    {.port = per_second(2000, 256), .sender = per_second(1000, 128)},      // kEcho
}};

constexpr const Limits& limits_of(PuntReason reason) noexcept {
  return kLimits[static_cast<std::size_t>(reason)];
}

}  // namespace

const RateLimit& Intake::port_limit(PuntReason reason) noexcept { return limits_of(reason).port; }
const RateLimit& Intake::sender_limit(PuntReason reason) noexcept {
  return limits_of(reason).sender;
}

bool Intake::admit(PuntReason reason, std::uint64_t sender, TimeNs now) noexcept {
  const Limits& limits = limits_of(reason);
  Limiter& limiter = limiters_[static_cast<std::size_t>(reason)];
  std::uint64_t mixed = (sender ^ seed_) * 0x9E3779B97F4A7C15;
  mixed = (mixed ^ mixed >> 32) * seed_;
  RateLimit port = limits.port;
  port.interval_ns *= lanes_;
  // The sender's limit first: a sender beyond it uses up nothing of the port's rate.
  return limiter.groups[mixed >> 56].take(limits.sender, now) && limiter.port.take(port, now);
}

}  // namespace sluice::agg

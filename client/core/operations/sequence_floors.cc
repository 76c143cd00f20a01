// A member's floor in a sequence: when to tell it, and when to report that the group's floor stops
// it.
#include <algorithm>

#include "client/core/operations/sequence.h"

namespace sluice::client {
namespace {

constexpr int kMaxBackoff = 6;  // doublings of the time between two reports of being stopped

}  // namespace

// Twice what this member may have on the way. Its calls get the first ones.
std::uint64_t Sequence::wanted_slots() const noexcept {
  if (slots_ == 0) return 0;
  std::uint64_t wanted = 0;
  for (const Flow& flow : link_.flows) wanted += 2 * flow.window();
  return std::min(wanted, capacity_);
}

// Its floor has risen by a quarter of the slots since it was told, or somebody waits for it.
bool Sequence::floor_due() const noexcept {
  if (asked_) return true;  // what was told may have been lost
  const std::uint64_t own = std::min(floor(), group_floor_ + slots_);
  return own > told_ && own - told_ >= std::max<std::uint64_t>(1, slots_ / 4);
}

bool Sequence::poll_floor(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  if (!in_use()) return false;
  Flow& flow = link_.flows[0];
  const std::uint64_t wanted = wanted_slots();
  const bool stopped =
      is_stopped() && (now >= stopped_ns_ || (now >= may_grow_ns_ && slots_ < wanted));
  if (!stopped && (now < may_tell_ns_ || !floor_due())) return false;
  wire::Floors body{.flow = flow.next_header(now, least_urgent()),
                    .group = header_to(0),
                    .stopped = stopped,
                    .wanted_slots = static_cast<std::uint32_t>(wanted)};
  may_tell_ns_ = now + flow.rtt().smoothed_ns() / 4;
  if (stopped) {
    stopped_ns_ = now + (flow.rtt().timeout_ns() << std::min(stopped_count_, kMaxBackoff));
    ++stopped_count_;
    may_grow_ns_ = now + 4 * flow.rtt().smoothed_ns();
  }
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .port_offset = 1,
              .priority = body.flow.priority};
  return true;
}

TimeNs Sequence::next_timeout() const noexcept {
  if (!in_use()) return kNever;
  TimeNs next_ns = recovery_->next_timeout();
  if (is_stopped())
    next_ns = std::min(next_ns,
                       slots_ < wanted_slots() ? std::min(stopped_ns_, may_grow_ns_) : stopped_ns_);
  if (floor_due()) next_ns = std::min(next_ns, may_tell_ns_);
  return next_ns;
}

}  // namespace sluice::client

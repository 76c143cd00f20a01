// What the senders behind one port may cost an appliance: how often the control side hears them and
// how often they are answered.
//
// Pure; the thread that receives asks for each packet, and drops what is refused under a name.
// Each reason has rates of its own, so that no flood of one kind keeps another kind out: one for
// the port, and one for each of 256 groups of senders, so that a single flooder leaves room for the
// others behind its switch or router. A forger of addresses can use up its own port's rate, no
// other's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::agg {

// An average rate, and a burst after a rest. The generic cell rate algorithm: one number.
struct RateLimit {
  DurationNs interval_ns = 0;
  std::uint32_t burst = 1;
};

class Budget {
 public:
  // How many may come now.
  std::uint32_t available(const RateLimit& limit, TimeNs now) const noexcept {
    const DurationNs owed_ns = std::max<DurationNs>(due_ns_ - now, 0);
    const auto owed = (owed_ns + limit.interval_ns - 1) / limit.interval_ns;
    return limit.burst - static_cast<std::uint32_t>(std::min<DurationNs>(owed, limit.burst));
  }
  void spend(const RateLimit& limit, std::uint32_t count, TimeNs now) noexcept {
    due_ns_ = std::max(due_ns_, now) + limit.interval_ns * count;
  }
  // Spends one if it is there; without a division.
  bool take(const RateLimit& limit, TimeNs now) noexcept {
    const TimeNs due_ns = std::max(due_ns_, now);
    if (due_ns - now > limit.interval_ns * (limit.burst - 1)) return false;
    due_ns_ = due_ns + limit.interval_ns;
    return true;
  }

 private:
  TimeNs due_ns_ = 0;  // when all that was spent is earned again
};

// Why a packet is for the appliance itself.
enum class PuntReason : std::uint8_t {
  kMember,     // a control packet under a member's cookie
  kJoin,       // a request to become one
  kStray,      // other control packets, ICMP errors, claims to our address
  kNeighbour,  // ARP or neighbour discovery that we answer
  kEcho,       // a ping that we answer
};
inline constexpr std::size_t kPuntReasonCount = 5;

class Intake {
 public:
  // `seed` is random, so that nobody can choose an address that shares a group with another's. A
  // port that several workers serve has so many intakes, and each an equal part of its rate.
  explicit Intake(std::uint64_t seed, std::size_t lanes = 1) noexcept
      : seed_(seed | 1), lanes_(static_cast<DurationNs>(lanes)) {}

  bool admit(PuntReason reason, std::uint64_t sender, TimeNs now) noexcept;

  static const RateLimit& port_limit(PuntReason reason) noexcept;
  static const RateLimit& sender_limit(PuntReason reason) noexcept;

 private:
  static constexpr std::size_t kGroups = 256;
  struct Limiter {
    Budget port;
    std::array<Budget, kGroups> groups;
  };

  std::uint64_t seed_;
  DurationNs lanes_;
  std::array<Limiter, kPuntReasonCount> limiters_;
};

}  // namespace sluice::agg

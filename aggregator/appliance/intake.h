// Rate limits of the senders behind one port: how many of their packets reach the control side, and
// how many are answered.
//
// Pure; the thread that receives asks for each packet, and drops a refused one with a drop reason.
// Each reason has rates of its own, so that a flood of one kind does not keep another kind out: a
// rate for the port, and one for each of 256 groups of senders, so that a single flooder leaves
// room for the other senders behind its switch or router. A sender that forges addresses can use up
// the rate of its own port alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::agg {

// An average rate and the burst that is allowed after a pause, by the generic cell rate algorithm.
struct RateLimit {
  DurationNs interval_ns = 0;
  std::uint32_t burst = 1;
};

class Budget {
 public:
  // How many packets the limit admits now.
  std::uint32_t available(const RateLimit& limit, TimeNs now) const noexcept {
    const DurationNs owed_ns = std::max<DurationNs>(due_ns_ - now, 0);
    const auto owed = (owed_ns + limit.interval_ns - 1) / limit.interval_ns;
    return limit.burst - static_cast<std::uint32_t>(std::min<DurationNs>(owed, limit.burst));
  }
  void spend(const RateLimit& limit, std::uint32_t count, TimeNs now) noexcept {
    due_ns_ = std::max(due_ns_, now) + limit.interval_ns * count;
  }
  // Spends one if it is available. Needs no division.
  bool take(const RateLimit& limit, TimeNs now) noexcept {
    const TimeNs due_ns = std::max(due_ns_, now);
    if (due_ns - now > limit.interval_ns * (limit.burst - 1)) return false;
    due_ns_ = due_ns + limit.interval_ns;
    return true;
  }

 private:
  TimeNs due_ns_ = 0;  // when everything spent is earned back
};

// Why a packet is passed on to the control side or answered.
enum class PuntReason : std::uint8_t {
  kMember,           // a control packet with a member's cookie
  kJoin,             // a join
  kUnauthenticated,  // other control packets, ICMP errors, claims to the appliance's address
  kNeighbour,        // ARP or neighbour discovery to be answered
  kEcho,             // a ping to be answered
};
inline constexpr std::size_t kPuntReasonCount = 5;

class Intake {
 public:
  // `seed` is random, so that nobody can choose an address that shares a group with another
  // sender's. A port that `lanes` workers serve has an intake for each of them, with an equal part
  // of the port's rates.
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

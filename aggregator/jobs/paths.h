// Which of the paths that a member's packets come by gets its results.
//
// A cookie says who speaks, not where: a process that holds a cookie can write any source address
// into a packet, and would make the appliance flood that address. So a new path is a candidate
// until it has echoed the token of a ping that was sent to it. Until then packets by the new path
// count, and results go by the path that was proven before. Pure; control thread only.
#pragma once

#include <array>
#include <cstdint>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/auth.h"
#include "aggregator/wire/inet.h"

namespace sluice::agg {

inline constexpr DurationNs kCandidatePing = 250 * kMillisecond;  // between pings to a candidate
inline constexpr DurationNs kProofLasts = 10 * kSecond;           // for two routers that alternate
inline constexpr DurationNs kTokenEpoch = 5 * kSecond;  // a token is good in its own and the next

// The way back to a sender: addresses, ports, VLAN and the appliance's port. Keys are compared,
// never read. All zero: the caller vouches for the path, as inside one process.
using PathKey = std::array<std::uint8_t, 48>;

PathKey path_key(const wire::UdpPath& back, std::uint8_t port) noexcept;

// A number that only the receiver of a ping on this path knows; never 0. Tokens are computed, not
// kept, so candidates take no memory however many there are.
std::uint64_t path_token(const wire::HmacKey& key, Cookie cookie, const PathKey& path,
                         TimeNs now) noexcept;
bool is_path_token(std::uint64_t token, const wire::HmacKey& key, Cookie cookie,
                   const PathKey& path, TimeNs now) noexcept;

// The paths of one member.
class MemberPaths {
 public:
  enum class Validation : std::uint8_t {
    kProven,  // results go there from now on
    kAsk,     // a candidate: the caller sends it a ping with its token
    kAsked,   // a candidate that was asked a moment ago, or one candidate too many
  };

  // The process that holds `cookie` has joined from `path`, which answered a challenge. False: the
  // process had joined already and gets its results by another path, since a late copy of the join
  // moves nothing.
  bool join(Cookie cookie, const PathKey& path, TimeNs now) noexcept;
  // A packet of the member came by `path`; `echoed`: it carried the token of this very path.
  Validation judge(const PathKey& path, bool echoed, TimeNs now) noexcept;

 private:
  static constexpr std::size_t kRemembered = 4;
  struct Event {
    PathKey path{};
    TimeNs at_ns = 0;
    bool set = false;
  };
  using Events = std::array<Event, kRemembered>;

  static Event* find(Events& events, const PathKey& path) noexcept;
  static Event& oldest(Events& events) noexcept;

  Cookie cookie_ = 0;
  PathKey current_{};
  Events proofs_;
  Events questions_;
};

}  // namespace sluice::agg

// Finds the egress class of a frame: by the operator's rules, else by the priority of the chunk
// that it carries, else by its DSCP, else by its 802.1Q priority.
//
// Only tables, filled once at start and read by every lcore.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "aggregator/base/types.h"
#include "aggregator/wire/inet.h"
#include "dataplane/core/egress_queue.h"
#include "dataplane/core/rules.h"

namespace sluice::dataplane {

class Classifier {
 public:
  // Network control (CS6, CS7, ARP, neighbour discovery) is the most urgent, then chunks by
  // priority among CS2 to CS5, then other frames; CS1 and LE (RFC 8622) are the least urgent.
  // 802.1Q priorities 0..7 count like CS0..CS7 for frames that are not IP.
  Classifier() noexcept : Classifier(std::span<const TrafficRule>{}) {}
  explicit Classifier(std::span<const TrafficRule> rules) noexcept;

  // The class of a forwarded frame. A packet of Sluice for another appliance has the class that it
  // would have there.
  ClassIndex of_frame(const wire::EthernetView& view) const noexcept;
  // The class of the appliance's own results, to which the operator's rules do not apply.
  ClassIndex of_chunk(Priority priority) const noexcept { return by_priority_[priority]; }
  // The class of the appliance's own control packets: ARP, ICMP, answers to joins, pings.
  static constexpr ClassIndex of_control() noexcept { return 0; }

 private:
  RuleTable rules_;
  std::array<ClassIndex, 64> by_dscp_;
  std::array<ClassIndex, 8> by_pcp_;
  std::array<ClassIndex, 256> by_priority_;
};

}  // namespace sluice::dataplane

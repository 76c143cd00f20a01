// Which egress class a frame belongs to: by the operator's rules, else by the priority of the chunk
// it carries, else by its DSCP, else by its 802.1Q priority.
//
// Tables only: filled once at start, read by every lcore.
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
  // Network control (CS6, CS7, ARP, neighbour discovery) before everything, then chunks by priority
  // among CS2 to CS5, then the rest; CS1 and LE (RFC 8622) are the least urgent. 802.1Q priorities
  // 0..7 count like CS0..CS7 for frames that are not IP.
  Classifier() noexcept : Classifier(std::span<const TrafficRule>{}) {}
  explicit Classifier(std::span<const TrafficRule> rules) noexcept;

  // Of a frame that is forwarded. Packets of ours that only pass through, because another appliance
  // is their destination, queue here as they would there.
  ClassIndex of_frame(const wire::EthernetView& view) const noexcept;
  // Of the appliance's own results: rules are about others' frames.
  ClassIndex of_chunk(Priority priority) const noexcept { return by_priority_[priority]; }
  // The appliance's own control answers: ARP, ICMP, joins, pings.
  ClassIndex of_control() const noexcept { return 0; }

 private:
  RuleTable rules_;
  std::array<ClassIndex, 64> by_dscp_;
  std::array<ClassIndex, 8> by_pcp_;
  std::array<ClassIndex, 256> by_priority_;
};

}  // namespace sluice::dataplane

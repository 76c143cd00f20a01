#include "dataplane/core/classifier.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint8_t kDscpLowerEffort = 1;
constexpr std::uint8_t kDscpCs1 = 8;
constexpr ClassIndex kLeastUrgent = kClassCount - 1;
// Chunks take a band of the classes, 16 to 47.
constexpr unsigned kFirstChunkClass = 16;
constexpr unsigned kChunkClasses = 256 / kPrioritiesOfClass;

// Class selector 7 becomes class 0, class selector 0 class 56.
constexpr ClassIndex class_of_precedence(unsigned precedence) noexcept {
  return static_cast<ClassIndex>((7 - precedence) * 8);
}

// Router and neighbour solicitations and advertisements, and redirects (RFC 4861).
bool is_neighbour_discovery(const wire::FlowView& flow) noexcept {
  return flow.protocol == wire::kProtoIcmp6 && !flow.l4.empty() && flow.l4[0] >= 133 &&
         flow.l4[0] <= 137;
}

}  // namespace

Classifier::Classifier(std::span<const TrafficRule> rules) noexcept : rules_(rules) {
  for (unsigned dscp = 0; dscp < 64; ++dscp) by_dscp_[dscp] = class_of_precedence(dscp >> 3);
  by_dscp_[kDscpLowerEffort] = kLeastUrgent;
  by_dscp_[kDscpCs1] = kLeastUrgent;
  for (unsigned pcp = 0; pcp < 8; ++pcp) by_pcp_[pcp] = class_of_precedence(pcp);
  by_pcp_[1] = kLeastUrgent;  // "background" in IEEE 802.1Q
  for (unsigned priority = 0; priority < 256; ++priority)
    by_priority_[priority] =
        static_cast<ClassIndex>(kFirstChunkClass + priority * kChunkClasses / 256);
}

ClassIndex Classifier::of_frame(const wire::EthernetView& view) const noexcept {
  const wire::FlowView flow = wire::peek_flow(view);
  if (!rules_.empty()) {
    if (const auto egress_class = rules_.match(flow)) return *egress_class;
  }
  if (flow.ethertype == wire::kEtherArp || is_neighbour_discovery(flow)) return of_control();
  if (flow.family == wire::Family::kNone) return by_pcp_[flow.pcp == wire::kNoPcp ? 0 : flow.pcp];
  if (const auto priority = wire::peek_priority(flow.udp_payload())) return of_chunk(*priority);
  return by_dscp_[flow.traffic_class >> 2];
}

}  // namespace sluice::dataplane

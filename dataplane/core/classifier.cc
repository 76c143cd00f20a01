#include "dataplane/core/classifier.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint8_t kDscpLowerEffort = 1;
constexpr std::uint8_t kDscpCs1 = 8;
constexpr ClassIndex kLeastUrgent = kClassCount - 1;
// Chunks take a band of the classes, 16 to 47.
constexpr unsigned kFirstChunkClass = 16;
constexpr unsigned kChunkClasses = 32;

// Class selector 7 becomes class 0, class selector 0 class 56.
constexpr ClassIndex class_of_precedence(unsigned precedence) noexcept {
  return static_cast<ClassIndex>((7 - precedence) * 8);
}

}  // namespace

Classifier::Classifier() noexcept {
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
  if (view.ethertype == wire::kEtherArp) return of_control();
  if (view.ethertype == wire::kEtherIpv4 || view.ethertype == wire::kEtherIpv6)
    return by_dscp_[wire::peek_traffic_class(view) >> 2];
  return view.vlan_tci == wire::kNoVlan ? by_pcp_[0] : by_pcp_[view.vlan_tci >> 13];
}

}  // namespace sluice::dataplane

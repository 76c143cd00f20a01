#include "aggregator/wire/peek.h"

#include <cstddef>
#include <cstring>

#include "aggregator/wire/header.h"

namespace sluice::wire {
namespace {

constexpr std::uint16_t kIpv4FragmentBits = 0x3fff;  // more-fragments and the offset
constexpr std::uint16_t kIpv6FragmentBits = 0xfff9;  // the offset and more-fragments

constexpr std::uint8_t kHopByHop = 0;
constexpr std::uint8_t kRouting = 43;
constexpr std::uint8_t kFragment = 44;
constexpr std::uint8_t kDestination = 60;

constexpr bool is_tag(std::uint16_t ethertype) noexcept {
  return ethertype == kEtherVlan || ethertype == kEtherQinQ;
}

void peek_ipv4(Bytes bytes, FlowView& flow) noexcept {
  if (bytes.size() < kIpv4Bytes) return;
  const std::size_t header_bytes = (bytes[0] & 15u) * 4;
  flow.family = Family::kIpv4;
  flow.traffic_class = bytes[1];
  flow.protocol = bytes[9];
  flow.addresses = bytes.subspan(12, 8);
  const bool whole = (load_be16(&bytes[6]) & kIpv4FragmentBits) == 0;
  if (whole && header_bytes >= kIpv4Bytes && header_bytes <= bytes.size())
    flow.l4 = bytes.subspan(header_bytes);
}

// Walks the extension headers; a cut or endless chain leaves the protocol unknown.
void skip_extensions(std::uint8_t next, Bytes rest, FlowView& flow) noexcept {
  bool whole = true;
  for (int count = 0; count <= kMaxExtensionHeaders; ++count) {
    const bool extension =
        next == kHopByHop || next == kRouting || next == kFragment || next == kDestination;
    if (!extension || !whole) {
      // Behind a fragment header further extensions are those of the first fragment only.
      if (!extension) flow.protocol = next;
      if (whole) flow.l4 = rest;
      return;
    }
    if (rest.size() < 8) return;
    const std::size_t header_bytes = next == kFragment ? 8 : (rest[1] + 1u) * 8;
    if (next == kFragment) whole = (load_be16(&rest[2]) & kIpv6FragmentBits) == 0;
    if (rest.size() < header_bytes) return;
    next = rest[0];
    rest = rest.subspan(header_bytes);
  }
}

void peek_ipv6(Bytes bytes, FlowView& flow) noexcept {
  if (bytes.size() < kIpv6Bytes) return;
  flow.family = Family::kIpv6;
  flow.traffic_class = static_cast<std::uint8_t>(load_be16(&bytes[0]) >> 4);
  flow.addresses = bytes.subspan(8, 32);
  skip_extensions(bytes[6], bytes.subspan(kIpv6Bytes), flow);
}

}  // namespace

FlowView peek_flow(const EthernetView& view) noexcept {
  FlowView flow;
  flow.ethertype = view.ethertype;
  Bytes content = view.content;
  if (view.vlan_tci != kNoVlan) flow.pcp = static_cast<std::uint8_t>(view.vlan_tci >> 13);
  // parse_ethernet() took one 802.1Q tag off; an 802.1ad tag, or a second one, is still there.
  for (int tags = view.vlan_tci == kNoVlan ? 0 : 1; tags < 2 && is_tag(flow.ethertype); ++tags) {
    if (content.size() < kVlanTagBytes) break;
    if (tags == 0) flow.pcp = content[0] >> 5;
    flow.ethertype = load_be16(&content[2]);
    content = content.subspan(kVlanTagBytes);
  }
  if (flow.ethertype == kEtherIpv4)
    peek_ipv4(content, flow);
  else if (flow.ethertype == kEtherIpv6)
    peek_ipv6(content, flow);
  return flow;
}

std::optional<Priority> peek_priority(Bytes payload) noexcept {
  CommonHeader header;
  if (payload.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, payload.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion) return std::nullopt;
  const auto at = [&](std::size_t offset) -> std::optional<Priority> {
    if (payload.size() <= sizeof header + offset) return std::nullopt;
    return payload[sizeof header + offset];
  };
  if (is_worker_data(header.type)) return at(offsetof(FlowHeader, priority));
  if (is_appliance_data(header.type)) return at(offsetof(FeedbackHeader, priority));
  if (is_control(header.type)) return Priority{0};
  return std::nullopt;
}

}  // namespace sluice::wire

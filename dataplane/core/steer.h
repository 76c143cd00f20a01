// Finds the part of the appliance to which a frame for the appliance belongs.
//
// Pure; called by the worker for each valid frame for the appliance's MAC address or for a group.
#pragma once

#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/wire/inet.h"

namespace sluice::dataplane {

// The appliance as its neighbours see it; the same on all ports.
struct OwnAddress {
  wire::Mac mac;
  wire::IpAddress ipv4;
  wire::IpAddress ipv6;    // family kNone: no IPv6
  std::uint16_t port = 0;  // of joins and keepalives; data of shard s is on port + 1 + s
  std::uint16_t shard_count = 1;

  bool is_own(const wire::IpAddress& address) const noexcept {
    return address.family != wire::Family::kNone && (address == ipv4 || address == ipv6);
  }
};

inline constexpr std::uint8_t kNeighbourSolicitation = 135;  // ICMPv6 types, RFC 4861
inline constexpr std::uint8_t kNeighbourAdvertisement = 136;

inline constexpr wire::IpAddress kAllNodes{wire::Family::kIpv6,
                                           {0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

// The solicited-node group of an IPv6 address, to which neighbour solicitations are sent (RFC 4291,
// 2.7.1).
constexpr wire::IpAddress solicited_node_group(const wire::IpAddress& address) noexcept {
  const auto& low = address.bytes;
  return {wire::Family::kIpv6,
          {0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, low[13], low[14], low[15]}};
}

// Whether this is neighbour discovery that may concern the appliance. Unlike all other frames for
// the appliance, it may be addressed to a group, and come from a host that has no address yet or
// has the appliance's.
inline bool is_for_neighbours(const wire::Frame& frame, const OwnAddress& own) noexcept {
  if (frame.kind != wire::FrameKind::kIcmp6 || own.ipv6.family == wire::Family::kNone) return false;
  if (frame.payload[0] != kNeighbourSolicitation && frame.payload[0] != kNeighbourAdvertisement)
    return false;
  return frame.dst == own.ipv6 || frame.dst == kAllNodes ||
         frame.dst == solicited_node_group(own.ipv6);
}

enum class Service : std::uint8_t {
  kNone,     // addressed to the appliance, but no service answers it
  kNotOurs,  // the appliance's MAC address or a group, but another IP address
  kHost,     // ARP, neighbour discovery and ICMP
  kControl,  // joins, keepalives, leaves: the control thread
  kShard,    // contributions and probes: `shard`
};

struct Steering {
  Service service = Service::kNone;
  ShardId shard;
};

inline Steering steer(const wire::Frame& frame, const OwnAddress& own) noexcept {
  using wire::FrameKind;
  if (frame.kind == FrameKind::kArp) return {Service::kHost};
  if (frame.kind == FrameKind::kOther) return {Service::kNone};
  if (is_for_neighbours(frame, own)) return {Service::kHost};
  if (!own.is_own(frame.dst)) return {Service::kNotOurs};
  if (frame.src.is_bad_source() || own.is_own(frame.src)) return {Service::kNone};
  if (frame.kind == FrameKind::kIcmp4 || frame.kind == FrameKind::kIcmp6) return {Service::kHost};
  // A unicast datagram in a group frame is forged.
  if (frame.kind != FrameKind::kUdp || frame.ethernet.dst != own.mac) return {Service::kNone};
  if (frame.dst_port == own.port) return {Service::kControl};
  const std::uint32_t shard = std::uint32_t{frame.dst_port} - own.port - 1u;
  if (shard < own.shard_count) return {Service::kShard, ShardId{static_cast<std::uint16_t>(shard)}};
  return {Service::kNone};
}

}  // namespace sluice::dataplane

// Which part of the appliance a frame addressed to it belongs to.
//
// Pure; called by the worker for each sound frame for the appliance's MAC address or for a group.
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
  std::uint16_t port = 0;  // joins and keepalives; data of shard s on port + 1 + s
  std::uint16_t shard_count = 1;

  bool is_own(const wire::IpAddress& address) const noexcept {
    return address.family != wire::Family::kNone && (address == ipv4 || address == ipv6);
  }
};

enum class Service : std::uint8_t {
  kNone,     // addressed to us, but nothing here answers it
  kNotOurs,  // our MAC or a group, but another IP address
  kHost,     // ARP and ICMP
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
  if (!own.is_own(frame.dst)) return {Service::kNotOurs};
  if (frame.src.is_bad_source() || own.is_own(frame.src)) return {Service::kNone};
  if (frame.kind == FrameKind::kIcmp4 || frame.kind == FrameKind::kIcmp6) return {Service::kHost};
  // A datagram that came in a group frame is no honest unicast.
  if (frame.kind != FrameKind::kUdp || frame.ethernet.dst != own.mac) return {Service::kNone};
  if (frame.dst_port == own.port) return {Service::kControl};
  const std::uint32_t shard = std::uint32_t{frame.dst_port} - own.port - 1u;
  if (shard < own.shard_count) return {Service::kShard, ShardId{static_cast<std::uint16_t>(shard)}};
  return {Service::kNone};
}

}  // namespace sluice::dataplane

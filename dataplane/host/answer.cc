#include "dataplane/host/answer.h"

#include <cstring>

#include "dataplane/host/neighbour.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint8_t kEchoRequest4 = 8;
constexpr std::uint8_t kEchoReply4 = 0;
constexpr std::uint8_t kUnreachable4 = 3;
constexpr std::uint8_t kUnreachable6 = 1;
constexpr std::uint8_t kTooBig6 = 2;
constexpr std::uint8_t kEchoRequest6 = 128;
constexpr std::uint8_t kEchoReply6 = 129;

HostAnswer answer_arp(const wire::Frame& frame, const OwnAddress& own,
                      wire::MutableBytes out) noexcept {
  const std::optional<wire::ArpPacket> arp = wire::parse_arp(frame.payload);
  if (!arp) return {};
  const wire::ArpPacket& request = *arp;
  if (request.sender == own.ipv4) return {HostOutcome::kConflict};
  if (request.operation != wire::kArpRequest || request.target != own.ipv4) return {};
  const wire::ArpPacket reply{.operation = wire::kArpReply,
                              .sender_mac = own.mac,
                              .sender = own.ipv4,
                              .target_mac = request.sender_mac,
                              .target = request.sender};
  const std::size_t bytes =
      wire::encode_arp_frame(out, frame.ethernet.src, frame.ethernet.vlan_tci, reply);
  return bytes == 0 ? HostAnswer{} : HostAnswer{HostOutcome::kAnswered, bytes};
}

// The reply is the request with addresses swapped and another type, so it is built from a copy.
HostAnswer answer_echo(const wire::Frame& frame, const OwnAddress& own,
                       wire::MutableBytes out) noexcept {
  const bool ipv4 = frame.kind == wire::FrameKind::kIcmp4;
  const std::size_t ip_bytes = ipv4 ? wire::kIpv4Bytes : wire::kIpv6Bytes;
  const std::size_t start =
      wire::encode_ethernet(out, frame.ethernet.src, own.mac, frame.ethernet.vlan_tci,
                            ipv4 ? wire::kEtherIpv4 : wire::kEtherIpv6);
  const std::size_t total_bytes = start + ip_bytes + frame.payload.size();
  if (start == 0 || total_bytes > out.size()) return {};

  std::uint8_t* ip = &out[start];
  std::memset(ip, 0, ip_bytes);
  if (ipv4) {
    ip[0] = 0x45;
    ip[1] = frame.traffic_class;
    wire::store_be16(ip + 2, static_cast<std::uint16_t>(ip_bytes + frame.payload.size()));
    ip[6] = 0x40;  // don't fragment
    ip[8] = 64;
    ip[9] = wire::kProtoIcmp;
    std::memcpy(ip + 12, frame.dst.bytes.data(), 4);
    std::memcpy(ip + 16, frame.src.bytes.data(), 4);
    const std::uint16_t checksum = wire::finish_checksum(wire::sum_bytes({ip, ip_bytes}));
    std::memcpy(ip + 10, &checksum, sizeof checksum);
  } else {
    wire::store_be16(ip, static_cast<std::uint16_t>(0x6000 | frame.traffic_class << 4));
    wire::store_be16(ip + 4, static_cast<std::uint16_t>(frame.payload.size()));
    ip[6] = wire::kProtoIcmp6;
    ip[7] = 64;
    std::memcpy(ip + 8, frame.dst.bytes.data(), 16);
    std::memcpy(ip + 24, frame.src.bytes.data(), 16);
  }

  std::uint8_t* icmp = ip + ip_bytes;
  std::memcpy(icmp, frame.payload.data(), frame.payload.size());
  icmp[0] = ipv4 ? kEchoReply4 : kEchoReply6;
  wire::store_be16(icmp + 2, 0);
  wire::PartialSum sum = wire::sum_bytes({icmp, frame.payload.size()});
  if (!ipv4)
    sum = sum +
          wire::sum_pseudo_header(frame.dst, frame.src, frame.payload.size(), wire::kProtoIcmp6);
  const std::uint16_t checksum = wire::finish_checksum(sum);
  std::memcpy(icmp + 2, &checksum, sizeof checksum);
  return {HostOutcome::kAnswered, total_bytes};
}

}  // namespace

bool is_ping(const wire::Frame& frame, const OwnAddress& own) noexcept {
  const bool ipv4 = frame.kind == wire::FrameKind::kIcmp4;
  if (!ipv4 && frame.kind != wire::FrameKind::kIcmp6) return false;
  // RFC 1122 lets a host ignore a broadcast ping.
  return frame.payload[0] == (ipv4 ? kEchoRequest4 : kEchoRequest6) &&
         frame.ethernet.dst == own.mac;
}

HostAnswer answer_as_host(const wire::Frame& frame, const OwnAddress& own,
                          wire::MutableBytes out) noexcept {
  if (frame.kind == wire::FrameKind::kArp) return answer_arp(frame, own, out);
  const bool ipv4 = frame.kind == wire::FrameKind::kIcmp4;
  if (!ipv4 && frame.kind != wire::FrameKind::kIcmp6) return {};
  const std::uint8_t type = frame.payload[0];
  if (!ipv4 && (type == kNeighbourSolicitation || type == kNeighbourAdvertisement))
    return answer_neighbour(frame, own, out);
  if (type == (ipv4 ? kUnreachable4 : kUnreachable6) || (!ipv4 && type == kTooBig6))
    return {HostOutcome::kUnreachable};
  return is_ping(frame, own) ? answer_echo(frame, own, out) : HostAnswer{};
}

std::size_t write_probe(const OwnAddress& own, wire::MutableBytes out) noexcept {
  const wire::ArpPacket probe{.operation = wire::kArpRequest,
                              .sender_mac = own.mac,
                              .sender = wire::ipv4_address(0, 0, 0, 0),
                              .target_mac = {},
                              .target = own.ipv4};
  return wire::encode_arp_frame(out, wire::kBroadcastMac, wire::kNoVlan, probe);
}

}  // namespace sluice::dataplane

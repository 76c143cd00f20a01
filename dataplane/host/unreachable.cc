#include "dataplane/host/unreachable.h"

#include <cstring>

namespace sluice::dataplane {
namespace {

constexpr std::size_t kPortsBytes = 8;  // RFC 792 quotes the IP header and eight bytes more

std::optional<UnreachableKind> kind_of(const wire::Frame& frame) noexcept {
  const std::uint8_t type = frame.payload[0];
  const std::uint8_t code = frame.payload[1];
  if (frame.kind == wire::FrameKind::kIcmp4 && type == 3) {
    if (code == 3) return UnreachableKind::kPort;
    return code == 4 ? UnreachableKind::kTooBig : UnreachableKind::kHost;
  }
  if (frame.kind == wire::FrameKind::kIcmp6) {
    if (type == 1) return code == 4 ? UnreachableKind::kPort : UnreachableKind::kHost;
    if (type == 2) return UnreachableKind::kTooBig;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Unreachable> parse_unreachable(const wire::Frame& frame,
                                             const OwnAddress& own) noexcept {
  const auto kind = kind_of(frame);
  if (!kind) return std::nullopt;
  const wire::Bytes quoted = frame.payload.subspan(wire::kIcmpBytes);
  const bool ipv4 = frame.kind == wire::FrameKind::kIcmp4;
  if (quoted.size() < (ipv4 ? wire::kIpv4Bytes : wire::kIpv6Bytes)) return std::nullopt;
  if (quoted[0] >> 4 != (ipv4 ? 4 : 6)) return std::nullopt;
  if (quoted[ipv4 ? 9 : 6] != wire::kProtoUdp) return std::nullopt;
  const std::size_t header_bytes = ipv4 ? (quoted[0] & 15u) * 4 : wire::kIpv6Bytes;
  if (header_bytes < wire::kIpv4Bytes || quoted.size() < header_bytes + kPortsBytes)
    return std::nullopt;

  const std::size_t address_bytes = ipv4 ? 4 : 16;
  const std::size_t src_at = ipv4 ? 12 : 8;
  wire::IpAddress src;
  Unreachable result{.kind = *kind};
  src.family = result.member.family = ipv4 ? wire::Family::kIpv4 : wire::Family::kIpv6;
  std::memcpy(src.bytes.data(), &quoted[src_at], address_bytes);
  std::memcpy(result.member.bytes.data(), &quoted[src_at + address_bytes], address_bytes);
  if (!own.is_own(src)) return std::nullopt;
  result.own_port = wire::load_be16(&quoted[header_bytes]);
  result.member_port = wire::load_be16(&quoted[header_bytes + 2]);
  const wire::Bytes datagram = quoted.subspan(header_bytes + kPortsBytes);
  if (datagram.size() >= sizeof(wire::CommonHeader)) {
    wire::CommonHeader header;
    std::memcpy(&header, datagram.data(), sizeof(header));
    if (header.magic == wire::kMagic && header.version == wire::kVersion) result.quoted = header;
  }
  return result;
}

}  // namespace sluice::dataplane

#include "dataplane/host/neighbour.h"

#include <algorithm>
#include <cstring>

namespace sluice::dataplane {
namespace {

constexpr std::uint8_t kHopLimit = 255;    // no router has forwarded it: the sender is on the link
constexpr std::size_t kMessageBytes = 24;  // both kinds, without options
constexpr std::size_t kTargetAt = 8;
constexpr std::size_t kOptionBytes = 8;  // an Ethernet address with its type and length
constexpr std::uint8_t kSourceOption = 1;
constexpr std::uint8_t kTargetOption = 2;
constexpr std::uint8_t kSolicited = 0x40;
constexpr std::uint8_t kOverride = 0x20;
constexpr wire::Mac kAllNodesMac{{0x33, 0x33, 0, 0, 0, 1}};

bool is_unspecified(const wire::IpAddress& address) noexcept {
  return address == wire::IpAddress{.family = wire::Family::kIpv6, .bytes = {}};
}

// False when an option has no length or ends beyond the message: then nothing of it counts.
bool read_options(wire::Bytes options, bool& names_source) noexcept {
  names_source = false;
  while (!options.empty()) {
    if (options.size() < kOptionBytes || options[1] == 0) return false;
    const std::size_t bytes = options[1] * std::size_t{8};
    if (options.size() < bytes) return false;
    names_source |= options[0] == kSourceOption;
    options = options.subspan(bytes);
  }
  return true;
}

// RFC 4861, 7.1.1 and 7.1.2, without what parse_content() has checked.
bool is_sound(const wire::Frame& frame) noexcept {
  bool names_source;
  if (frame.hop_limit != kHopLimit || frame.payload[1] != 0 ||
      frame.payload.size() < kMessageBytes ||
      !read_options(frame.payload.subspan(kMessageBytes), names_source))
    return false;
  if (!is_unspecified(frame.src)) return !frame.src.is_bad_source();
  // A host without an address yet asks a group whether one is free, and can't be written to.
  return frame.payload[0] == kNeighbourSolicitation && frame.dst.bytes[0] == 0xff && !names_source;
}

std::size_t write_advertisement(const wire::Frame& request, const OwnAddress& own,
                                wire::MutableBytes out) noexcept {
  const bool probe = is_unspecified(request.src);
  const wire::IpAddress destination = probe ? kAllNodes : request.src;
  const bool with_mac = probe || request.payload.size() >= kMessageBytes + kOptionBytes;
  const std::size_t icmp_bytes = kMessageBytes + (with_mac ? kOptionBytes : 0);
  const std::size_t start =
      wire::encode_ethernet(out, probe ? kAllNodesMac : request.ethernet.src, own.mac,
                            request.ethernet.vlan_tci, wire::kEtherIpv6);
  const std::size_t total_bytes = start + wire::kIpv6Bytes + icmp_bytes;
  if (start == 0 || total_bytes > out.size()) return 0;

  std::uint8_t* ip = &out[start];
  std::memset(ip, 0, wire::kIpv6Bytes + icmp_bytes);
  ip[0] = 0x60;
  wire::store_be16(ip + 4, static_cast<std::uint16_t>(icmp_bytes));
  ip[6] = wire::kProtoIcmp6;
  ip[7] = kHopLimit;
  std::memcpy(ip + 8, own.ipv6.bytes.data(), 16);
  std::memcpy(ip + 24, destination.bytes.data(), 16);

  std::uint8_t* icmp = ip + wire::kIpv6Bytes;
  icmp[0] = kNeighbourAdvertisement;
  icmp[4] = static_cast<std::uint8_t>(kOverride | (probe ? 0 : kSolicited));
  std::memcpy(icmp + kTargetAt, own.ipv6.bytes.data(), 16);
  if (with_mac) {
    icmp[kMessageBytes] = kTargetOption;
    icmp[kMessageBytes + 1] = 1;  // in units of eight bytes
    std::memcpy(icmp + kMessageBytes + 2, own.mac.bytes.data(), 6);
  }
  const std::uint16_t checksum = wire::finish_checksum(
      wire::sum_bytes({icmp, icmp_bytes}) +
      wire::sum_pseudo_header(own.ipv6, destination, icmp_bytes, wire::kProtoIcmp6));
  std::memcpy(icmp + 2, &checksum, sizeof checksum);
  return total_bytes;
}

}  // namespace

HostAnswer answer_neighbour(const wire::Frame& frame, const OwnAddress& own,
                            wire::MutableBytes out) noexcept {
  if (!is_for_neighbours(frame, own) || !is_sound(frame)) return {};
  if (!std::equal(own.ipv6.bytes.begin(), own.ipv6.bytes.end(), &frame.payload[kTargetAt]))
    return frame.src == own.ipv6 ? HostAnswer{HostOutcome::kConflict} : HostAnswer{};
  if (frame.payload[0] == kNeighbourAdvertisement || frame.src == own.ipv6)
    return {HostOutcome::kConflict};
  const std::size_t bytes = write_advertisement(frame, own, out);
  return bytes == 0 ? HostAnswer{} : HostAnswer{HostOutcome::kAnswered, bytes};
}

}  // namespace sluice::dataplane

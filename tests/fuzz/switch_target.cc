// The switch's view of any frame: it gets a class, and what the appliance answers is sound, goes
// back to the sender, and is not longer than the request but for one solicitation (dataplane/host).
#include <algorithm>
#include <array>
#include <cstring>

#include "dataplane/core/classifier.h"
#include "dataplane/core/steer.h"
#include "dataplane/host/answer.h"
#include "dataplane/host/unreachable.h"
#include "tests/fuzz/fuzz.h"

using namespace sluice;

namespace {

constexpr wire::IpAddress ipv6(std::uint8_t last) {
  return {wire::Family::kIpv6, {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}};
}

const dataplane::OwnAddress kOwn{.mac = {{2, 0, 0, 0, 0, 2}},
                                 .ipv4 = wire::ipv4_address(10, 0, 0, 2),
                                 .ipv6 = ipv6(2),
                                 .port = 7700,
                                 .shard_count = 2};
constexpr wire::Mac kSender{{2, 0, 0, 0, 0, 1}};

const dataplane::Classifier& classifier() {
  static const dataplane::TrafficRule rules[] = {
      {.egress_class = 1, .dscp = 3, .pcp = {}, .protocol = {}, .port = {}, .prefix = {}},
      {.egress_class = 2,
       .dscp = {},
       .pcp = 1,
       .protocol = wire::kProtoUdp,
       .port = 7700,
       .prefix = {}},
      {.egress_class = 3,
       .dscp = {},
       .pcp = {},
       .protocol = {},
       .port = {},
       .prefix = dataplane::TrafficRule::Prefix{ipv6(0), 120}},
  };
  static const dataplane::Classifier made(rules);
  return made;
}

void check_answer(const wire::Frame& frame, std::size_t request_bytes) {
  fuzz::Bytes out(request_bytes + 8);
  const dataplane::HostAnswer answer = dataplane::answer_as_host(frame, kOwn, out);
  REQUIRE_PROPERTY(answer.reply_bytes <= out.size());
  if (answer.outcome != dataplane::HostOutcome::kAnswered) return;
  wire::Frame reply;
  REQUIRE_PROPERTY(
      ok(wire::parse_frame({out.data(), answer.reply_bytes}, wire::UdpChecksums::kVerify, reply)));
  REQUIRE_PROPERTY(reply.ethernet.src == kOwn.mac);
  REQUIRE_PROPERTY(reply.ethernet.vlan_tci == frame.ethernet.vlan_tci);
  const bool to_group = reply.ethernet.dst.is_group();
  REQUIRE_PROPERTY(to_group || reply.ethernet.dst == frame.ethernet.src);
  REQUIRE_PROPERTY(answer.reply_bytes <= request_bytes || to_group);
}

void check_frame(wire::Bytes bytes) {
  wire::Frame frame;
  if (!ok(wire::parse_ethernet(bytes, frame.ethernet))) return;
  REQUIRE_PROPERTY(classifier().of_frame(frame.ethernet) < dataplane::kClassCount);
  if (!ok(wire::parse_content(wire::UdpChecksums::kVerify, frame))) return;
  const dataplane::Steering steering = dataplane::steer(frame, kOwn);
  if (steering.service == dataplane::Service::kShard)
    REQUIRE_PROPERTY(steering.shard.value < kOwn.shard_count);
  if (steering.service == dataplane::Service::kHost) {
    check_answer(frame, bytes.size());
    if (frame.kind == wire::FrameKind::kIcmp4 || frame.kind == wire::FrameKind::kIcmp6)
      static_cast<void>(dataplane::parse_unreachable(frame, kOwn));
  }
}

// An ICMPv6 message with good checksum from a sender and to a destination that `choice` picks:
// mutations of whole frames rarely get past the checksum.
fuzz::Bytes wrap(std::uint8_t choice, wire::Bytes icmp) {
  const wire::IpAddress sources[] = {ipv6(1), ipv6(2), wire::IpAddress{wire::Family::kIpv6, {}},
                                     dataplane::kAllNodes};
  const wire::IpAddress destinations[] = {ipv6(2), dataplane::solicited_node_group(ipv6(2)),
                                          dataplane::kAllNodes, ipv6(3)};
  const wire::IpAddress& src = sources[choice & 3];
  const wire::IpAddress& dst = destinations[choice >> 2 & 3];
  const std::uint16_t vlan = (choice & 16) != 0 ? 5 : wire::kNoVlan;
  fuzz::Bytes frame(wire::kMaxUdpHeaderBytes + icmp.size());
  const std::size_t at = wire::encode_ethernet(frame, kOwn.mac, kSender, vlan, wire::kEtherIpv6);
  std::uint8_t* ip = &frame[at];
  ip[0] = 0x60;
  wire::store_be16(ip + 4, static_cast<std::uint16_t>(icmp.size()));
  ip[6] = wire::kProtoIcmp6;
  ip[7] = (choice & 32) != 0 ? 64 : 255;
  std::memcpy(ip + 8, src.bytes.data(), 16);
  std::memcpy(ip + 24, dst.bytes.data(), 16);
  std::uint8_t* message = ip + wire::kIpv6Bytes;
  std::copy(icmp.begin(), icmp.end(), message);
  if (icmp.size() >= wire::kIcmpBytes) {
    wire::store_be16(message + 2, 0);
    const std::uint16_t checksum =
        wire::finish_checksum(wire::sum_bytes({message, icmp.size()}) +
                              wire::sum_pseudo_header(src, dst, icmp.size(), wire::kProtoIcmp6));
    std::memcpy(message + 2, &checksum, sizeof checksum);
  }
  frame.resize(at + wire::kIpv6Bytes + icmp.size());
  return frame;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const wire::Bytes rest{data + 2, size - 2};
  if (data[0] % 4 == 0)
    check_frame(rest);
  else
    check_frame(wrap(data[1], rest.first(std::min<std::size_t>(rest.size(), 1500))));
  return 0;
}

std::vector<fuzz::Seed> fuzz::seeds() {
  std::vector<Seed> all;
  Bytes arp(64);
  arp.resize(wire::encode_arp_frame(arp, wire::kBroadcastMac, wire::kNoVlan,
                                    {.operation = wire::kArpRequest,
                                     .sender_mac = kSender,
                                     .sender = wire::ipv4_address(10, 0, 0, 1),
                                     .target_mac = {},
                                     .target = kOwn.ipv4}));
  arp.insert(arp.begin(), {0, 0});
  all.push_back({"arp", arp});
  for (const std::uint8_t type : {135, 136, 128, 1}) {
    Bytes message(8);
    message[0] = type;
    const auto& target = kOwn.ipv6.bytes;
    message.insert(message.end(), target.begin(), target.end());
    const Bytes option{1, 1, 2, 0, 0, 0, 0, 1};
    for (int options = 0; options < 2; ++options) {
      // From the neighbour, from nobody, from a host with our address; to us and to the group.
      for (const std::uint8_t choice : {0, 4, 6, 5, 8, 20}) {
        Bytes input{1, choice};
        input.insert(input.end(), message.begin(), message.end());
        all.push_back({"icmp" + std::to_string(type) + "_" + std::to_string(options) + "_" +
                           std::to_string(choice),
                       input});
      }
      message.insert(message.end(), option.begin(), option.end());
    }
  }
  return all;
}

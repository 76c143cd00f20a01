// The frame parser: what it returns lies inside the frame, and UDP frames can be written again.
#include <array>
#include <cstring>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "aggregator/wire/peek.h"
#include "tests/fuzz/fuzz.h"

using namespace sluice;

namespace {

bool inside(wire::Bytes part, const std::uint8_t* data, std::size_t size) {
  return part.empty() || (part.data() >= data && part.data() + part.size() <= data + size);
}

// Checksums keep random frames out; repairing them lets mutations reach what lies behind.
wire::UdpPath path_of(const wire::Frame& frame) {
  return {.src_mac = frame.ethernet.src,
          .dst_mac = frame.ethernet.dst,
          .vlan_tci = frame.ethernet.vlan_tci,
          .src = frame.src,
          .dst = frame.dst,
          .src_port = frame.src_port,
          .dst_port = frame.dst_port,
          .traffic_class = frame.traffic_class};
}

void check_udp(const wire::Frame& frame) {
  fuzz::Bytes again(frame.payload.size() + wire::kMaxUdpHeaderBytes);
  const std::size_t bytes = wire::encode_udp_frame(again, path_of(frame), frame.payload);
  REQUIRE_PROPERTY(bytes != 0);
  wire::Frame second;
  REQUIRE_PROPERTY(
      ok(wire::parse_frame({again.data(), bytes}, wire::UdpChecksums::kVerify, second)));
  REQUIRE_PROPERTY(second.kind == wire::FrameKind::kUdp);
  REQUIRE_PROPERTY(path_of(second) == path_of(frame));
  REQUIRE_PROPERTY(second.payload.size() == frame.payload.size());
  REQUIRE_PROPERTY(frame.payload.empty() || std::memcmp(second.payload.data(), frame.payload.data(),
                                                        frame.payload.size()) == 0);
}

// Any bytes that a switch may forward can be peeked at, and what is seen lies inside the frame.
void check_peek(wire::Bytes bytes) {
  static_cast<void>(wire::peek_priority(bytes));
  wire::EthernetView view;
  if (!ok(wire::parse_ethernet(bytes, view))) return;
  const wire::FlowView flow = wire::peek_flow(view);
  REQUIRE_PROPERTY(inside(flow.addresses, bytes.data(), bytes.size()));
  REQUIRE_PROPERTY(inside(flow.l4, bytes.data(), bytes.size()));
  REQUIRE_PROPERTY(flow.pcp <= wire::kNoPcp);
  REQUIRE_PROPERTY(flow.l4.empty() || flow.family != wire::Family::kNone);
  static_cast<void>(wire::peek_priority(flow.udp_payload()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto checksums = data[0] & 1 ? wire::UdpChecksums::kTrust : wire::UdpChecksums::kVerify;
  ++data;
  --size;
  check_peek({data, size});
  wire::Frame frame;
  if (const Verdict why = wire::parse_frame({data, size}, checksums, frame); !ok(why)) {
    REQUIRE_PROPERTY(static_cast<std::size_t>(why) < kVerdictCount);
    return 0;
  }
  REQUIRE_PROPERTY(inside(frame.ethernet.content, data, size));
  REQUIRE_PROPERTY(inside(frame.payload, data, size));
  if (frame.kind == wire::FrameKind::kArp) static_cast<void>(wire::parse_arp(frame.payload));
  if (frame.kind == wire::FrameKind::kUdp) check_udp(frame);
  return 0;
}

std::vector<fuzz::Seed> fuzz::seeds() {
  std::vector<Seed> all;
  const auto add = [&](std::string name, const Bytes& frame) {
    for (std::uint8_t trust = 0; trust < 2; ++trust) {
      Bytes input{trust};
      input.insert(input.end(), frame.begin(), frame.end());
      all.push_back({name + (trust ? "_trusted" : ""), input});
    }
  };
  const Bytes payload{1, 2, 3, 4, 5};
  wire::UdpPath path{.src_mac = {{2, 0, 0, 0, 0, 1}},
                     .dst_mac = {{2, 0, 0, 0, 0, 2}},
                     .src = wire::ipv4_address(10, 0, 0, 1),
                     .dst = wire::ipv4_address(10, 0, 0, 2),
                     .src_port = 1000,
                     .dst_port = 7700};
  Bytes frame(200);
  const auto add_udp = [&](std::string name) {
    Bytes bytes = frame;
    bytes.resize(wire::encode_udp_frame(bytes, path, payload));
    add(std::move(name), bytes);
  };
  add_udp("udp4");
  path.vlan_tci = 5;
  add_udp("udp4_vlan");
  path.src = path.dst = {wire::Family::kIpv6, {0xfd, 0, 0, 1}};
  add_udp("udp6_vlan");
  path.vlan_tci = wire::kNoVlan;
  add_udp("udp6");
  const auto insert = [](Bytes bytes, std::size_t at, std::initializer_list<std::uint8_t> more) {
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), more);
    return bytes;
  };
  Bytes contribution(200);
  contribution.resize(wire::encode(contribution, {}, wire::Contribution{.elem_count = 2}, {},
                                   std::array<std::uint8_t, 8>{}));
  Bytes udp6 = frame;
  udp6.resize(wire::encode_udp_frame(udp6, path, contribution));
  add("contribution6", udp6);
  add("contribution6_qinq", insert(udp6, 12, {0x88, 0xa8, 0xe0, 7, 0x81, 0, 0x20, 5}));
  udp6[wire::kEthernetBytes + 6] = 0;  // hop-by-hop options, then a fragment header, then UDP
  add("contribution6_extensions", insert(udp6, wire::kEthernetBytes + wire::kIpv6Bytes,
                                         {44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 1}));
  const wire::ArpPacket arp{.operation = wire::kArpRequest,
                            .sender_mac = {{2, 0, 0, 0, 0, 1}},
                            .sender = wire::ipv4_address(10, 0, 0, 1),
                            .target_mac = {},
                            .target = wire::ipv4_address(10, 0, 0, 2)};
  Bytes bytes = frame;
  bytes.resize(wire::encode_arp_frame(bytes, wire::kBroadcastMac, wire::kNoVlan, arp));
  add("arp", bytes);
  return all;
}

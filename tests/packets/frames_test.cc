#include "tests/packets/frames.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dataplane/host/answer.h"
#include "dataplane/host/unreachable.h"

namespace sluice::dataplane {
namespace {

std::vector<std::uint8_t> from_hex(std::string_view hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2)
    bytes.push_back(
        static_cast<std::uint8_t>(std::stoul(std::string(hex.substr(at, 2)), nullptr, 16)));
  return bytes;
}

OwnAddress appliance() {
  return {.mac = {{0x02, 0x51, 10, 77, 0, 1}},
          .ipv4 = wire::ipv4_address(10, 77, 0, 1),
          .ipv6 = {wire::Family::kIpv6, {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
          .port = 7700,
          .shard_count = 2};
}

struct Outcome {
  std::string name;
  std::vector<std::uint8_t> reply;
};

Outcome host_outcome(const wire::Frame& frame, std::size_t request_bytes) {
  std::vector<std::uint8_t> reply(request_bytes + 8);
  const HostAnswer answer = answer_as_host(frame, appliance(), reply);
  reply.resize(answer.reply_bytes);
  switch (answer.outcome) {
    case HostOutcome::kAnswered: return {"answered", reply};
    case HostOutcome::kIgnored: return {"ignored", {}};
    case HostOutcome::kConflict: return {"conflict", {}};
    case HostOutcome::kUnreachable: break;
  }
  const auto hint = parse_unreachable(frame, appliance());
  if (!hint) return {"ignored", {}};
  const char* kind = hint->kind == UnreachableKind::kPort     ? "port "
                     : hint->kind == UnreachableKind::kTooBig ? "mtu "
                                                              : "host ";
  return {"unreachable " + std::string(kind) + std::to_string(hint->member_port), {}};
}

Outcome process(const std::vector<std::uint8_t>& bytes) {
  wire::Frame frame;
  if (const Verdict why = wire::parse_frame(bytes, wire::UdpChecksums::kVerify, frame); !ok(why))
    return {std::string(label(why)), {}};
  const Steering steering = steer(frame, appliance());
  switch (steering.service) {
    case Service::kNone: return {"none", {}};
    case Service::kNotOurs: return {"not_ours", {}};
    case Service::kControl: return {"control", {}};
    case Service::kShard: return {"shard " + std::to_string(steering.shard.value), {}};
    case Service::kHost: break;
  }
  return host_outcome(frame, bytes.size());
}

TEST(FrameTable, EveryFrameHasItsOutcomeAndItsReply) {
  for (const FrameCase& test : kFrameCases) {
    const Outcome outcome = process(from_hex(test.frame_hex));
    EXPECT_EQ(outcome.name, test.outcome) << test.description;
    EXPECT_EQ(outcome.reply, from_hex(test.reply_hex)) << test.description;
    if (outcome.reply.size() * 2 > test.frame_hex.size()) {
      EXPECT_EQ(test.description, "probe whether our address is free")
          << "a reply is longer than its request";
    }
  }
}

}  // namespace
}  // namespace sluice::dataplane

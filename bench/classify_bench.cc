// The cost of classing one forwarded frame by the operator's rules. The bench `switch` runs it.
//
// 256 frames of UDP and TCP over IPv4 and IPv6 from many addresses and ports, one in eight a
// contribution for another appliance, headers in the first-level cache as after a receive burst's
// prefetch. The time is from the bytes of a frame to its class. It includes parse_ethernet(), which
// the switch needs anyway; the row "ethernet" is that function alone. No rule fits in the rows
// "ports" and "prefixes": their worst case.
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/wire/packet.h"
#include "dataplane/core/classifier.h"

namespace sluice::bench {
namespace {

using dataplane::TrafficRule;

constexpr std::size_t kFrames = 256;

std::vector<std::uint8_t> make_frame(unsigned number) {
  wire::UdpPath path{.src_mac = {{2, 0, 0, 0, 0, 1}}, .dst_mac = {{2, 0, 0, 0, 0, 2}}};
  const auto low = static_cast<std::uint8_t>(number);
  path.src = wire::ipv4_address(10, 77, 1, low);
  path.dst = wire::ipv4_address(10, 77, 2, low);
  if (number % 4 == 1) {
    path.src = {wire::Family::kIpv6, {0xfd, 0, 0, 1, low}};
    path.dst = {wire::Family::kIpv6, {0xfd, 0, 0, 2, low}};
  }
  path.src_port = static_cast<std::uint16_t>(30000 + number * 37);
  path.dst_port = 5201;
  std::vector<std::uint8_t> payload(200);
  if (number % 8 == 0) {
    const wire::Contribution body{.flow = {.priority = low}, .elem_count = 2};
    CHECK(wire::encode(payload, {}, body, {}, std::array<std::uint8_t, 8>{}) != 0);
  }
  std::vector<std::uint8_t> frame(wire::kMaxUdpHeaderBytes + payload.size());
  frame.resize(wire::encode_udp_frame(frame, path, payload));
  CHECK(!frame.empty());
  if (number % 2 == 1)  // the same bytes as TCP; nobody looks at checksums
    frame[wire::kEthernetBytes + (number % 4 == 1 ? 6 : 9)] = wire::kProtoTcp;
  return frame;
}

enum class Kind : std::uint8_t { kDscp, kPorts, kPrefixes };

std::vector<TrafficRule> make_rules(Kind kind, std::size_t count) {
  std::vector<TrafficRule> rules;
  for (std::size_t at = 0; at < count; ++at) {
    TrafficRule rule{.egress_class = static_cast<dataplane::ClassIndex>(at % 64)};
    const auto low = static_cast<std::uint8_t>(at);
    switch (kind) {
      case Kind::kDscp: rule.dscp = static_cast<std::uint8_t>(63 - at); break;
      case Kind::kPorts:
        rule.protocol = at % 2 == 0 ? wire::kProtoUdp : wire::kProtoTcp;
        rule.port = static_cast<std::uint16_t>(1000 + at);
        break;
      case Kind::kPrefixes:
        rule.prefix = {wire::ipv4_address(192, 168, low, 0), 24};
        if (at % 2 == 1) rule.prefix = {{wire::Family::kIpv6, {0xfe, low}}, 48};
        break;
    }
    rules.push_back(rule);
  }
  return rules;
}

std::vector<std::vector<std::uint8_t>> make_frames() {
  std::vector<std::vector<std::uint8_t>> frames;
  for (unsigned number = 0; number < kFrames; ++number) frames.push_back(make_frame(number));
  return frames;
}

template <class OfView>
void measure(benchmark::State& state, const OfView& of_view) {
  const auto frames = make_frames();
  std::uint64_t sum = 0;
  for (auto _ : state) {
    for (const auto& frame : frames) {
      wire::EthernetView view;
      if (ok(wire::parse_ethernet(frame, view))) sum += of_view(view);
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kFrames));
}

void classes(benchmark::State& state, Kind kind, std::size_t count) {
  const dataplane::Classifier classifier(make_rules(kind, count));
  measure(state, [&](const wire::EthernetView& view) { return classifier.of_frame(view); });
}

void ethernet(benchmark::State& state) {
  measure(state, [](const wire::EthernetView& view) { return view.dst.bytes[5]; });
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  benchmark::RegisterBenchmark("ethernet", ethernet);
  benchmark::RegisterBenchmark("rules/0", classes, Kind::kDscp, 0u);
  const std::pair<const char*, Kind> kinds[] = {
      {"dscp", Kind::kDscp}, {"ports", Kind::kPorts}, {"prefixes", Kind::kPrefixes}};
  for (const auto& [name, kind] : kinds)
    for (const std::size_t count : {1u, 8u, 64u})
      benchmark::RegisterBenchmark((std::string(name) + "/" + std::to_string(count)).c_str(),
                                   classes, kind, count);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

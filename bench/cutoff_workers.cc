#include "bench/cutoff_workers.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/wire/auth.h"
#include "bench/generator.h"

namespace sluice::bench {
namespace {

constexpr DurationNs kJoinDeadlineNs = 10 * kSecond;
constexpr DurationNs kAskAgainNs = 100 * kMillisecond;
constexpr std::uint32_t kEndlessCredit = 0x3fffffff;  // results are taken at once
constexpr std::uint64_t kRunId = 0x5eed;

}  // namespace

TimeNs clock_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

wire::Mac cutoff_appliance_mac() noexcept { return {{0x02, 0x51, 0x0a, 0x4d, 0x00, 0x01}}; }

CutoffWorkers::CutoffWorkers(const sluice_dpdk_plugin& plugin, sluice_dpdk_port* port,
                             const CutoffJob& job)
    : plugin_(plugin),
      port_(port),
      job_(job),
      identities_(job.workers),
      numbers_(job.workers),
      payload_(job.chunk_bytes) {
  const auto max_elems = static_cast<std::uint32_t>(job.chunk_bytes / sizeof(float));
  for (std::uint16_t rank = 0; rank < job.workers; ++rank) {
    wire::Join request{.nonce = kRunId << 16 | rank,
                       .run_id = kRunId,
                       .world_size = job.workers,
                       .chunk_bytes = job.chunk_bytes,
                       .datagram_bytes = static_cast<std::uint16_t>(
                           wire::datagram_bytes(job.chunk_bytes, job.workers)),
                       .policy = {.kind = PolicyKind::kFixed, .k = job.k},
                       .has_policy = 1,
                       .name_bytes = 6};
    request.layouts[0] = {.hash = 1, .chunk_count = job.chunks, .max_elems = max_elems};
    request.layouts[1] = {.chunk_count = kCollectiveChunks};
    std::memcpy(request.name, "cutoff", 6);
    requests_.push_back(request);
    identities_[rank].rank = rank;
  }
  for (std::size_t i = 0; i < max_elems; ++i) {
    const auto value = static_cast<float>(i % 17) - 8;
    std::memcpy(&payload_[i * sizeof(value)], &value, sizeof(value));
  }
}

wire::UdpPath CutoffWorkers::path_of(std::uint16_t rank, std::uint16_t port) const {
  return {.src_mac = {{0x02, 0, 0, 0, 1, 1}},
          .dst_mac = cutoff_appliance_mac(),
          .src = wire::ipv4_address(10, 77, 0, 100),
          .dst = wire::ipv4_address(10, 77, 0, 1),
          .src_port = static_cast<std::uint16_t>(50000 + rank),
          .dst_port = port,
          .traffic_class = wire::kEcnCapable};
}

void CutoffWorkers::send(std::span<const sluice_dpdk_frame> frames) {
  const auto count = static_cast<std::uint32_t>(frames.size());
  if (plugin_.tx_burst(port_, frames.data(), count) != count)
    give_up("the port did not take " + std::to_string(count) + " frames at once");
}

void CutoffWorkers::send_control(std::uint16_t rank, std::span<const std::uint8_t> datagram) {
  FrameBuffer frame;
  frame.size = static_cast<std::uint32_t>(
      wire::encode_udp_frame(frame.bytes, path_of(rank, kCutoffPort), datagram));
  CHECK(frame.size != 0);
  const sluice_dpdk_frame view = frame.view();
  send({&view, 1});
}

void CutoffWorkers::ask_to_join(std::uint16_t rank) {
  std::array<std::uint8_t, kFrameRoom> datagram{};  // padded: the path's MTU is tested
  CHECK(wire::encode(datagram, {.rank = rank}, requests_[rank]) != 0);
  send_control(rank, std::span(datagram).first(requests_[rank].datagram_bytes));
}

void CutoffWorkers::handle_join_answer(const wire::Packet& packet) {
  const std::uint16_t rank = packet.common().rank;
  if (rank >= job_.workers) return;
  if (packet.type() == wire::PacketType::kChallenge) {
    wire::Join& request = requests_[rank];
    request.has_proof = 1;
    std::memcpy(request.server_nonce, packet.body<wire::Challenge>().server_nonce,
                sizeof(request.server_nonce));
    const wire::Digest proof = wire::join_proof("", rank, request);
    std::memcpy(request.proof, proof.data(), proof.size());
    ask_to_join(rank);
  } else if (packet.type() == wire::PacketType::kAccept) {
    const PolicyOptions policy = packet.body<wire::Accept>().policy;
    if (policy.kind != PolicyKind::kFixed || policy.k != job_.k)
      give_up(std::string("the appliance runs the job with policy ") + name_of(policy.kind) +
              ", k = " + std::to_string(policy.k));
    identities_[rank].job = packet.common().job;
    identities_[rank].cookie = packet.common().cookie;
  } else if (packet.type() == wire::PacketType::kRefuse) {
    give_up("the join was refused: " + std::string(packet.text()));
  }
}

void CutoffWorkers::join_all() {
  std::vector<SeenResult> none;
  const TimeNs deadline = clock_ns() + kJoinDeadlineNs;
  TimeNs next_ask = 0;
  const auto joined = [](const wire::Sender& identity) { return identity.cookie != 0; };
  while (!std::all_of(identities_.begin(), identities_.end(), joined)) {
    const TimeNs now = clock_ns();
    if (now >= deadline) give_up("the appliance did not let every worker join within 10 s");
    if (now >= next_ask) {
      for (std::uint16_t rank = 0; rank < job_.workers; ++rank)
        if (!joined(identities_[rank])) ask_to_join(rank);
      next_ask = now + kAskAgainNs;
    }
    receive(none);
  }
}

void CutoffWorkers::keep_alive() {
  for (std::uint16_t rank = 0; rank < job_.workers; ++rank) {
    std::array<std::uint8_t, 64> datagram;
    const std::size_t bytes = wire::encode(datagram, identities_[rank], wire::Keepalive{});
    send_control(rank, std::span(datagram).first(bytes));
  }
}

void CutoffWorkers::write_contribution(FrameBuffer& frame, std::uint16_t rank, Step step,
                                       ChunkIndex chunk) {
  const wire::UdpPath path = path_of(rank, kCutoffPort + 1);
  const std::size_t header_bytes = wire::udp_header_bytes(path);
  const wire::Contribution body{.flow = {.number = ++numbers_[rank], .credit = kEndlessCredit},
                                .step = step,
                                .chunk = chunk,
                                .base_step = step,
                                .weight = 1,
                                .elem_count = static_cast<std::uint16_t>(job_.chunk_bytes / 4),
                                .dtype = Dtype::kFloat32};
  const std::span<std::uint8_t> datagram = std::span(frame.bytes).subspan(header_bytes);
  const std::size_t bytes = wire::encode(datagram, identities_[rank], body, {}, payload_);
  const wire::PartialSum sum = wire::sum_bytes(datagram.first(bytes));
  frame.size =
      static_cast<std::uint32_t>(wire::encode_udp_headers(frame.bytes, path, bytes, sum) + bytes);
}

TimeNs CutoffWorkers::receive(std::vector<SeenResult>& seen) {
  std::array<sluice_dpdk_frame, 64> frames;
  const std::uint32_t count = plugin_.rx_burst(port_, frames.data(), frames.size());
  if (count == 0) return 0;
  const TimeNs now = clock_ns();
  for (const sluice_dpdk_frame& bytes : std::span(frames).first(count)) {
    wire::Frame frame;
    wire::Packet packet;
    if (!ok(wire::parse_frame({bytes.data, bytes.bytes}, wire::UdpChecksums::kTrust, frame)) ||
        frame.kind != wire::FrameKind::kUdp || !ok(wire::parse(frame.payload, packet)))
      continue;
    if (packet.type() == wire::PacketType::kResult) {
      const auto& body = packet.body<wire::ResultHeader>();
      seen.push_back({.step = body.step, .chunk = body.chunk, .mask = packet.mask_word(0)});
    } else if (packet.type() == wire::PacketType::kNotice) {
      give_up("the appliance says: " + std::string(packet.text()));
    } else {
      handle_join_answer(packet);
    }
  }
  plugin_.give_back(port_, frames.data(), count);
  return now;
}

}  // namespace sluice::bench

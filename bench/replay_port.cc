#include "bench/replay_port.h"

#include <cstring>

#include "aggregator/base/check.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kUdpAt = wire::kEthernetBytes + wire::kIpv4Bytes;
constexpr std::size_t kDatagramAt = kUdpAt + wire::kUdpBytes;
constexpr std::size_t kBodyAt = kDatagramAt + sizeof(wire::CommonHeader);
constexpr std::uint32_t kReportEvery = 32;  // packets of one worker
constexpr std::size_t kBurstsPerStep = kFramesPerStep / kBurst;

static_assert(kChunks % kBurst == 0);

}  // namespace

wire::Mac appliance_mac() noexcept { return {{0x02, 0, 0, 0, 0, 1}}; }
wire::IpAddress appliance_address() noexcept { return wire::ipv4_address(10, 0, 0, 1); }

wire::UdpPath path_to_worker(std::size_t rank, std::uint16_t shard) noexcept {
  const auto host = static_cast<std::uint8_t>(rank + 10);
  return {.src_mac = appliance_mac(),
          .dst_mac = {{0x02, 0, 0, 0, 1, host}},
          .src = appliance_address(),
          .dst = wire::ipv4_address(10, 0, 0, host),
          .src_port = static_cast<std::uint16_t>(kControlPort + 1 + shard),
          .dst_port = static_cast<std::uint16_t>(40000 + rank)};
}

ReplayPort::ReplayPort(std::uint16_t shard, std::uint16_t shard_count)
    : tx_memory_(kTxBuffers * kBufferBytes) {
  frame_bytes_ =
      kDatagramAt + sizeof(wire::CommonHeader) + sizeof(wire::Contribution) + kChunkBytes;
  stride_bytes_ = (frame_bytes_ + 63) / 64 * 64 + 64;  // not a power of two: spreads over the sets
  rx_memory_.resize(kFramesPerStep * stride_bytes_);
  fixed_sums_.resize(kFramesPerStep);
  std::array<float, kChunkElems> values;
  for (std::size_t rank = 0; rank < kWorkers; ++rank) {
    wire::UdpPath path = path_to_worker(rank, shard);
    std::swap(path.src_mac, path.dst_mac);
    std::swap(path.src, path.dst);
    std::swap(path.src_port, path.dst_port);
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
      for (std::size_t i = 0; i < kChunkElems; ++i) values[i] = gradient(rank, chunk, i);
      wire::Contribution body;
      body.chunk = static_cast<std::uint32_t>((chunk / kChunksPerBlock * shard_count + shard) *
                                                  kChunksPerBlock +
                                              chunk % kChunksPerBlock);
      body.weight = 1;
      body.elem_count = kChunkElems;
      body.dtype = Dtype::kFloat32;
      body.flow.priority = static_cast<Priority>(chunk * 256 / kChunks);
      body.flow.flags = chunk % kReportEvery == kReportEvery - 1 ? wire::kFlagReport : 0;
      std::array<std::uint8_t, 2048> datagram;
      const std::size_t bytes = wire::encode(
          datagram,
          {.job = kJob, .rank = static_cast<std::uint16_t>(rank), .cookie = cookie_of(rank)}, body,
          {}, {reinterpret_cast<const std::uint8_t*>(values.data()), kChunkBytes});
      const std::size_t written = wire::encode_udp_frame({frame_at(rank, chunk), stride_bytes_},
                                                         path, {datagram.data(), bytes});
      CHECK(bytes != 0 && written == frame_bytes_);
      // What the checksum covers with the patched bytes at zero, the checksum itself left out.
      const std::size_t l4_bytes = wire::kUdpBytes + bytes;
      std::array<std::uint8_t, wire::kUdpBytes> udp;
      std::memcpy(udp.data(), frame_at(rank, chunk) + kUdpAt, udp.size());
      udp[6] = udp[7] = 0;
      fixed_sums_[rank * kChunks + chunk] =
          wire::sum_pseudo_header(path.src, path.dst, l4_bytes, wire::kProtoUdp) +
          wire::sum_bytes(udp) + wire::sum_bytes({datagram.data(), bytes});
    }
  }
}

std::uint8_t* ReplayPort::frame_at(std::size_t rank, std::size_t chunk) noexcept {
  return rx_memory_.data() + (rank * kChunks + chunk) * stride_bytes_;
}

void ReplayPort::patch(std::uint8_t* frame, wire::PartialSum fixed_sum,
                       std::uint32_t number) noexcept {
  auto& body = *reinterpret_cast<wire::Contribution*>(frame + kBodyAt);
  body.flow.number = body.flow.timestamp_us = number;
  body.flow.credit = UINT32_MAX / 2;
  body.step = step_;
  // All four lie at even offsets.
  const wire::PartialSum sum{2 * std::uint64_t{number} + UINT32_MAX / 2 + step_};
  std::uint16_t checksum = wire::finish_checksum(fixed_sum + sum);
  if (checksum == 0) checksum = 0xffff;
  std::memcpy(frame + kUdpAt + 6, &checksum, sizeof(checksum));
}

void ReplayPort::next_step() noexcept {
  ++step_;
  burst_ = 0;
}

std::size_t ReplayPort::rx_burst(std::array<FrameBytes, kBurst>& frames) noexcept {
  if (burst_ == kBurstsPerStep) return 0;
  const std::size_t rank = kWorkers - 1 - burst_ % kWorkers;
  const std::size_t first = burst_ / kWorkers * kBurst;
  ++burst_;
  for (std::size_t i = 0; i < kBurst; ++i) {
    const std::size_t chunk = first + i;
    std::uint8_t* frame = frame_at(rank, chunk);
    const auto number = static_cast<std::uint32_t>((step_ - 1) * kChunks + chunk + 1);
    patch(frame, fixed_sums_[rank * kChunks + chunk], number);
    frames[i] = {frame, frame_bytes_};
  }
  return kBurst;
}

std::span<std::uint8_t> ReplayPort::tx_buffer() noexcept {
  std::uint8_t* buffer = tx_memory_.data() + tx_next_ * kBufferBytes;
  tx_next_ = (tx_next_ + 1) % kTxBuffers;
  return {buffer, kBufferBytes};
}

}  // namespace sluice::bench

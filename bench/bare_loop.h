// The bare loops of the pipeline bench: the least code that could do the sum, in the appliance's
// number format and in that of a host that stands in for a programmable switch.
#pragma once

#include <benchmark/benchmark.h>

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "bench/replay_port.h"

namespace sluice::bench {

// A side that dropped frames or summed wrongly must not report a speed.
template <class Numbers>
void check_result(const std::uint8_t* payload, std::size_t chunk) {
  for (std::size_t i = 0; i < kChunkElems; ++i) {
    typename Numbers::Value value;
    std::memcpy(&value, payload + i * sizeof(value), sizeof(value));
    CHECK(value == Numbers::expected(chunk, i));
  }
}

// Sums in float32, as the appliance's.
struct Floats {
  using Value = float;
  static void store(float* acc, const std::uint8_t* payload) {
    agg::fold_store(acc, payload, kChunkElems, Dtype::kFloat32);
  }
  static void add(float* acc, const std::uint8_t* payload) {
    agg::fold_add(acc, payload, kChunkElems, Dtype::kFloat32);
  }
  static void write(std::uint8_t* out, const float* acc) { std::memcpy(out, acc, kChunkBytes); }
  static float expected(std::size_t chunk, std::size_t elem) {
    float sum = 0;
    for (std::size_t rank = 0; rank < kWorkers; ++rank) sum += gradient(rank, chunk, elem);
    return sum;
  }
};

// Sums as of a host in place of a programmable switch: fixed-point numbers in network order, one
// after the other. The bytes are the same, read as integers.
struct BigEndianIntegers {
  using Value = std::uint32_t;
  static std::uint32_t load(const std::uint8_t* from) {
    std::uint32_t value;
    std::memcpy(&value, from, sizeof value);
    return __builtin_bswap32(value);
  }
  static void store(std::uint32_t* acc, const std::uint8_t* payload) {
    for (std::size_t i = 0; i < kChunkElems; ++i) acc[i] = load(payload + 4 * i);
  }
  static void add(std::uint32_t* acc, const std::uint8_t* payload) {
    for (std::size_t i = 0; i < kChunkElems; ++i) acc[i] += load(payload + 4 * i);
  }
  static void write(std::uint8_t* out, const std::uint32_t* acc) {
    for (std::size_t i = 0; i < kChunkElems; ++i) {
      const std::uint32_t value = __builtin_bswap32(acc[i]);
      std::memcpy(out + 4 * i, &value, sizeof value);
    }
  }
  static std::uint32_t expected(std::size_t chunk, std::size_t elem) {
    std::uint32_t sum = 0;
    for (std::size_t rank = 0; rank < kWorkers; ++rank)
      sum += __builtin_bswap32(std::bit_cast<std::uint32_t>(gradient(rank, chunk, elem)));
    return __builtin_bswap32(sum);
  }
};

// The least code that does the same sum: no checks, no queues, the chunk's number read in place,
// results behind a header made beforehand. Bytes in and out are the same.
template <class Numbers>
class Bare {
 public:
  explicit Bare(std::uint16_t shard_count)
      : blocks_apart_(shard_count), counts_(kChunks), lines_(kChunks * kChunkElems / 16) {
    header_.resize(wire::udp_header_bytes(path_to_worker(0)) + sizeof(wire::CommonHeader) +
                   sizeof(wire::ResultHeader) + sizeof(std::uint64_t));
  }

  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    std::size_t sent = 0;
    while (const std::size_t count = port.rx_burst(frames)) {
      for (std::size_t i = 0; i < count; ++i) sent += receive(frames[i].data(), port);
    }
    return sent;
  }

  std::size_t receive(const std::uint8_t* frame, ReplayPort& port) {
    constexpr std::size_t kBodyAt =
        wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes + sizeof(wire::CommonHeader);
    const auto& body = *reinterpret_cast<const wire::Contribution*>(frame + kBodyAt);
    const std::uint8_t* payload = frame + kBodyAt + sizeof(wire::Contribution);
    const std::size_t chunk = body.chunk / kChunksPerBlock / blocks_apart_ * kChunksPerBlock +
                              body.chunk % kChunksPerBlock;
    auto* acc = lines_[chunk * (kChunkElems / 16)].lanes;
    if (counts_[chunk] == 0) {
      Numbers::store(acc, payload);
    } else {
      Numbers::add(acc, payload);
    }
    if (++counts_[chunk] != kWorkers) return 0;
    counts_[chunk] = 0;
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      std::uint8_t* out = port.tx_buffer().data();
      std::memcpy(out, header_.data(), header_.size());
      Numbers::write(out + header_.size(), acc);
      last_result_ = out;
    }
    benchmark::ClobberMemory();
    return kWorkers;
  }

  void check_last_result() const {
    check_result<Numbers>(last_result_ + header_.size(), kChunks - 1);
  }

 private:
  struct alignas(64) Line {
    typename Numbers::Value lanes[16];
  };

  const std::uint32_t blocks_apart_;
  std::vector<std::uint8_t> header_;
  std::vector<std::uint8_t> counts_;
  std::vector<Line> lines_;
  const std::uint8_t* last_result_ = nullptr;
};

// The port's own cost: the frames are only patched and looked at.
struct PortAlone {
  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    while (port.rx_burst(frames) != 0) benchmark::DoNotOptimize(frames);
    return kFramesPerStep;
  }
  void check_last_result() const {}
};

}  // namespace sluice::bench

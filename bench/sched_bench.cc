// The cost of a client's scheduling policy for a packet: one push and one next(), over a step of
// 160 tensors of 64 chunks, pushed least urgent first. A hundred packets are in flight until the
// policy waits; then all arrive. Counter ns_per_packet.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "client/sched/scheduler.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kTensors = 160;
constexpr std::uint32_t kTensorChunks = 64;
constexpr std::uint32_t kChunkBytes = 1344;

void steps(benchmark::State& state, Schedule policy) {
  auto shards = static_cast<std::uint16_t>(state.range(0));
  std::vector<ChunkIndex> first_chunks;
  for (std::uint32_t tensor = 0; tensor <= kTensors; ++tensor)
    first_chunks.push_back(tensor * kTensorChunks);
  Scheduler scheduler({.policy = policy, .unit_bytes = kTensorChunks * kChunkBytes},
                      {.shard_count = shards,
                       .chunk_count = first_chunks.back(),
                       .chunk_bytes = kChunkBytes,
                       .first_chunks = first_chunks});
  WindowState windows{.open_shards = (std::uint64_t{1} << shards) - 1};
  std::uint64_t packets = 0;
  for (auto _ : state) {
    scheduler.begin_step(windows.now);
    for (std::uint32_t tensor = kTensors; tensor-- > 0; windows.now += kMicrosecond)
      for (ChunkIndex chunk = first_chunks[tensor]; chunk < first_chunks[tensor + 1]; ++chunk)
        scheduler.push(chunk, static_cast<Priority>(tensor), windows.now);
    Choice choice;
    for (std::uint32_t left = first_chunks.back(); left != 0;) {
      windows.now += 100;
      if (!scheduler.next(windows, choice)) {
        windows.in_flight_packets = 0;
        continue;
      }
      benchmark::DoNotOptimize(choice);
      --left;
      ++windows.arrived_packets;
      windows.in_flight_packets = std::min(windows.in_flight_packets + 1, 100u);
    }
    windows.in_flight_packets = 0;
    packets += first_chunks.back();
  }
  state.counters["ns_per_packet"] =
      benchmark::Counter(static_cast<double>(packets) / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(steps, strict, Schedule::kStrict)->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(steps, credit, Schedule::kCredit)->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(steps, prophet, Schedule::kProphet)->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(steps, fifo, Schedule::kFifo)->Arg(1)->Arg(4);

}  // namespace
}  // namespace sluice::client

BENCHMARK_MAIN();

// The data half of an appliance with one job, and workers reduced to what they put on the wire. The
// test plays the control side.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/base/block.h"

namespace sluice::agg {

constexpr std::uint16_t kTestChunkBytes = 64;

struct Sent {  // a datagram that a shard sent, kept with its parsed view
  Transmit transmit;
  std::vector<std::uint8_t> bytes;
  wire::Packet packet;
};

struct HarnessOptions {
  std::uint16_t world_size = 2;
  std::uint32_t chunk_count = 3;
  std::uint16_t shard_count = 1;
  bool allow_nil = true;
  bool reproducible = false;
  PolicyOptions policy;
};

struct DataOptions {
  std::uint32_t weight = 1;
  Step base_step = 0;  // 0: the step itself
  Dtype dtype = Dtype::kFloat32;
  Priority priority = 0;
  bool nil = false;
  std::uint64_t nil_too = 0;  // other chunks of the block without data; `chunk` is the first
  bool report = false;
  std::uint32_t credit = 1000;
  std::uint8_t flags = 0;
  std::uint8_t result = 0;  // see wire::Contribution
};

constexpr wire::Operation kBarrier{.kind = CollectiveKind::kBarrier};
constexpr wire::Operation broadcast(std::uint16_t root, std::uint32_t size_bytes) {
  return {.size_bytes = size_bytes, .root = root, .kind = CollectiveKind::kBroadcast};
}

constexpr PolicyOptions fixed_k(std::uint16_t k, LateMode late = LateMode::kDrop,
                                std::uint32_t max_staleness = 0) {
  return {.kind = PolicyKind::kFixed, .late = late, .k = k, .max_staleness = max_staleness};
}

class Harness {
 public:
  explicit Harness(HarnessOptions options = {}) : shards(options.shard_count) {
    JobSpec spec{.id = JobId{5},
                 .name = "test",
                 .world_size = options.world_size,
                 .chunk_bytes = kTestChunkBytes,
                 .shard_count = options.shard_count,
                 .allow_nil = options.allow_nil,
                 .reproducible = options.reproducible,
                 .policy = options.policy};
    spec.chunk_counts = {options.chunk_count, kCollectiveChunks, 0};
    spec.max_elems = {kTestChunkBytes / 2, 0, 0};
    spec.windows = {kSyncWindow, kMaxWindow, 0};
    if (options.policy.tolerates_stragglers()) {
      spec.windows = {kAsyncWindow, kMaxWindow, 2};
      spec.chunk_counts[index_of(StreamId::kState)] = kCollectiveChunks;
    }
    job = std::make_unique<Job>(spec);
    for (std::uint16_t rank = 0; rank < options.world_size; ++rank) {
      job->members[rank].cookie = cookie(rank);
      job->members[rank].reachable = true;
    }
    command(ShardCommand::Kind::kAddJob);
    numbers.resize(options.world_size);
    job->start(now);
  }

  static Cookie cookie(std::uint16_t rank) { return 0xC0FFEE00u + rank; }
  wire::Sender sender(std::uint16_t rank) const {
    return {.job = 5, .rank = rank, .cookie = cookie(rank)};
  }

  Verdict handle(std::span<const std::uint8_t> bytes, std::uint16_t shard = 0) {
    wire::Packet packet;
    if (const Verdict why = wire::parse(bytes, packet); !ok(why)) return why;
    return shards.shard(shard).handle(packet, false, now);
  }

  template <class T>
  Verdict contribute(std::uint16_t rank, Step step, ChunkIndex chunk, std::vector<T> values,
                     DataOptions options = {}) {
    wire::Contribution body{.flow = {.number = ++numbers[rank],
                                     .timestamp_us = 7,
                                     .credit = options.credit,
                                     .priority = options.priority,
                                     .flags = options.flags},
                            .step = step,
                            .chunk = chunk,
                            .base_step = options.base_step == 0 ? step : options.base_step,
                            .weight = options.weight,
                            .elem_count = static_cast<std::uint16_t>(values.size()),
                            .dtype = options.dtype,
                            .result = options.result};
    if (options.nil) body.flow.flags |= wire::kFlagNil;
    if (options.report) body.flow.flags |= wire::kFlagReport;
    std::uint8_t out[512];
    const std::uint64_t list = chunk_bit(chunk) | options.nil_too;
    std::span<const std::uint8_t> data{reinterpret_cast<const std::uint8_t*>(values.data()),
                                       values.size() * sizeof(T)};
    if (options.nil) data = {reinterpret_cast<const std::uint8_t*>(&list), sizeof list};
    const std::size_t size = wire::encode(out, sender(rank), body, {}, data);
    return handle({out, size}, shard_of(chunk, job->spec.shard_count));
  }

  // A piece of an operation, with `payload_bytes` of `fill`.
  Verdict piece(std::uint16_t rank, Step step, ChunkIndex chunk, const wire::Operation& operation,
                std::size_t payload_bytes = 0, char fill = 0) {
    const wire::Piece body{.flow = {.number = ++numbers[rank], .credit = 1000},
                           .step = step,
                           .chunk = chunk,
                           .operation = operation,
                           .payload_bytes = static_cast<std::uint16_t>(payload_bytes)};
    std::uint8_t out[512];
    const std::vector<std::uint8_t> payload(payload_bytes, static_cast<std::uint8_t>(fill));
    return handle({out, wire::encode(out, sender(rank), body, {}, payload)});
  }

  Verdict probe(std::uint16_t rank, Step step, std::uint32_t block, std::uint64_t want) {
    const wire::Probe body{.flow = {.number = ++numbers[rank], .credit = 0},
                           .step = step,
                           .block = block,
                           .want = want};
    std::uint8_t out[256];
    const std::size_t size = wire::encode(out, sender(rank), body);
    return handle({out, size}, shard_of(block * kChunksPerBlock, job->spec.shard_count));
  }

  // `told`: the highest packet number of a shard that the rank can take.
  Verdict credit(std::uint16_t rank, std::uint32_t told) {
    const wire::Credit body{.flow = {.number = ++numbers[rank], .credit = told}};
    std::uint8_t out[64];
    return handle({out, wire::encode(out, sender(rank), body)});
  }

  Verdict finished(std::uint16_t rank, Step base) {
    const wire::Finished body{.flow = {.number = ++numbers[rank], .credit = 0}, .step = base};
    std::uint8_t out[256];
    return handle({out, wire::encode(out, sender(rank), body)});
  }

  // All ranks contribute {1} to every chunk of the steps up to `last`, whose k is n.
  void pass_full_steps(Step last = kFullSteps) {
    for (Step step = 1; step <= last; ++step)
      for (ChunkIndex chunk = 0; chunk < job->spec.chunk_counts[0]; ++chunk)
        for (std::uint16_t rank = 0; rank < job->spec.world_size; ++rank)
          contribute<float>(rank, step, chunk, {1});
    drain();
  }

  Shard& shard(std::uint16_t index) { return shards.shard(index); }
  // One command alone: no shard sweeps or sends before the next drain().
  void command(ShardCommand::Kind kind, std::uint16_t rank = 0) {
    for (std::uint16_t index = 0; index < shards.count(); ++index)
      shard(index).handle_command({.kind = kind, .job = job.get(), .rank = Rank{rank}}, now);
  }
  bool poll_event(ShardEvent& event) {
    return shards.take_event(event) || shard(0).poll_event(event);
  }
  void kill(std::uint16_t rank) {
    for (auto& left : job->members[rank].left_from) left = 0;
    job->members[rank].reachable = false;
    command(ShardCommand::Kind::kMemberGone, rank);
  }
  // Acts as the control side when another process takes the rank of a dead one.
  void bring_back(std::uint16_t rank) {
    Member& member = job->members[rank];
    member.joined_from[0] = member.joined_from[1] = kNoStep;  // until shard 0 has chosen the step
    for (auto& left : member.left_from) left = kNoStep;
    member.reachable = true;
    command(ShardCommand::Kind::kMemberJoined, rank);
  }
  Step open_step(StreamId stream = StreamId::kGradients) const {
    return job->windows[index_of(stream)].open_step;
  }

  // All datagrams that the shards want to send now.
  std::vector<Sent> drain() {
    std::vector<Sent> all;
    shards.drain(now, [&](const Transmit& transmit, std::span<const std::uint8_t> bytes) {
      all.push_back({.transmit = transmit, .bytes = {bytes.begin(), bytes.end()}, .packet = {}});
    });
    for (Sent& sent : all) {
      EXPECT_EQ(wire::parse(sent.bytes, sent.packet), Verdict::kAccepted);
    }
    return all;
  }

  std::vector<Sent> drain(wire::PacketType type) {
    std::vector<Sent> matching;
    for (Sent& sent : drain())
      if (sent.packet.type() == type) matching.push_back(std::move(sent));
    return matching;
  }

  std::unique_ptr<Job> job;
  Shards shards;
  std::vector<std::uint32_t> numbers;
  TimeNs now = kSecond;
};

inline std::vector<float> floats_of(const Sent& sent) {
  std::vector<float> values(sent.packet.payload().size() / sizeof(float));
  std::memcpy(values.data(), sent.packet.payload().data(), sent.packet.payload().size());
  return values;
}

}  // namespace sluice::agg

// A job of kind store with real shards, and the packets of its workers.
#pragma once

#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {

// Two ranks; a layer of two chunks and one of a single chunk, each in a shard of its own.
class StoreJob : public ControlTest {
 protected:
  static constexpr std::uint32_t kBlockChunks[] = {2, 1};

  Worker worker(std::uint16_t rank, Step bound) {
    Worker one{.rank = rank, .name = "store"};
    one.join.layouts[0] = {.hash = 5, .chunk_count = 2 * kChunksPerBlock, .max_elems = 4};
    one.join.kind = JobKind::kStore;
    one.join.store.bound = bound;
    return one;
  }
  // Both ranks have joined, and all parameters are 10.
  void start(Step bound) {
    shards.emplace(kTestShards);
    for (std::uint16_t rank : {0, 1}) {
      workers.push_back(worker(rank, bound));
      ASSERT_TRUE(join(workers.back()).is(wire::PacketType::kAccept));
    }
    for (const std::uint32_t block : {0u, 1u}) push_block(workers[0], 0, block, 10);
  }

  template <class Body>
  Verdict data(const Worker& from, std::uint32_t block, Body body,
               const std::vector<float>& values = {}) {
    body.flow.number = ++packet_number;
    body.flow.credit = credit;
    std::array<std::uint8_t, 256> out;
    const std::size_t bytes = wire::encode(
        out, {from.job, from.rank, from.cookie}, body, {},
        {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)});
    wire::Packet packet;
    EXPECT_EQ(wire::parse({out.data(), bytes}, packet), Verdict::kAccepted);
    const auto shard = static_cast<std::uint16_t>(block % kTestShards);
    const Verdict verdict = shards->shard(shard).handle(packet, false, now);
    drain();
    return verdict;
  }
  Verdict push(const Worker& from, Step iteration, ChunkIndex chunk, float value) {
    const std::uint32_t block = chunk / kChunksPerBlock;
    const wire::Push body{.iteration = iteration,
                          .chunk = chunk,
                          .elem_count = 4,
                          .block_chunks = static_cast<std::uint8_t>(kBlockChunks[block])};
    return data(from, block, body, std::vector<float>(4, value));
  }
  Verdict push_block(const Worker& from, Step iteration, std::uint32_t block, float value) {
    Verdict last{};
    for (std::uint32_t index = 0; index < kBlockChunks[block]; ++index)
      last = push(from, iteration, block * kChunksPerBlock + index, value);
    return last;
  }
  Verdict pull(const Worker& from, std::uint32_t block, Step need, Step own) {
    return data(from, block,
                wire::Pull{.flow = {.priority = 3},
                           .block = block,
                           .chunks = (std::uint64_t{1} << kBlockChunks[block]) - 1,
                           .need = need,
                           .own = own});
  }
  // The shard's answer to a probe for a push or pull.
  wire::Answer probe(const Worker& from, std::uint32_t block, StreamId stream, Step step,
                     std::uint64_t want = 0) {
    arrived.clear();
    data(from, block, wire::Probe{.step = step, .block = block, .want = want, .stream = stream});
    for (const Sent& sent : arrived)
      if (sent.packet.type() == wire::PacketType::kAnswer) return sent.packet.body<wire::Answer>();
    ADD_FAILURE() << "no answer";
    return {};
  }
  void drain() {
    shards->drain(now, [&](const Transmit& to, std::span<const std::uint8_t> bytes) {
      EXPECT_EQ(wire::finish_checksum(to.sum), wire::finish_checksum(wire::sum_bytes(bytes)));
      arrived.push_back({.to = to, .bytes = {bytes.begin(), bytes.end()}, .packet = {}});
      EXPECT_EQ(wire::parse(arrived.back().bytes, arrived.back().packet), Verdict::kAccepted);
    });
  }
  // The values that have come since the last call: (rank, chunk, value).
  std::vector<std::array<float, 3>> values() {
    std::vector<std::array<float, 3>> all;
    for (const Sent& sent : std::exchange(arrived, {})) {
      if (sent.packet.type() != wire::PacketType::kValues) continue;
      float value = 0;
      std::memcpy(&value, sent.packet.payload().data(), sizeof value);
      const auto chunk = static_cast<float>(sent.packet.body<wire::Values>().chunk);
      all.push_back({static_cast<float>(sent.to.rank.value), chunk, value});
    }
    return all;
  }
  // A few ticks: time for all messages between the shards and the control side.
  void exchange() {
    for (int round = 0; round < 4; ++round) pass(50 * kMillisecond, speakers());
  }
  std::vector<const Worker*> speakers() {
    std::vector<const Worker*> all;
    for (const Worker& one : workers)
      if (one.cookie != 0) all.push_back(&one);
    return all;
  }

  std::vector<Worker> workers;
  std::vector<Sent> arrived;
  std::uint32_t packet_number = 0;
  std::uint32_t credit = 1000;
};

}  // namespace sluice::agg

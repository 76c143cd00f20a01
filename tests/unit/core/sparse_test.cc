// Sparse contributions and sparse results, chunk by chunk.
#include "aggregator/core/sparse.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "aggregator/base/block.h"
#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using testing::ElementsAre;
using wire::PacketType;

constexpr std::size_t kElems = 16;  // of a full chunk
using Chunk = std::array<float, kElems>;

// Zeros but for one element.
Chunk with(std::size_t place, float value) {
  Chunk chunk{};
  chunk[place] = value;
  return chunk;
}

// One packet of these chunks of one block.
Verdict contribute_sparse(Harness& harness, std::uint16_t rank, Step step,
                          const std::map<ChunkIndex, Chunk>& chunks, DataOptions options = {}) {
  const ChunkIndex first = chunks.begin()->first;
  wire::Contribution body{.flow = {.number = ++harness.numbers[rank],
                                   .credit = options.credit,
                                   .priority = options.priority,
                                   .flags = wire::kFlagSparse},
                          .step = step,
                          .chunk = first,
                          .base_step = step,
                          .weight = options.weight,
                          .elem_count = kElems};
  std::vector<std::uint64_t> list(2);
  std::vector<std::uint8_t> entries(2000);
  std::size_t bytes = 0;
  for (const auto& [chunk, values] : chunks) {
    const std::uint64_t bit = chunk_bit(chunk);
    const std::size_t added = compress(reinterpret_cast<const std::uint8_t*>(values.data()), kElems,
                                       Dtype::kFloat32, std::span(entries).subspan(bytes));
    list[0] |= bit;
    if (added != 0) list[1] |= bit;
    bytes += added;
  }
  entries.resize(bytes);
  std::uint8_t out[4000];
  const std::size_t size = wire::encode(out, harness.sender(rank), body, list, entries);
  return harness.handle({out, size}, shard_of(first, harness.job->spec.shard_count));
}

// The values of each chunk that a result speaks of.
std::map<ChunkIndex, std::vector<float>> values_of(const Sent& sent) {
  const auto& body = sent.packet.body<wire::ResultHeader>();
  std::map<ChunkIndex, std::vector<float>> all;
  std::span<const std::uint8_t> rest = sent.packet.payload();
  const ChunkIndex block = body.chunk - body.chunk % kChunksPerBlock;
  for (std::uint64_t left = sent.packet.chunks(); left != 0; left &= left - 1) {
    std::vector<float>& values = all[block + static_cast<ChunkIndex>(std::countr_zero(left))];
    if ((body.feedback.flags & wire::kFlagSparse) == 0) {
      values = floats_of(sent);
      continue;
    }
    wire::SparseEntry entry;
    if (sent.packet.filled() & left & -left)
      entry = wire::take_entry(rest, kElems, Dtype::kFloat32);
    values.resize(kElems);
    expand(entry, kElems, Dtype::kFloat32, reinterpret_cast<std::uint8_t*>(values.data()));
  }
  return all;
}

std::vector<float> list(const Chunk& chunk) { return {chunk.begin(), chunk.end()}; }

TEST(SparseShard, SumsSparseChunksAndSendsThemTogether) {
  Harness harness({.world_size = 2, .chunk_count = 5});
  EXPECT_EQ(
      contribute_sparse(harness, 0, 1, {{0, with(3, 1)}, {2, with(15, 2)}, {4, {}}}, {.weight = 2}),
      Verdict::kFolded);
  EXPECT_TRUE(harness.drain().empty());
  EXPECT_EQ(
      contribute_sparse(harness, 1, 1, {{0, with(3, 4)}, {2, with(0, 8)}, {4, {}}}, {.weight = 3}),
      Verdict::kCompleted);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u);  // one each
  for (const Sent& one : sent) {
    const auto& body = one.packet.body<wire::ResultHeader>();
    EXPECT_EQ(+body.feedback.flags, wire::kFlagSparse);
    EXPECT_EQ(one.packet.chunks(), 0b10101u);
    EXPECT_EQ(one.packet.filled(), 0b00101u);  // the empty one has a bit, and counts
    EXPECT_EQ(std::uint64_t{body.weight}, 5u);
    EXPECT_EQ(one.packet.mask_word(0), 0b11u);
    Chunk second = with(0, 8);
    second[15] = 2;
    const auto values = values_of(one);
    EXPECT_EQ(values.at(0), list(with(3, 5)));
    EXPECT_EQ(values.at(2), list(second));
    EXPECT_EQ(values.at(4), list({}));
    const wire::Bytes bytes = one.bytes;
    EXPECT_EQ(wire::finish_checksum(one.transmit.sum),
              wire::finish_checksum(wire::sum_bytes(bytes)));
  }
}

// Whatever comes first, the sum is the same; the result is encoded by its own density.
TEST(SparseShard, DenseAndSparseContributionsSumAlike) {
  Chunk full;
  for (std::size_t i = 0; i < kElems; ++i) full[i] = static_cast<float>(i + 1);
  for (const bool sparse_first : {false, true}) {
    Harness harness({.world_size = 2, .chunk_count = 1});
    if (sparse_first) contribute_sparse(harness, 0, 1, {{0, with(3, 100)}});
    harness.contribute<float>(1, 1, 0, list(full));
    if (!sparse_first) contribute_sparse(harness, 0, 1, {{0, with(3, 100)}});
    for (const Sent& sent : harness.drain(PacketType::kResult)) {
      EXPECT_EQ(sent.packet.feedback().flags, 0);  // as long as a dense one
      Chunk expected = full;
      expected[3] += 100;
      EXPECT_THAT(floats_of(sent), testing::ElementsAreArray(expected));
    }
  }
}

TEST(SparseShard, EachChunkHasItsOwnVerdict) {
  Harness harness({.world_size = 2, .chunk_count = 3});
  EXPECT_EQ(contribute_sparse(harness, 0, 1, {{0, with(0, 1)}}), Verdict::kFolded);
  // The first again, the second new: added once each.
  EXPECT_EQ(contribute_sparse(harness, 0, 1, {{0, with(0, 1)}, {1, with(1, 1)}}), Verdict::kFolded);
  EXPECT_EQ(contribute_sparse(harness, 0, 1, {{0, with(0, 1)}, {1, with(1, 1)}}),
            Verdict::kDuplicate);
  EXPECT_EQ(contribute_sparse(harness, 1, 1, {{0, with(0, 1)}, {1, with(1, 1)}, {2, {}}}),
            Verdict::kCompleted);
  for (const Sent& sent : harness.drain(PacketType::kResult)) {
    EXPECT_EQ(sent.packet.chunks(), 0b11u);
    EXPECT_EQ(values_of(sent).at(0)[0], 2);
    EXPECT_EQ(values_of(sent).at(1)[1], 2);
  }
  EXPECT_EQ(contribute_sparse(harness, 1, 1, {{3, with(0, 1)}}), Verdict::kBadChunk);
}

TEST(SparseShard, ResultsThatDifferLeaveApart) {
  Harness harness({.world_size = 2, .chunk_count = 2});
  contribute_sparse(harness, 0, 1, {{0, with(0, 1)}, {1, with(1, 1)}}, {.weight = 2});
  contribute_sparse(harness, 1, 1, {{0, with(0, 1)}}, {.weight = 2});
  contribute_sparse(harness, 1, 1, {{1, with(1, 1)}}, {.weight = 3});  // another total
  EXPECT_EQ(harness.drain(PacketType::kResult).size(), 4u);
}

// 64 bytes carry the list and a few values; the rest of a burst goes into more packets.
TEST(SparseShard, APacketHasNoMoreThanItsPayload) {
  Harness harness({.world_size = 1, .chunk_count = 64});
  std::map<ChunkIndex, Chunk> half;
  for (ChunkIndex chunk = 0; chunk < 64; ++chunk) half[chunk] = with(chunk % kElems, 1);
  EXPECT_EQ(contribute_sparse(harness, 0, 1, half), Verdict::kCompleted);
  std::uint64_t seen = 0;
  std::size_t packets = 0;
  for (const Sent& sent : harness.drain(PacketType::kResult)) {
    EXPECT_LE(wire::kSparseHeadBytes + sent.packet.payload().size(), kTestChunkBytes);
    EXPECT_EQ(seen & sent.packet.chunks(), 0u);
    seen |= sent.packet.chunks();
    for (const auto& [chunk, values] : values_of(sent)) EXPECT_EQ(values, list(half.at(chunk)));
    ++packets;
  }
  EXPECT_EQ(seen, ~std::uint64_t{0});
  EXPECT_EQ(packets, 11u);  // six entries of eight bytes each
}

TEST(SparseShard, WhatIsPulledComesTogetherAndIsTheSame) {
  Harness harness({.world_size = 1, .chunk_count = 4});
  contribute_sparse(harness, 0, 1, {{0, with(0, 1)}, {1, {}}, {2, with(2, 3)}, {3, with(3, 4)}});
  harness.drain();
  harness.probe(0, 1, 0, 0b1011);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.chunks(), 0b1011u);
  EXPECT_EQ(values_of(sent[0]).at(3), list(with(3, 4)));
  EXPECT_EQ(+sent[0].packet.feedback().flags, wire::kFlagSparse | wire::kFlagPulled);
}

TEST(SparseShard, WhatIsNotFiniteIsSaidOfItsChunkAlone) {
  Harness harness({.world_size = 1, .chunk_count = 2});
  const float infinity = std::numeric_limits<float>::infinity();
  contribute_sparse(harness, 0, 1, {{0, with(0, infinity)}, {1, with(1, 1)}});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(+sent[0].packet.feedback().flags, wire::kFlagSparse | wire::kFlagNonFinite);
  EXPECT_EQ(values_of(sent[0]).at(0)[0], infinity);
  EXPECT_EQ(+sent[1].packet.feedback().flags, wire::kFlagSparse);
}

TEST(SparseShard, TheMostUrgentOfItsChunksSaysHowUrgentAPacketIs) {
  Harness harness({.world_size = 1, .chunk_count = 2, .policy = {}});
  contribute_sparse(harness, 0, 1, {{0, with(0, 1)}}, {.priority = 9});
  contribute_sparse(harness, 0, 1, {{1, with(0, 1)}}, {.priority = 4});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].transmit.priority, 4);
  EXPECT_EQ(sent[0].packet.feedback().priority, 4);
}

// In the order of ranks, for every order of arrival and every form.
TEST(SparseShard, ReproducibleSumsAreThoseOfTheDenseForm) {
  const float thirds[] = {1.0f / 3, 1e7f / 3, -1e-3f / 7};
  std::vector<std::vector<float>> results;
  for (unsigned forms = 0; forms < 8; ++forms)
    for (const auto& order : {std::array{0, 1, 2}, std::array{2, 1, 0}, std::array{1, 2, 0}}) {
      Harness harness({.world_size = 3, .chunk_count = 1, .reproducible = true});
      for (const int rank : order) {
        Chunk chunk = with(5, thirds[rank]);
        chunk[6] = rank == 1 ? -0.0f : 0.0f;
        if (forms >> rank & 1)
          contribute_sparse(harness, static_cast<std::uint16_t>(rank), 1, {{0, chunk}});
        else
          harness.contribute<float>(static_cast<std::uint16_t>(rank), 1, 0, list(chunk));
      }
      const auto sent = harness.drain(PacketType::kResult);
      ASSERT_EQ(sent.size(), 3u);
      results.push_back(values_of(sent[0]).at(0));
    }
  const float expected = (thirds[0] + thirds[1]) + thirds[2];
  for (const auto& values : results) {
    EXPECT_EQ(values[5], expected);
    EXPECT_FALSE(std::signbit(values[6]));
    EXPECT_EQ(values, results[0]);
  }
}

TEST(SparseShard, MoreElementsThanTheLayoutHasAreRefused) {
  Harness harness({.world_size = 1, .chunk_count = 2});
  wire::Contribution body{.flow = {.number = 1, .flags = wire::kFlagSparse},
                          .step = 1,
                          .base_step = 1,
                          .elem_count = kElems + 1};  // more than a packet has as a dense result
  std::uint8_t out[200];
  std::size_t size = wire::encode(out, harness.sender(0), body, std::vector<std::uint64_t>{1, 0});
  EXPECT_EQ(harness.handle({out, size}), Verdict::kShapeMismatch);
  body.elem_count = 1000;
  size = wire::encode(out, harness.sender(0), body, std::vector<std::uint64_t>{1, 0});
  EXPECT_EQ(harness.handle({out, size}), Verdict::kShapeMismatch);
}

// A slot of a group is reopened for a later step while the group still goes to other members.
TEST(SparseShard, AReopenedSlotLeavesTheGroup) {
  Harness harness(
      {.world_size = 2, .chunk_count = 2, .policy = {.kind = PolicyKind::kFixed, .k = 1}});
  harness.pass_full_steps();
  contribute_sparse(harness, 0, 3, {{0, with(0, 3)}, {1, with(1, 3)}});
  // Rank 0 gets its copy; then the window moves round, and chunk 1 is opened again.
  std::vector<std::uint8_t> room(2000);
  Transmit one{.buffer = room};
  ASSERT_EQ(harness.shard(0).poll_transmit({&one, 1}, harness.now), 1u);
  for (Step step = 4; step < 3 + kAsyncWindow; ++step)
    for (const std::uint16_t rank : {0, 1})
      contribute_sparse(harness, rank, step, {{0, {}}, {1, {}}});
  ASSERT_EQ(harness.open_step(), 3 + kAsyncWindow);
  contribute_sparse(harness, 0, 3 + kAsyncWindow, {{1, with(1, 9)}});
  for (const Sent& sent : harness.drain(PacketType::kResult)) {
    const auto& body = sent.packet.body<wire::ResultHeader>();
    if (body.step != 3) continue;
    EXPECT_EQ(sent.packet.chunks(), 0b01u);
    EXPECT_EQ(values_of(sent).at(0), list(with(0, 3)));
  }
}

}  // namespace
}  // namespace sluice::agg

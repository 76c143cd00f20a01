// Operations: what is possible, how they are cut, and the packets of groups.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/wire/packet_samples.h"

namespace sluice::wire {
namespace {

constexpr std::size_t kChunkBytes = 1024;

constexpr Description sums(OperationKind kind, std::uint64_t bytes, std::uint16_t root = kNoRank) {
  return {.bytes = bytes,
          .root = root,
          .kind = kind,
          .dtype = Dtype::kFloat32,
          .wire = Dtype::kFloat32};
}
constexpr Description copies(OperationKind kind, std::uint64_t bytes,
                             std::uint16_t root = kNoRank) {
  return {.bytes = bytes, .root = root, .kind = kind};
}

TEST(Operation, NothingTakesOneChunk) {
  EXPECT_EQ(Cut(copies(OperationKind::kBarrier, 0), 4, kChunkBytes).chunk_count(), 1u);
  const Cut none(sums(OperationKind::kAllReduce, 0), 4, kChunkBytes);
  EXPECT_EQ(none.chunk_count(), 1u);
  EXPECT_EQ(none.bytes_of(0), 0);
}

TEST(Operation, NoChunkCrossesAPartAndNeighboursHaveDifferentOwners) {
  const Cut cut(copies(OperationKind::kAllGather, 2 * kChunkBytes + 5), 3, kChunkBytes);
  ASSERT_EQ(cut.chunk_count(), 9u);
  std::vector<std::uint64_t> got(3);
  for (std::uint64_t index = 0; index < cut.chunk_count(); ++index) {
    EXPECT_EQ(cut.part_of(index), index % 3);
    EXPECT_EQ(cut.offset_of(index), got[cut.part_of(index)]);
    got[cut.part_of(index)] += cut.bytes_of(index);
  }
  EXPECT_EQ(got, std::vector<std::uint64_t>(3, 2 * kChunkBytes + 5));
}

TEST(Operation, ANarrowerFormatTakesFewerChunks) {
  Description what = sums(OperationKind::kAllReduce, 8 * kChunkBytes);
  EXPECT_EQ(Cut(what, 2, kChunkBytes).chunk_count(), 8u);
  what.wire = Dtype::kBfloat16;
  EXPECT_EQ(Cut(what, 2, kChunkBytes).chunk_count(), 4u);
}

TEST(Operation, KindAndBytesChooseTheSequence) {
  using enum OperationKind;
  const std::uint64_t big = kSmallBytes + 4;
  EXPECT_EQ(sequence_of(sums(kReduceScatter, big), 2), Sequence::kUp);
  EXPECT_EQ(sequence_of(sums(kReduce, big, 0), 2), Sequence::kUp);
  EXPECT_EQ(sequence_of(copies(kAllGather, big), 2), Sequence::kDown);
  EXPECT_EQ(sequence_of(copies(kBroadcast, big, 0), 2), Sequence::kDown);
  EXPECT_EQ(sequence_of(sums(kAllReduce, big), 2), Sequence::kBoth);
  EXPECT_EQ(sequence_of(sums(kAllReduce, kSmallBytes), 2), Sequence::kSmall);
  EXPECT_EQ(sequence_of(copies(kBarrier, 0), 2), Sequence::kSmall);
  // Of parts all count.
  EXPECT_EQ(sequence_of(copies(kAllGather, kSmallBytes / 2), 2), Sequence::kSmall);
  EXPECT_EQ(sequence_of(copies(kAllGather, kSmallBytes / 2), 3), Sequence::kDown);
}

TEST(Operation, SomeAreNotPossible) {
  using enum OperationKind;
  EXPECT_TRUE(is_possible(sums(kAllReduce, 4)));
  EXPECT_TRUE(is_possible(copies(kBroadcast, 3, 1)));
  EXPECT_TRUE(is_possible(copies(kBarrier, 0)));
  EXPECT_FALSE(is_possible(sums(kAllReduce, 5))) << "half an element";
  EXPECT_FALSE(is_possible(copies(kAllReduce, 4))) << "a sum of bytes";
  EXPECT_FALSE(is_possible(sums(kBroadcast, 4, 1))) << "bytes have no type";
  EXPECT_FALSE(is_possible(copies(kBroadcast, 4))) << "no root";
  EXPECT_FALSE(is_possible(sums(kAllReduce, 4, 1))) << "a root";
  EXPECT_FALSE(is_possible(copies(kBarrier, 4))) << "a barrier of data";
  EXPECT_FALSE(is_possible(sums(kAllReduce, kMaxOperationBytes + 4)));
  Description what = sums(kAllReduce, 4);
  what.wire = Dtype::kFloat16;
  EXPECT_TRUE(is_possible(what));
  what.dtype = Dtype::kBfloat16;
  EXPECT_FALSE(is_possible(what)) << "narrow already";
}

TEST(Operation, WhoGetsAResult) {
  using enum OperationKind;
  for (const bool owner : {false, true}) {
    EXPECT_TRUE(wants_result(kAllReduce, owner) && wants_result(kBarrier, owner));
    EXPECT_EQ(wants_result(kReduce, owner), owner);
    EXPECT_EQ(wants_result(kReduceScatter, owner), owner);
    EXPECT_EQ(wants_result(kBroadcast, owner), !owner);
    EXPECT_EQ(wants_result(kAllGather, owner), !owner);
  }
}

TEST(Operation, EachFieldChangesTheHash) {
  const Description what = sums(OperationKind::kAllReduce, 4096);
  std::set<std::uint32_t> hashes{hash_of(what, 1, 1), hash_of(what, 2, 1), hash_of(what, 1, 2)};
  const auto with = [&](auto&& change) {
    Description other = what;
    change(other);
    hashes.insert(hash_of(other, 1, 1));
  };
  with([](Description& d) { d.bytes = 4100; });
  with([](Description& d) { d.number = 1; });
  with([](Description& d) { d.first = 1; });
  with([](Description& d) { d.root = 0; });
  with([](Description& d) { d.kind = OperationKind::kReduceScatter; });
  with([](Description& d) { d.dtype = Dtype::kFloat16; });
  with([](Description& d) { d.wire = Dtype::kFloat16; });
  with([](Description& d) { d.reduction = Reduction::kMean; });
  EXPECT_EQ(hashes.size(), 11u);
}

TEST(Operation, NumbersAreTheNearestThatTravelAlike) {
  EXPECT_EQ(unwrap(5, 0), 5u);
  EXPECT_EQ(unwrap(5, (std::uint64_t{1} << 32) - 10), (std::uint64_t{1} << 32) + 5);
  EXPECT_EQ(unwrap(UINT32_MAX, (std::uint64_t{3} << 32) + 7), (std::uint64_t{3} << 32) - 1);
}

// ---- packets ----

constexpr GroupHeader kHeader{
    .generation = 3, .floor = 100, .group_floor = 90, .group = 7, .sequence = Sequence::kDown};
constexpr GroupState kState{
    .generation = 3, .floor = 90, .slots = 256, .group = 7, .sequence = Sequence::kDown};

Part part() {
  return {.group = kHeader,
          .chunk = 101,
          .hash = 9,
          .owner = 4,
          .payload_bytes = 8,
          .kind = OperationKind::kBroadcast};
}
Outcome outcome() {
  return {.group = kState,
          .number = 118,
          .expected = sums(OperationKind::kAllReduce, 4096),
          .actual = copies(OperationKind::kBroadcast, 4096, 0),
          .rank = 3,
          .other = 0,
          .code = OutcomeCode::kDiffers,
          .behind_count = 1};
}
const Buffer kBehind{3, 0, 5, 0, 0, 0};

TEST(RoundTrip, PacketsOfGroups) {
  Packet packet;
  Buffer bytes = make(part(), {}, kEightBytes);
  ASSERT_EQ(parse(bytes, packet), Verdict::kAccepted);
  EXPECT_EQ(std::uint32_t{packet.body<Part>().chunk}, 101u);
  EXPECT_EQ(std::uint32_t{packet.body<Part>().group.group_floor}, 90u);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
  bytes = make(PartResult{.group = kState, .chunk = 101, .payload_bytes = 8}, {}, kEightBytes);
  ASSERT_EQ(parse(bytes, packet), Verdict::kAccepted);
  EXPECT_EQ(std::uint32_t{packet.body<PartResult>().group.slots}, 256u);
  EXPECT_EQ(packet.payload().size(), 8u);
  bytes = make(outcome(), {}, kBehind);
  ASSERT_EQ(parse(bytes, packet), Verdict::kAccepted);
  EXPECT_EQ(packet.body<Outcome>().actual, copies(OperationKind::kBroadcast, 4096, 0));
  EXPECT_EQ(std::uint16_t{packet.behind(0).rank}, 3);
  EXPECT_EQ(std::uint32_t{packet.behind(0).operations}, 5u);
  bytes = make(Call{.group = kHeader, .what = sums(OperationKind::kAllReduce, 8)});
  EXPECT_EQ(parse(bytes, packet), Verdict::kAccepted);
  bytes = make(Floors{.group = kHeader, .stopped = 1});
  EXPECT_EQ(parse(bytes, packet), Verdict::kAccepted);
  bytes = make(Floor{.group = kState, .stopped = 1});
  EXPECT_EQ(parse(bytes, packet), Verdict::kAccepted);
  bytes = make(PartProbe{.group = kHeader, .first = 64, .want = 1});
  EXPECT_EQ(parse(bytes, packet), Verdict::kAccepted);
  bytes = make(PartAnswer{.group = kState, .first = 64, .counted = 3});
  EXPECT_EQ(parse(bytes, packet), Verdict::kAccepted);
}

template <class Body>
Verdict spoilt(Body body, std::function<void(Body&)> change, const Buffer& payload = {}) {
  Packet packet;
  EXPECT_EQ(parse(make(body, {}, payload), packet), Verdict::kAccepted);
  change(body);
  return parse(make(body, {}, payload), packet);
}

TEST(Parse, PacketsOfGroupsThatNoMemberSends) {
  const Call call{.group = kHeader, .what = sums(OperationKind::kAllReduce, 8)};
  EXPECT_EQ(spoilt<Call>(call, [](Call& b) { b.what.bytes = 7; }), Verdict::kBadField);
  EXPECT_EQ(spoilt<Call>(call, [](Call& b) { b.request = CallRequest{3}; }), Verdict::kBadField);
  EXPECT_EQ(spoilt<Call>(call, [](Call& b) { b.group.sequence = Sequence{4}; }),
            Verdict::kBadField);
  EXPECT_EQ(spoilt<Call>(call, [](Call& b) { b.group.reserved = 1; }), Verdict::kBadField);
  EXPECT_EQ(spoilt<Call>(call, [](Call& b) { b.flow.flags = kFlagNil; }), Verdict::kBadField);
  const auto change = [](auto&& what) { return std::function<void(Part&)>(what); };
  EXPECT_EQ(spoilt(part(), change([](Part& b) { b.kind = OperationKind{6}; }), kEightBytes),
            Verdict::kBadField);
  EXPECT_EQ(spoilt(part(), change([](Part& b) { b.owner = kNoRank; }), kEightBytes),
            Verdict::kBadField);
  EXPECT_EQ(spoilt(part(), change([](Part& b) { b.wire = Dtype::kFloat32; }), kEightBytes),
            Verdict::kBadField);
  EXPECT_EQ(spoilt(part(), change([](Part& b) { b.payload_bytes = 7; }), kEightBytes),
            Verdict::kBadLength);
  EXPECT_EQ(spoilt(part(), change([](Part& b) { b.payload_bytes = 9; }), kEightBytes),
            Verdict::kTruncated);
  Part sum = part();
  sum.kind = OperationKind::kAllReduce;
  sum.owner = kNoRank;
  sum.wire = Dtype::kFloat32;
  EXPECT_EQ(spoilt(sum, change([](Part& b) { b.wire = Dtype::kBytes; }), kEightBytes),
            Verdict::kBadField);
  EXPECT_EQ(spoilt(sum, change([](Part& b) { b.wire = Dtype{5}; }), kEightBytes),
            Verdict::kBadField);
  EXPECT_EQ(spoilt<Floors>({.group = kHeader}, [](Floors& b) { b.stopped = 2; }),
            Verdict::kBadField);
  EXPECT_EQ(spoilt<Floor>({.group = kState}, [](Floor& b) { b.stopped = 2; }), Verdict::kBadField);
  EXPECT_EQ(
      spoilt<PartAnswer>({.group = kState}, [](PartAnswer& b) { b.group.sequence = Sequence{4}; }),
      Verdict::kBadField);
  const auto with = [](auto&& what) { return std::function<void(Outcome&)>(what); };
  EXPECT_EQ(spoilt(outcome(), with([](Outcome& b) { b.actual.bytes = 3, b.actual.root = kNoRank; }),
                   kBehind),
            Verdict::kBadField);
  EXPECT_EQ(spoilt(outcome(), with([](Outcome& b) { b.code = OutcomeCode{6}; }), kBehind),
            Verdict::kBadField);
  EXPECT_EQ(spoilt(outcome(), with([](Outcome& b) { b.behind_count = kMaxBehind + 1; }), kBehind),
            Verdict::kBadLength);
  EXPECT_EQ(spoilt(outcome(), with([](Outcome& b) { b.behind_count = 0; }), kBehind),
            Verdict::kBadLength);
}

}  // namespace
}  // namespace sluice::wire

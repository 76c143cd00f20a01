// Parsing returns the values that were encoded.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "aggregator/wire/sparse.h"
#include "tests/unit/wire/packet_samples.h"

namespace sluice::wire {
namespace {

template <class Body>
Body round_trip(const Buffer& bytes, Packet& packet) {
  EXPECT_EQ(parse(bytes, packet), Verdict::kAccepted);
  EXPECT_EQ(packet.type(), Body::kType);
  EXPECT_EQ(packet.common().job, kSender.job);
  EXPECT_EQ(packet.common().rank, kSender.rank);
  EXPECT_EQ(packet.common().cookie, kSender.cookie);
  EXPECT_EQ(packet.bytes().size(), bytes.size());
  return packet.body<Body>();
}

TEST(RoundTrip, Contribution) {
  const Buffer bytes = make(contribution(), {}, kEightBytes);
  Packet packet;
  const auto body = round_trip<Contribution>(bytes, packet);
  EXPECT_EQ(std::uint32_t{body.flow.number}, 9u);
  EXPECT_EQ(std::uint32_t{body.chunk}, 5u);
  EXPECT_EQ(std::uint64_t{body.weight}, 3u);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
  EXPECT_EQ(packet.mask_word_count(), 0u);
}

TEST(RoundTrip, SparseContribution) {
  const Buffer bytes =
      make(sparse_contribution(), {kSparseChunks, kSparseFilled}, sparse_entries());
  Packet packet;
  const auto body = round_trip<Contribution>(bytes, packet);
  EXPECT_EQ(packet.chunks(), kSparseChunks);
  EXPECT_EQ(packet.filled(), kSparseFilled);
  std::span<const std::uint8_t> rest = packet.payload();
  std::vector<std::size_t> places;
  const auto note = [&](std::size_t place) { places.push_back(place); };
  const SparseEntry one = take_entry(rest, body.elem_count, body.dtype);
  for_each_place(one, body.elem_count, note);
  EXPECT_EQ(places, std::vector<std::size_t>{3});
  EXPECT_FALSE(one.is_bitmap);
  EXPECT_EQ(Buffer(one.values, one.values + 4), (Buffer{0, 0, 128, 63}));
  places.clear();
  const SparseEntry nine = take_entry(rest, body.elem_count, body.dtype);
  for_each_place(nine, body.elem_count, note);
  EXPECT_EQ(places, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(nine.is_bitmap);
  EXPECT_EQ(nine.values[0], 1);
  EXPECT_TRUE(rest.empty());
}

TEST(RoundTrip, ASparseResultOfEmptyChunksIsItsListAlone) {
  ResultHeader body = result();
  body.feedback.flags = kFlagSparse | kFlagMean;
  const Buffer bytes = make(body, {~std::uint64_t{0}, 1, 0b110000, 0});
  Packet packet;
  round_trip<ResultHeader>(bytes, packet);
  EXPECT_EQ(packet.chunks(), 0b110000u);
  EXPECT_EQ(packet.filled(), 0u);
  EXPECT_TRUE(packet.payload().empty());
}

TEST(Parse, SparseIndicesMustIncrease) {
  Contribution body = sparse_contribution();
  body.elem_count = 64;
  Buffer entries{2, 0, 3, 0, 4, 0, 0, 0, 128, 63, 0, 0, 0, 64};
  Packet packet;
  EXPECT_EQ(parse(make(body, {1 << 5, 1 << 5}, entries), packet), Verdict::kAccepted);
  for (const std::uint8_t second : {3, 2, 0}) {
    entries[4] = second;
    EXPECT_EQ(parse(make(body, {1 << 5, 1 << 5}, entries), packet), Verdict::kBadIndex);
  }
}

TEST(RoundTrip, ResultWithMaskAndPayload) {
  const Buffer bytes = make(result(), {~std::uint64_t{0}, 1}, kEightBytes);
  Packet packet;
  const auto body = round_trip<ResultHeader>(bytes, packet);
  EXPECT_EQ(std::uint64_t{body.weight}, std::uint64_t{1} << 40);
  EXPECT_EQ(std::uint16_t{body.k}, 65);
  EXPECT_EQ(std::uint16_t{body.may_count}, 70);
  EXPECT_EQ(packet.mask_word_count(), 2u);
  EXPECT_EQ(packet.mask_word(0), ~std::uint64_t{0});
  EXPECT_EQ(packet.mask_word(1), 1u);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
}

TEST(RoundTrip, PieceAndItsResult) {
  Packet packet;
  const Buffer bytes = make(piece(), {}, kEightBytes);
  EXPECT_EQ(round_trip<Piece>(bytes, packet).operation, piece().operation);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
  const Buffer answered = make(piece_result(), {5}, kEightBytes);
  EXPECT_EQ(round_trip<PieceResult>(answered, packet).operation, piece_result().operation);
  EXPECT_EQ(packet.mask_word(0), 5u);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
}

TEST(RoundTrip, PushPullAndValuesOfAStore) {
  Packet packet;
  Buffer bytes = make(push(), {}, kEightBytes);
  const auto pushed = round_trip<Push>(bytes, packet);
  EXPECT_EQ(std::uint32_t{pushed.iteration}, 6u);
  EXPECT_EQ(double{pushed.rate}, 0.5);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
  bytes = make(Pull{.block = 3, .chunks = 5, .need = 7, .own = 9});
  const auto pulled = round_trip<Pull>(bytes, packet);
  EXPECT_EQ(std::uint64_t{pulled.chunks}, 5u);
  EXPECT_EQ(std::uint32_t{pulled.own}, 9u);
  bytes = make(values(), {1}, kEightBytes);
  const auto answered = round_trip<Values>(bytes, packet);
  EXPECT_EQ(std::uint32_t{answered.clock}, 7u);
  EXPECT_EQ(std::uint16_t{answered.waiting}, 2u);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
}

TEST(RoundTrip, AnswerWithMaskAndAges) {
  const MissingAge ages[] = {{.rank = 1, .last_heard_ms = 10}, {.rank = 63, .last_heard_ms = 20}};
  Buffer payload(sizeof(ages));
  std::memcpy(payload.data(), ages, sizeof(ages));
  const Buffer bytes = make(answer(), {0x8000000000000002}, payload);
  Packet packet;
  const auto body = round_trip<Answer>(bytes, packet);
  EXPECT_EQ(std::uint32_t{body.first_incomplete}, 129u);
  EXPECT_EQ(packet.mask_word(0), 0x8000000000000002u);
  EXPECT_EQ(std::uint16_t{packet.missing_age(1).rank}, 63);
  EXPECT_EQ(std::uint32_t{packet.missing_age(1).last_heard_ms}, 20u);
}

TEST(RoundTrip, RefuseAndNoticeWithText) {
  const Buffer text{'n', 'o'};
  Packet packet;
  const Buffer refused =
      make(Refuse{.nonce = 9, .code = RefuseCode::kMtu, .text_bytes = 2}, {}, text);
  EXPECT_EQ(round_trip<Refuse>(refused, packet).code, RefuseCode::kMtu);
  EXPECT_EQ(packet.text(), "no");
  const Buffer noticed =
      make(Notice{.code = NoticeCode::kShutdown, .rank = 2, .text_bytes = 2}, {}, text);
  EXPECT_EQ(round_trip<Notice>(noticed, packet).rank, 2);
  EXPECT_EQ(packet.text(), "no");
}

TEST(RoundTrip, StatusWithMask) {
  const Buffer bytes =
      make(Status{.joined_count = 1, .state = JobState::kRunning, .mask_words = 1}, {42});
  Packet packet;
  EXPECT_EQ(round_trip<Status>(bytes, packet).state, JobState::kRunning);
  EXPECT_EQ(packet.mask_word(0), 42u);
}

TEST(RoundTrip, FixedSizeBodies) {
  Packet packet;
  Buffer bytes = make(Probe{.step = 2, .block = 3, .want = 4});
  EXPECT_EQ(+round_trip<Probe>(bytes, packet).want, 4u);
  bytes = make(Credit{.flow = {.credit = 6}});
  EXPECT_EQ(+round_trip<Credit>(bytes, packet).flow.credit, 6u);
  bytes = make(Feedback{.feedback = {.received_count = 7}});
  EXPECT_EQ(+round_trip<Feedback>(bytes, packet).feedback.received_count, 7u);
  bytes = make(Challenge{.nonce = 8});
  EXPECT_EQ(+round_trip<Challenge>(bytes, packet).nonce, 8u);
  bytes = make(Accept{.open_steps = {1, 2, 3}, .shards = 4});
  EXPECT_EQ(+round_trip<Accept>(bytes, packet).open_steps[2], 3u);
  bytes = make(Leave{.first_steps = {4, 5, 6}, .reason = LeaveReason::kAbnormal});
  EXPECT_EQ(+round_trip<Leave>(bytes, packet).first_steps[1], 5u);
  bytes = make(Keepalive{.timestamp_us = 10});
  EXPECT_EQ(+round_trip<Keepalive>(bytes, packet).timestamp_us, 10u);
  bytes = make(Ping{.timestamp_us = 11});
  EXPECT_EQ(+round_trip<Ping>(bytes, packet).timestamp_us, 11u);
  bytes = make(Preparing{.nonce = 12, .percent = 100});
  EXPECT_EQ(+round_trip<Preparing>(bytes, packet).percent, 100);
}

TEST(RoundTrip, JoinMayBePaddedAndIsTheOnlyOne) {
  Buffer bytes = make(join());
  bytes.resize(1400);
  Packet packet;
  EXPECT_EQ(+round_trip<Join>(bytes, packet).world_size, 4);
  EXPECT_EQ(packet.bytes().size(), 1400u);
}

TEST(RoundTrip, JoinNamesTheRanksWithoutWhichItsStoreIs) {
  Join sent = printed_join(2, 5);
  sent.has_standby = 1;
  sent.view = 3;
  sent.settled_view = 2;
  sent.mask_words = 1;
  Packet packet;
  const Buffer bytes = make(sent, {6}, kEightBytes);
  const auto body = round_trip<Join>(bytes, packet);
  EXPECT_EQ(+body.view, 3u);
  EXPECT_EQ(+body.settled_view, 2u);
  EXPECT_EQ(packet.mask_word_count(), 1u);
  EXPECT_EQ(packet.mask_word(0), 6u);
  EXPECT_EQ(Buffer(packet.payload().begin(), packet.payload().end()), kEightBytes);
  sent.settled_view = 4;
  EXPECT_EQ(parse(make(sent, {6}, kEightBytes), packet), Verdict::kBadField);
  sent.settled_view = 2;
  sent.has_standby = 2;
  EXPECT_EQ(parse(make(sent, {6}, kEightBytes), packet), Verdict::kBadField);
  sent.has_standby = 0;
  sent.mask_words = kMaskWords + 1;
  EXPECT_EQ(parse(make(sent, {6}, kEightBytes), packet), Verdict::kBadLength);
  EXPECT_EQ(parse(make(Status{.view = 1, .settled_view = 2}), packet), Verdict::kBadField);
}

TEST(Encode, WritesNothingIntoABufferThatIsTooSmall) {
  Buffer small(sizeof(CommonHeader) + sizeof(Ping) - 1, 0xEE);
  EXPECT_EQ(encode(small, kSender, Ping{}), 0u);
  EXPECT_EQ(small, Buffer(small.size(), 0xEE));
}

// As bench/papers/bml/settings.py has them, whose own tests are of the full tier alone.
TEST(PacketBytes, AreThoseThatBenchesReckonWith) {
  constexpr std::size_t kHeaders = 42;  // Ethernet, IPv4, UDP
  EXPECT_EQ(kHeaders + packet_bytes(sizeof(ResultHeader), 1, 1344), 1480u);
  EXPECT_EQ(kHeaders + packet_bytes(sizeof(Contribution), 0, 1344), 1436u);
}

}  // namespace
}  // namespace sluice::wire

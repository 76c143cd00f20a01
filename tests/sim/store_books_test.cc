// The books of stores find the errors that they claim to find.
#include "tests/sim/store_books.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace sluice::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two ranks, a shard, a layer of one chunk of 4 elements.
class StoreBooksTest : public testing::Test {
 protected:
  explicit StoreBooksTest(Step bound = 1) {
    agg::JobSpec spec{.name = "store", .world_size = 2};
    spec.store = agg::StoreSpec{.world_size = 2, .block_count = 1, .max_elems = 4, .bound = bound};
    spec.max_elems[0] = 4;
    job_ = std::make_unique<agg::Job>(spec);
    push(0, 0, 0);
  }

  agg::StoreShard& store() { return *job_->slices[0].store; }
  const std::vector<std::string>& found() const { return oracle_.violations(); }

  // What a packet of the rank does to the shard, and what the books are told of it.
  Verdict push(std::uint16_t rank, Step iteration, float value, int times_told = 1) {
    const std::vector<float> values(4, value);
    const std::span<const std::uint8_t> payload{
        reinterpret_cast<const std::uint8_t*>(values.data()), 16};
    const wire::Packet& packet =
        made(rank, wire::Push{.iteration = iteration, .elem_count = 4, .block_chunks = 1}, payload);
    const bool is_live = StoreBooks::is_live(*job_, 0, Rank{rank});
    const Verdict verdict = store().push(
        {.rank = Rank{rank}, .iteration = iteration, .block_chunks = 1, .values = payload});
    for (int i = 0; i < times_told; ++i) books_.handled(*job_, 0, packet, is_live, verdict);
    return verdict;
  }
  void pull(std::uint16_t rank, Step need, Step own) {
    books_.handled(*job_, 0,
                   made(rank, wire::Pull{.block = 0, .chunks = 1, .need = need, .own = own}), true,
                   store().pull({.rank = Rank{rank}, .chunks = 1, .need = need, .own = own}));
  }
  void answer(std::uint16_t rank, Step clock, Step own, float value) {
    const std::vector<float> values(4, value);
    books_.answered(*job_, 0, rank,
                    made(rank, wire::Values{.clock = clock, .own = own, .elem_count = 4},
                         {reinterpret_cast<const std::uint8_t*>(values.data()), 16}));
  }
  void lose(std::uint16_t rank) {
    store().remove(Rank{rank});
    while (store().poll_work()) continue;
  }
  void read(std::uint16_t rank, Step need, Step own, float value) {
    const std::vector<float> values(4, value);
    books_.read({.party = {.rank = Rank{rank}, .process = rank},
                 .need = need,
                 .own = own,
                 .values = values});
  }

  template <class Body>
  const wire::Packet& made(std::uint16_t rank, const Body& body,
                           std::span<const std::uint8_t> payload = {}) {
    bytes_.assign(2048, 0);
    const std::size_t size =
        wire::encode(bytes_, {.job = 0, .rank = rank, .cookie = 1}, body, {}, payload);
    EXPECT_EQ(wire::parse(std::span(bytes_).first(size), packet_), Verdict::kAccepted);
    return packet_;
  }

  Oracle oracle_;
  StoreBooks books_{oracle_};
  std::unique_ptr<agg::Job> job_;
  std::vector<std::uint8_t> bytes_;
  wire::Packet packet_;
};

TEST_F(StoreBooksTest, WhatTheStoreDoesIsNoViolation) {
  EXPECT_EQ(push(0, 1, 6), Verdict::kFolded);
  EXPECT_EQ(push(0, 1, 6), Verdict::kDuplicate);
  EXPECT_EQ(push(1, 1, 2), Verdict::kCompleted);
  pull(0, 1, 1);
  answer(0, 1, 1, 4);
  read(0, 1, 1, 4);
  lose(1);
  books_.look(*job_, 0);
  EXPECT_EQ(push(0, 2, 6), Verdict::kCompleted);
  EXPECT_EQ(push(1, 2, 6), Verdict::kNotAllowed);
  answer(0, 2, 2, 10);
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_EQ(books_.answers_checked(), 2u);
}

TEST_F(StoreBooksTest, APushThatCountsTwice) {
  push(0, 1, 6, 2);
  EXPECT_THAT(found(), ElementsAre(HasSubstr("counts and must not")));
}

TEST_F(StoreBooksTest, APushThatCountsUnseen) {
  push(0, 1, 6, 0);
  push(1, 1, 2);
  EXPECT_THAT(found(), ElementsAre(HasSubstr("its clock is 1 and not 0")));
}

TEST_F(StoreBooksTest, AnotherShareThanTheMembersMake) {
  lose(1);  // and the books are not told: they go on with n = 2
  push(0, 1, 6);
  EXPECT_THAT(found(), Not(IsEmpty()));
}

TEST_F(StoreBooksTest, AnAnswerBeforeItsNeed) {
  pull(0, 1, 0);
  answer(0, 0, 0, 0);
  EXPECT_THAT(found(), ElementsAre(HasSubstr("comes before clock 1")));
}

TEST_F(StoreBooksTest, AnAnswerWithOtherValuesOrClocks) {
  pull(0, 0, 0);
  answer(0, 0, 0, 1);
  answer(0, 1, 0, 0);
  EXPECT_THAT(found(), ElementsAre(HasSubstr("other values"), HasSubstr("has the clocks 1 and 0")));
}

TEST_F(StoreBooksTest, AReadThatNoAnswerHas) {
  pull(0, 0, 0);
  answer(0, 0, 0, 0);
  read(0, 0, 0, 0);
  EXPECT_THAT(found(), IsEmpty());
  read(0, 0, 0, 1);
  read(1, 0, 0, 0);
  read(0, 1, 0, 0);
  EXPECT_EQ(found().size(), 3u);
}

// With bound 0: what is gathered is applied when nobody at the clock is missing.
class GatheringBooksTest : public StoreBooksTest {
 protected:
  GatheringBooksTest() : StoreBooksTest(0) {}
};

TEST_F(GatheringBooksTest, AMemberThatIsLostIsNotWaitedForAndCountsAsOneThatWasThere) {
  EXPECT_EQ(push(1, 1, 2), Verdict::kFolded);
  lose(1);
  books_.look(*job_, 0);
  EXPECT_EQ(push(0, 1, 6), Verdict::kCompleted);
  answer(0, 1, 1, 4);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(GatheringBooksTest, ItsLossCompletesAClock) {
  EXPECT_EQ(push(0, 1, 6), Verdict::kFolded);
  lose(1);
  books_.look(*job_, 0);
  answer(0, 1, 1, 6);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(GatheringBooksTest, WhatIsAppliedTooEarlyShows) {
  push(0, 1, 6);
  answer(0, 0, 0, 3);
  EXPECT_THAT(found(), Not(IsEmpty()));
}

}  // namespace
}  // namespace sluice::sim

// Stores that outlive their workers, and stores without initial values.
#include <functional>
#include <string>
#include <vector>

#include "tests/unit/jobs/store_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::LeaveReason;
using wire::PacketType;

constexpr std::uint64_t kNextRun = 8;

class KeptStore : public StoreJob {
 protected:
  // One worker leaves in order, the other one as it likes, after an iteration of both.
  void start_and_go(LeaveReason reason = LeaveReason::kFinished) {
    start(1);
    iterate();
    leave(workers[0], LeaveReason::kFinished);
    leave(workers[1], reason);
    pump();
    drain_alone();
  }
  void iterate() {
    for (const std::uint32_t block : {0u, 1u})
      for (const Worker& one : workers) push_block(one, 1, block, 4);
  }
  void drain_alone() { pass(200 * kMillisecond); }
  Worker of_next_run(std::uint16_t rank) {
    Worker next = successor_of(workers[rank]);
    next.join.run_id = kNextRun;
    return next;
  }
  // Joins a store that runs; the answer comes when the shards have let it in.
  Answered come(Worker& next) {
    EXPECT_TRUE(join(next).bytes.empty());
    drain_alone();
    return join(next);
  }
  float value_now(const Worker& reader, Step own) {
    arrived.clear();
    EXPECT_EQ(pull(reader, 1, 0, own), Verdict::kProbe);
    const auto all = values();
    EXPECT_THAT(all, SizeIs(1));
    return all.empty() ? 0 : all[0][2];
  }
};

TEST_F(KeptStore, IsThereForWorkersOfAnyRunWhoGoOnWhereTheLastOnesWere) {
  start_and_go();
  ASSERT_THAT(jobs.views(), SizeIs(1));
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning);
  EXPECT_THAT(std::string(jobs.views()[0].loss), HasSubstr("kept for 300 s"));
  for (const std::uint16_t rank : {1, 0}) {
    Worker next = of_next_run(rank);
    const Answered accepted = come(next);
    ASSERT_TRUE(accepted.is(PacketType::kAccept));
    EXPECT_EQ(accepted.body<wire::Accept>().kept, 1);
    EXPECT_EQ(accepted.body<wire::Accept>().first_steps[0], 2u);
    EXPECT_EQ(push_block(next, 0, 1, 99), Verdict::kDuplicate) << "initial values are ignored";
    EXPECT_EQ(value_now(next, 1), 14);
    workers[rank] = next;
    exchange();
  }
  EXPECT_TRUE(std::string(jobs.views()[0].loss).empty());
  for (const Worker& one : workers) EXPECT_LT(push_block(one, 2, 1, 4), Verdict::kDuplicate);
  EXPECT_EQ(value_now(workers[0], 2), 18);
}

TEST_F(KeptStore, OutlivesWorkersThatDieOrLeaveWithAnError) {
  start_and_go(LeaveReason::kAbnormal);
  Worker next = of_next_run(0);
  ASSERT_TRUE(come(next).is(PacketType::kAccept));
  kill(next, {});
  EXPECT_THAT(std::string(jobs.views()[0].loss), HasSubstr("no worker is left"));
  EXPECT_TRUE(keepalive(next).is(PacketType::kNotice)) << "whoever was taken for dead is told";
  Worker again = of_next_run(1);
  again.nonce = 5555;
  const Answered accepted = come(again);
  ASSERT_TRUE(accepted.is(PacketType::kAccept));
  EXPECT_EQ(accepted.body<wire::Accept>().kept, 1);
}

TEST_F(KeptStore, ALateCopyOfALeaveOrOfAKeepaliveBringsNobodyBack) {
  start_and_go();
  EXPECT_EQ(leave(workers[1]).body<wire::Status>().left, 1);
  keepalive(workers[0]);
  drain_alone();
  EXPECT_THAT(std::string(jobs.views()[0].loss), HasSubstr("no worker is left"));
}

TEST_F(KeptStore, EndsWhenItsTimeIsOver) {
  start_and_go();
  pass(299 * kSecond);
  EXPECT_THAT(jobs.jobs(), SizeIs(1));
  pass(2 * kSecond);
  EXPECT_THAT(jobs.jobs(), IsEmpty());
  Worker next = of_next_run(0);
  const Answered accepted = join(next);
  ASSERT_TRUE(accepted.is(PacketType::kAccept));
  EXPECT_EQ(accepted.body<wire::Accept>().kept, 0);
}

TEST_F(KeptStore, GivesWayOnlyToWhoSaysSo) {
  start_and_go();
  struct Other {
    wire::RefuseCode code;
    std::function<void(Worker&)> change;
    std::vector<std::string> words;
  };
  const Other others[] = {{wire::RefuseCode::kLayout,
                           [](Worker& w) { w.join.layouts[0].hash = 6; },
                           {"000000000000000", "set by rank 0"}},
                          {wire::RefuseCode::kWorldSize,
                           [](Worker& w) { w.world_size = 3; },
                           {"world size 3", "world size 2"}},
                          {wire::RefuseCode::kPolicy,
                           [](Worker& w) { w.join.store.bound = 4; },
                           {"bound 4", "bound 1"}},
                          {wire::RefuseCode::kPolicy,
                           [](Worker& w) { w.join.keep = StoreKeep::kEnd; },
                           {"keep 'end'", "has 'keep'"}},
                          {wire::RefuseCode::kPolicy,
                           [](Worker& w) {
                             w.join.kind = JobKind::kSums;
                             w.join.store = {};
                           },
                           {"sums of gradients", "a store with bound 1"}}};
  for (const Other& other : others) {
    Worker next = of_next_run(0);
    other.change(next);
    const std::string why = refusal_of(next, other.code);
    for (const std::string& word : other.words) EXPECT_THAT(why, HasSubstr(word));
    EXPECT_THAT(why, HasSubstr("values that are kept"));
  }
  Worker heir = of_next_run(1);
  const Answered kept = come(heir);
  ASSERT_TRUE(kept.is(PacketType::kAccept));
  EXPECT_EQ(kept.body<wire::Accept>().kept, 1);
  EXPECT_EQ(value_now(heir, 1), 14);
  leave(heir);
  drain_alone();

  Worker next = of_next_run(0);
  next.join.run_id = kNextRun + 1;
  next.nonce = 4444;
  next.join.layouts[0].hash = 6;
  next.join.keep = StoreKeep::kAnew;
  join(next);
  drain_alone();
  const Answered accepted = join(next);
  ASSERT_TRUE(accepted.is(PacketType::kAccept));
  EXPECT_EQ(accepted.body<wire::Accept>().kept, 0);
  EXPECT_EQ(jobs.views().back().state, wire::JobState::kForming);
}

TEST_F(KeptStore, IsThereForWhoOnlyTakesAndFoundsNone) {
  shards.emplace(kTestShards);
  Worker early = worker(0, 1);
  early.join.keep = StoreKeep::kTake;
  EXPECT_THAT(refusal_of(early, wire::RefuseCode::kBadRequest),
              HasSubstr("no store is kept under job 'store'"));
  EXPECT_THAT(jobs.jobs(), IsEmpty());
  start_and_go();
  Worker other = of_next_run(0);
  other.join.keep = StoreKeep::kTake;
  other.join.store.bound = 2;
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kPolicy),
              AllOf(HasSubstr("bound 2"), HasSubstr("bound 1")));
  other.join.store.bound = 1;
  ASSERT_TRUE(come(other).is(PacketType::kAccept));
  EXPECT_EQ(value_now(other, 1), 14);
  leave(other);
  drain_alone();
  EXPECT_THAT(std::string(jobs.views()[0].loss), HasSubstr("kept for 300 s"));
}

TEST_F(KeptStore, IsNotKeptForARunThatDoesNotAskForIt) {
  shards.emplace(kTestShards);
  for (const std::uint16_t rank : {0, 1}) {
    workers.push_back(worker(rank, 1));
    workers.back().join.keep = StoreKeep::kEnd;
    ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
  }
  Worker other = successor_of(workers[1]);
  other.join.keep = StoreKeep::kKeep;
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kPolicy),
              AllOf(HasSubstr("keep 'keep'"), HasSubstr("has 'end' (set by rank 0")));
  for (const std::uint32_t block : {0u, 1u}) push_block(workers[0], 0, block, 10);
  iterate();
  for (const Worker& one : workers) leave(one);
  pump();
  EXPECT_THAT(jobs.jobs(), IsEmpty());
}

TEST_F(KeptStore, MakesWayAfterTwoMinutesForAJobWithAllRanksThatFindsNoRoom) {
  JobsOptions one_job = options();
  one_job.max_jobs = 1;
  restart(one_job);
  start_and_go();
  Worker other{.name = "other"}, second{.rank = 1, .name = "other"};
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kLimit), HasSubstr("limits.jobs"));
  pass(120 * kSecond);
  EXPECT_TRUE(join(other).is(PacketType::kPreparing)) << "it asks again, or never comes back";
  drain_alone();
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning);
  EXPECT_TRUE(join(other).is(PacketType::kPreparing));
  EXPECT_TRUE(join(second).is(PacketType::kPreparing)) << "all of its ranks ask";
  drain_alone();
  EXPECT_TRUE(join(other).is(PacketType::kAccept));
  Worker next = of_next_run(0);
  EXPECT_THAT(refusal_of(next, wire::RefuseCode::kLimit), HasSubstr("limits.jobs"));
}

TEST_F(KeptStore, IsNotKeptWhereTheApplianceIsToldNotTo) {
  JobsOptions none = options();
  none.store_keep_ns = 0;
  restart(none);
  start_and_go();
  EXPECT_THAT(jobs.jobs(), IsEmpty());
}

TEST_F(KeptStore, IsNotKeptWithoutAllOfItsInitialValues) {
  shards.emplace(kTestShards);
  for (const std::uint16_t rank : {0, 1}) {
    workers.push_back(worker(rank, 1));
    ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
  }
  push_block(workers[0], 0, 0, 10);
  for (const Worker& one : workers) leave(one);
  pump();
  EXPECT_THAT(jobs.jobs(), IsEmpty());
}

// What a call of collectives had begun, or would have gone on with, binds nobody who comes.
TEST_F(KeptStore, CollectivesThatDiedWithItsWorkersHoldNobodyUp) {
  for (const bool broadcast : {false, true}) {
    SCOPED_TRACE(broadcast ? "broadcast" : "barrier");
    storage.emplace(options());
    workers.clear();
    start(1);
    if (broadcast) {
      const wire::Operation operation{.size_bytes = 8, .kind = CollectiveKind::kBroadcast};
      data(workers[0], 0, wire::Piece{.step = 1, .operation = operation, .payload_bytes = 8},
           {1, 2});
    } else {
      data(workers[0], 0, wire::Piece{.step = 1, .operation = {.kind = CollectiveKind::kBarrier}});
    }
    for (const Worker& one : workers) leave(one, LeaveReason::kAbnormal);
    pump();
    drain_alone();
    Worker next = of_next_run(1);
    const Answered accepted = come(next);
    ASSERT_TRUE(accepted.is(PacketType::kAccept));
    const Step first = accepted.body<wire::Accept>().first_steps[1];
    arrived.clear();
    data(next, 0, wire::Piece{.step = first, .operation = {.kind = CollectiveKind::kBarrier}});
    EXPECT_TRUE(std::ranges::any_of(arrived, [&](const Sent& sent) {
      return sent.packet.type() == PacketType::kPieceResult &&
             sent.packet.body<wire::PieceResult>().step == first;
    })) << "a barrier of one";
  }
}

TEST_F(KeptStore, WithoutInitialValuesTheLossOfARankEndsTheJobWithANotice) {
  shards.emplace(kTestShards);
  for (const std::uint16_t rank : {0, 1}) {
    workers.push_back(worker(rank, 1));
    ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
  }
  push_block(workers[0], 0, 0, 10);
  pass(60 * kSecond, speakers());
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning) << "they may take their time";
  kill(workers[0], {&workers[1]});
  sent();
  const auto wait = [&](int count) {
    for (int i = 0; i < 2 * count; ++i) {
      pull(workers[1], 1, 0, 0);
      pass(kSecond / 2, {&workers[1]});
    }
  };
  wait(25);
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning) << "another one may bring them";
  pass(60 * kSecond, {&workers[1]});
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning) << "the shard that lacks some is away";
  wait(25);
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning) << "they have had no time to come";
  wait(10);
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kEnded);
  const Answered told = keepalive(workers[1]);
  ASSERT_TRUE(told.is(PacketType::kNotice));
  EXPECT_THAT(told.text(), HasSubstr("rank 0 at 10.0.0.2:40000 is gone, 1 of 2 blocks"));
}

TEST_F(KeptStore, AnotherRanksInitialValuesAreAsGood) {
  shards.emplace(kTestShards);
  for (const std::uint16_t rank : {0, 1}) {
    workers.push_back(worker(rank, 1));
    ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
  }
  push_block(workers[0], 0, 0, 10);
  kill(workers[0], {&workers[1]});
  pass(20 * kSecond, {&workers[1]});
  push_block(workers[1], 0, 1, 10);
  pass(60 * kSecond, {&workers[1]});
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning);
}

}  // namespace
}  // namespace sluice::agg

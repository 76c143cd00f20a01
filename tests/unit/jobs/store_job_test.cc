// Jobs of kind store: the limits of a join, and pushes and pulls through real shards while ranks
// die and join.
#include "tests/unit/jobs/store_fixture.h"

namespace sluice::agg {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using wire::PacketType;

using Refusals = StoreJob;

TEST_F(Refusals, WhatNoStoreCanBeIsRefusedWithTheReason) {
  Worker asks = worker(0, 2);
  asks.join.store.update.rule = UpdateRule::kAdam;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("Adam"));
  asks = worker(0, 0);
  asks.join.layouts[0].chunk_count = 65;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("65 chunks"));
  asks = worker(0, 0);
  asks.join.layouts[0].max_elems = 257;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("257 elements"));
  asks = worker(0, 0);
  asks.join.wire = Dtype::kInt8;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("float32"));
  asks = worker(0, 0);
  asks.join.averaging = AveragingChoice::kSum;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("averaging"));
  asks = worker(0, 0);
  asks.join.has_policy = 1;
  asks.join.policy = {.kind = PolicyKind::kGoodput};
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("policy goodput"));
  asks = worker(0, 3);
  asks.join.features = wire::kFeatureReproducible;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("use bound 0"));
}

TEST_F(Refusals, MemoryThatIsNotThereIsRefusedWithTheNumbers) {
  JobsOptions small = options();
  small.max_job_memory_bytes = std::size_t{2} << 20;
  restart(small);
  Worker asks = worker(0, 0);
  asks.join.layouts[0] = {.hash = 5, .chunk_count = 100 * kChunksPerBlock, .max_elems = 256};
  // 6,400 chunks of 1 KiB, each with what is gathered.
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kLimit), HasSubstr("needs 14 MiB"));
}

// Which takes about a second a GiB: the control side only orders it.
TEST_F(StoreJob, ItsMemoryIsMadeElsewhere) {
  memory_at_once = false;
  Worker asks = worker(0, 0);
  EXPECT_TRUE(join(asks).is(PacketType::kPreparing));
  ASSERT_EQ(jobs.views().size(), 1u);
  EXPECT_EQ(jobs.views()[0].job, nullptr);
  MemoryOrder order;
  ASSERT_TRUE(jobs.poll_memory(order));
  EXPECT_GE(order.bytes, 2 * kChunksPerBlock * 2 * 16 * sizeof(float));
  carry_out(order);
  ASSERT_NE(order.job, nullptr);
  EXPECT_NE(order.job->slices[1].store, nullptr);
  EXPECT_TRUE(join(asks).is(PacketType::kPreparing));
  jobs.handle_memory(std::move(order), now);
  EXPECT_TRUE(join(asks).is(PacketType::kAccept));
}

TEST_F(Refusals, AllRanksAskForTheSame) {
  Worker first = worker(0, 2);
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  Worker other = worker(1, 3);
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kPolicy),
              HasSubstr("a store with bound 3 and the workers' own updates, job 'store' has a "
                        "store with bound 2"));
  other = worker(1, 2);
  other.join.kind = JobKind::kSums;
  other.join.store = {};
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kPolicy), HasSubstr("sums of gradients"));
}

TEST_F(StoreJob, PushesMoveAClockAndWhoWaitedGetsTheValues) {
  start(0);
  EXPECT_EQ(pull(workers[0], 0, 0, 0), Verdict::kProbe);
  EXPECT_EQ(values(), (std::vector<std::array<float, 3>>{{0, 0, 10}, {0, 1, 10}}));
  push_block(workers[0], 1, 0, 2);
  EXPECT_EQ(pull(workers[0], 0, 1, 1), Verdict::kProbe);
  EXPECT_TRUE(values().empty());
  EXPECT_EQ(push_block(workers[1], 1, 0, 4), Verdict::kCompleted);
  EXPECT_EQ(arrived.back().to.priority, 3);
  EXPECT_EQ(arrived.back().packet.body<wire::Values>().clock, 1u);
  EXPECT_EQ(values(), (std::vector<std::array<float, 3>>{{0, 0, 13}, {0, 1, 13}}));
}

TEST_F(StoreJob, WhoseWordsWereLostAsksWhatHasCome) {
  start(0);
  push(workers[0], 1, 1, 2);
  EXPECT_EQ(probe(workers[0], 0, StreamId::kPushes, 1).counted, 0b10u);
  EXPECT_EQ(probe(workers[0], 0, StreamId::kPulls, 2).counted, 0u);  // the pull was lost
  pull(workers[0], 0, 1, 1);
  wire::Answer parked = probe(workers[0], 0, StreamId::kPulls, 2);
  EXPECT_EQ(parked.counted, 0b11u);
  EXPECT_EQ(parked.complete, 0u);
  EXPECT_EQ(parked.first_incomplete, 0u);
  EXPECT_EQ(parked.age_count, 2);  // both miss a push
  push(workers[0], 1, 0, 2);
  push_block(workers[1], 1, 0, 4);
  EXPECT_THAT(values(), SizeIs(2));
  EXPECT_EQ(probe(workers[0], 0, StreamId::kPulls, 2, 0b10).complete, 0b11u);
  EXPECT_EQ(values(), (std::vector<std::array<float, 3>>{{0, 1, 13}}));
}

TEST_F(StoreJob, ItHasNoStreamsOfSumsAndSumsHaveNoneOfAStore) {
  start(0);
  for (const StreamId stream : {StreamId::kGradients, StreamId::kState})
    EXPECT_EQ(data(workers[0], 0, wire::Probe{.step = 1, .stream = stream}), Verdict::kBadStream);
  Worker sums{.name = "sums", .world_size = 1};
  sums.join.layouts[0] = {.hash = 6, .chunk_count = 1, .max_elems = 4};
  ASSERT_TRUE(join(sums).is(PacketType::kAccept));
  for (const StreamId stream : {StreamId::kPushes, StreamId::kPulls})
    EXPECT_EQ(data(sums, 0, wire::Probe{.step = 1, .stream = stream}), Verdict::kBadStream);
}

TEST_F(StoreJob, AnAnswerDoesNotOvertakeTheValuesThatItSpeaksOf) {
  start(0);
  pull(workers[0], 0, 0, 0);
  probe(workers[0], 0, StreamId::kPulls, 1);
  const auto answer = std::ranges::find_if(
      arrived, [](const Sent& sent) { return sent.packet.type() == PacketType::kAnswer; });
  ASSERT_NE(answer, arrived.end());
  EXPECT_EQ(answer->to.priority, 3);  // as the pull's
}

TEST_F(StoreJob, AStoreTakesNoLongerTurnThanASum) {
  start(0);
  Worker sums{.name = "sums", .world_size = 1};
  sums.join.layouts[0] = {.hash = 6, .chunk_count = 1, .max_elems = 4};
  ASSERT_TRUE(join(sums).is(PacketType::kAccept));
  Shard& shard = shards->shard(0);
  const auto handle = [&](const Worker& from, auto body, const std::vector<float>& values) {
    std::array<std::uint8_t, 256> out;
    body.flow.number = ++packet_number;
    body.flow.credit = credit;
    const std::size_t bytes = wire::encode(
        out, {from.job, from.rank, from.cookie}, body, {},
        {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)});
    wire::Packet packet;
    EXPECT_EQ(wire::parse({out.data(), bytes}, packet), Verdict::kAccepted);
    return shard.handle(packet, false, now);
  };
  for (const Worker& each : workers)  // four values in all
    ASSERT_EQ(handle(each, wire::Pull{.block = 0, .chunks = 0b11}, {}), Verdict::kProbe);
  ASSERT_EQ(handle(sums, wire::Contribution{.step = 1, .weight = 1, .elem_count = 4}, {1, 2, 3, 4}),
            Verdict::kCompleted);
  std::array<std::array<std::uint8_t, 2048>, 8> rooms;
  std::array<Transmit, 8> burst;
  for (std::size_t i = 0; i < burst.size(); ++i) burst[i].buffer = rooms[i];
  ASSERT_GE(shard.poll_transmit(burst, now), 5u);
  std::vector<JobId> order;
  for (std::size_t i = 0; i < 5; ++i) order.push_back(burst[i].job);
  const JobId store{workers[0].job}, other{sums.job};
  EXPECT_EQ(order, (std::vector<JobId>{store, store, other, store, store}));
}

TEST_F(StoreJob, WithoutCreditValuesAreWithheldAndToldOf) {
  start(3);
  credit = 0;  // what has been told before stands
  EXPECT_EQ(pull(workers[1], 0, 0, 0), Verdict::kProbe);
  EXPECT_TRUE(std::ranges::any_of(arrived, [](const Sent& sent) {
    return sent.packet.type() == PacketType::kFeedback &&
           sent.packet.body<wire::Feedback>().feedback.deferred_count != 0;
  }));
  EXPECT_TRUE(values().empty());
}

TEST_F(StoreJob, PacketsOfAnotherKindAreRefusedByName) {
  start(0);
  EXPECT_EQ(data(workers[0], 0, wire::Contribution{.step = 1, .weight = 1, .elem_count = 4},
                 {1, 2, 3, 4}),
            Verdict::kBadStream);
  EXPECT_EQ(push(workers[0], 1, 0, 1), Verdict::kFolded);
  EXPECT_EQ(data(workers[0], 2, wire::Pull{.block = 2, .chunks = 1}), Verdict::kBadChunk);
  EXPECT_EQ(data(workers[0], 1, wire::Pull{.block = 0, .chunks = 1}), Verdict::kWrongShard);
  EXPECT_EQ(send(workers[0], wire::Resync{.number = 1}).result.verdict, Verdict::kNotAllowed);
  Worker sums{.name = "sums", .world_size = 1};
  ASSERT_TRUE(join(sums).is(PacketType::kAccept));
  EXPECT_EQ(data(sums, 0, wire::Pull{.chunks = 1}), Verdict::kBadType);
}

TEST_F(StoreJob, ALossWakesWhoeverWaitedAndTheProcessLearnsThatItIsOut) {
  start(0);
  push_block(workers[0], 1, 0, 2);
  pull(workers[0], 0, 1, 1);
  arrived.clear();
  kill(workers[1], {&workers[0]});
  drain();
  EXPECT_EQ(only_job()->slices[0].store->state(Rank{1}), StoreShard::MemberState::kGone);
  const Answered told = keepalive(workers[1]);
  ASSERT_TRUE(told.is(PacketType::kNotice));
  EXPECT_THAT(told.text(), HasSubstr("goes on with 1 of 2 ranks"));
  EXPECT_EQ(probe(workers[0], 0, StreamId::kPulls, 2, 0b11).complete, 0b11u);
  EXPECT_EQ(values(), (std::vector<std::array<float, 3>>{{0, 0, 12}, {0, 1, 12}}));
}

TEST_F(StoreJob, WhoComesStartsBehindTheGreatestClockOfAllShards) {
  start(5);
  leave(workers[1], wire::LeaveReason::kAbnormal);
  pump();
  for (Step iteration = 1; iteration <= 3; ++iteration) push_block(workers[0], iteration, 1, 1);
  Worker successor = successor_of(workers[1]);
  EXPECT_TRUE(join(successor).bytes.empty());
  exchange();
  const Answered accepted = join(successor);
  ASSERT_TRUE(accepted.is(PacketType::kAccept));
  EXPECT_EQ(accepted.body<wire::Accept>().rejoined, 1);
  EXPECT_EQ(accepted.body<wire::Accept>().first_steps[0], 4u);
  exchange();
  EXPECT_EQ(push_block(successor, 3, 0, 2), Verdict::kDuplicate);
  EXPECT_EQ(push_block(successor, 4, 0, 2), Verdict::kFolded);
  arrived.clear();
  EXPECT_EQ(pull(successor, 0, 0, 4), Verdict::kProbe);
  EXPECT_THAT(values(), SizeIs(2));
  // A second one, while the first is let in: nobody holds a clock for ever.
  leave(successor, wire::LeaveReason::kAbnormal);
  Worker third = successor_of(successor);
  third.nonce = 9999;
  EXPECT_TRUE(join(third).bytes.empty());
  leave(workers[0], wire::LeaveReason::kFinished);
  exchange();
  EXPECT_TRUE(join(third).is(PacketType::kAccept));
}

TEST_F(StoreJob, AStartThatWasMeantForTheProcessBeforeIsNobodys) {
  start(0);
  leave(workers[1], wire::LeaveReason::kAbnormal);
  pump();
  while (shards->shard(1).poll_work(now)) {
  }
  using Kind = ShardCommand::Kind;
  using State = StoreShard::MemberState;
  const auto tell = [&](Kind kind, std::uint32_t admission, Step first) {
    shards->shard(1).handle_command({.kind = kind,
                                     .job = const_cast<Job*>(only_job()),
                                     .rank = Rank{1},
                                     .admission = admission,
                                     .first = first},
                                    now);
    while (shards->shard(1).poll_work(now)) {
    }
    return only_job()->slices[1].store->state(Rank{1});
  };
  EXPECT_EQ(tell(Kind::kHoldClocks, 7, 0), State::kHeld);
  EXPECT_EQ(tell(Kind::kMemberStarts, 6, 1), State::kHeld);
  EXPECT_EQ(tell(Kind::kMemberStarts, 7, 1), State::kLive);
}

// It may be in that view, and have moved on before it was told.
TEST_F(StoreJob, AProcessThatMissesTheNewestViewIsLetInWhenNoOtherOfItsRankHasCome) {
  shards.emplace(kTestShards);
  Worker holder = worker(0, 0), waiting = worker(1, 0);
  for (Worker* const one : {&holder, &waiting}) {
    one->join.was_member = one->join.has_standby = 1;
    one->join.epoch = 1;
  }
  holder.join.resume_step = 1;
  holder.join.view = holder.join.settled_view = 2;
  ASSERT_TRUE(join(holder).is(wire::PacketType::kAccept));
  const DurationNs timeout_ns = options().member_timeout_ns;
  pass(timeout_ns - kSecond, {&holder});
  EXPECT_TRUE(join(waiting).bytes.empty());
  EXPECT_EQ(keepalive(holder).body<wire::Status>().state, wire::JobState::kForming);
  pass(kSecond, {&holder});
  EXPECT_TRUE(join(waiting).bytes.empty()) << "the store begins with those that have its values";
  EXPECT_EQ(keepalive(holder).body<wire::Status>().state, wire::JobState::kRunning);
}

}  // namespace
}  // namespace sluice::agg

#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using wire::PacketType;
using wire::RefuseCode;

using Join = ControlTest;

TEST_F(Join, WithoutProofGetsAChallengeAndNothingIsAllocated) {
  const Worker worker;
  const Answered answered = ask(worker);
  ASSERT_TRUE(answered.is(PacketType::kChallenge));
  EXPECT_EQ(answered.body<wire::Challenge>().nonce, worker.nonce);
  EXPECT_EQ(answered.result.verdict, Verdict::kJoin);
  EXPECT_FALSE(answered.result.bind);
  EXPECT_LE(answered.bytes.size(), answered.request_bytes);
  EXPECT_EQ(jobs.memory_bytes(), 0u);
}

// Its nonce is where every version has it, and so is the text of the answer.
TEST_F(Join, OfAnotherVersionIsToldOfBoth) {
  std::vector<std::uint8_t> request(kMaxDatagramBytes);
  std::vector<std::uint8_t> reply(kMaxDatagramBytes);
  request.resize(wire::encode(request, {.rank = 3}, wire::Join{.nonce = 77, .world_size = 4}));
  EXPECT_EQ(refuse_version(request, reply), 0u);  // of this one
  const std::uint8_t other = wire::kVersion + 1;
  request[offsetof(wire::CommonHeader, version)] = other;
  for (const std::size_t request_bytes : {request.size(), std::size_t{60}}) {
    const std::size_t reply_bytes = refuse_version(std::span(request).first(request_bytes), reply);
    ASSERT_NE(reply_bytes, 0u);
    EXPECT_LE(reply_bytes, request_bytes);
    reply[offsetof(wire::CommonHeader, version)] = other;  // as its appliance would have sent it
    wire::Packet packet;
    ASSERT_EQ(wire::parse(std::span(reply).first(reply_bytes), packet), Verdict::kAccepted);
    EXPECT_EQ(packet.common().rank, 3);
    EXPECT_EQ(packet.body<wire::Refuse>().nonce, 77u);
    EXPECT_EQ(packet.body<wire::Refuse>().code, RefuseCode::kBadVersion);
    if (request_bytes == request.size()) {
      EXPECT_THAT(std::string(packet.text()),
                  AllOf(HasSubstr("version " + std::to_string(other) + " "),
                        HasSubstr("version " + std::to_string(wire::kVersion) + ":")));
    }
  }
  EXPECT_EQ(refuse_version(std::span(request).first(20), reply), 0u);
  request[offsetof(wire::CommonHeader, type)] = static_cast<std::uint8_t>(PacketType::kLeave);
  EXPECT_FALSE(is_foreign_join(request));
  EXPECT_EQ(refuse_version(request, reply), 0u);
}

TEST_F(Join, WithProofBecomesAMember) {
  Worker worker{.rank = 1};
  const Answered answered = join(worker);
  ASSERT_TRUE(answered.is(PacketType::kAccept));
  const auto& accept = answered.body<wire::Accept>();
  EXPECT_EQ(accept.nonce, worker.nonce);
  EXPECT_EQ(accept.shards, kTestShards);
  EXPECT_EQ(accept.window, kSyncWindow);
  EXPECT_EQ(accept.world_size, 2);
  EXPECT_EQ(accept.joined_count, 1);
  EXPECT_EQ(accept.open_steps[0], 1u);
  EXPECT_EQ(accept.member_timeout_ms, 30'000u);
  EXPECT_TRUE(answered.result.bind);
  EXPECT_EQ(answered.result.rank.value, 1);
  EXPECT_EQ(answered.result.job.value, worker.job);
  EXPECT_NE(worker.cookie, 0u);

  const Job* job = only_job();
  EXPECT_EQ(job->members[1].cookie.load(), worker.cookie);
  EXPECT_TRUE(job->members[1].reachable.load());
  EXPECT_EQ(job->spec.chunk_counts[0], 130u);
  EXPECT_EQ(job->spec.chunk_counts[1], kCollectiveChunks);
  EXPECT_EQ(job->spec.chunk_counts[2], 0u);
  EXPECT_EQ(job->spec.max_elems[0], 256u);
  EXPECT_EQ(jobs.memory_bytes(), Job::memory_bytes(job->spec));
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].kind, ShardCommand::Kind::kAddJob);
}

TEST_F(Join, RepeatedWithTheSameNonceGetsTheSameAnswer) {
  Worker worker;
  const Answered first = join(worker);
  const Cookie cookie = worker.cookie;
  pass(kSecond);
  const Answered again = join(worker);
  EXPECT_EQ(again.bytes, first.bytes);
  EXPECT_EQ(worker.cookie, cookie);
  EXPECT_EQ(only_job()->members[0].stale_cookie.load(), 0u);
}

TEST_F(Join, WithAWrongSecretIsRefusedNamingJobRankAndAddress) {
  Worker worker{.rank = 1, .secret = "open"};
  EXPECT_THAT(refusal_of(worker, RefuseCode::kBadSecret),
              AllOf(HasSubstr("'digits'"), HasSubstr("rank 1"), HasSubstr("10.0.0.3:40000"),
                    HasSubstr("gave another one than the appliance has")));
  EXPECT_EQ(jobs.memory_bytes(), 0u);
}

TEST_F(Join, WithASecretToAnApplianceWithoutOneOrTheOtherWayRoundIsToldSo) {
  Worker silent{.rank = 1, .secret = ""};
  EXPECT_THAT(refusal_of(silent, RefuseCode::kBadSecret),
              AllOf(HasSubstr("rank 1 at 10.0.0.3:40000 gave none, and the appliance has one"),
                    HasSubstr("option `secret`"), HasSubstr("only Python reads SLUICE_SECRET")));
  JobsOptions open = options();
  open.secret.clear();
  restart(open);
  Worker worker{.rank = 1, .secret = "sesame"};
  EXPECT_THAT(refusal_of(worker, RefuseCode::kBadSecret),
              AllOf(HasSubstr("rank 1 at 10.0.0.3:40000 gave one, and the appliance has none"),
                    HasSubstr("appliance.secret_file")));
}

TEST_F(Join, ProvenFromAnotherAddressIsChallengedAgain) {
  Worker worker;
  const Answered challenged = ask(worker);
  worker.address = "10.9.9.9:1";
  EXPECT_TRUE(prove(worker, challenged.body<wire::Challenge>()).is(PacketType::kChallenge));
  EXPECT_EQ(jobs.memory_bytes(), 0u);
}

TEST_F(Join, RefusalOfAStrangerIsNeverLongerThanItsRequest) {
  Worker worker{.secret = "open", .name = std::string(kMaxJobNameBytes, 'n')};
  worker.address = std::string(180, 'a');
  const Answered challenged = ask(worker);
  wire::Join body = worker.request();
  body.has_proof = 1;
  std::memcpy(body.server_nonce, challenged.body<wire::Challenge>().server_nonce,
              sizeof(body.server_nonce));
  const Answered answered = send(worker, body);  // not padded
  ASSERT_TRUE(answered.is(PacketType::kRefuse));
  EXPECT_EQ(answered.bytes.size(), answered.request_bytes);
}

TEST_F(Join, UnpaddedMeansThatThePathDropsFullDatagrams) {
  const Worker worker;
  const Answered answered = send(worker, worker.request());
  ASSERT_TRUE(answered.is(PacketType::kRefuse));
  EXPECT_EQ(answered.body<wire::Refuse>().code, RefuseCode::kMtu);
  EXPECT_THAT(answered.text(), AllOf(HasSubstr(std::to_string(answered.request_bytes) + " bytes"),
                                     HasSubstr("1118")));
  EXPECT_LE(answered.bytes.size(), answered.request_bytes);
}

TEST_F(Join, ThatThePortCannotCarryIsRefusedWithBothSizes) {
  port_datagram_bytes = 1000;
  Worker worker;
  EXPECT_THAT(refusal_of(worker, RefuseCode::kMtu), AllOf(HasSubstr("1118"), HasSubstr("1000")));
}

struct Disagreement {
  const char* what;
  void (*change)(Worker&);
  RefuseCode code;
  std::vector<std::string> printed;
};

class Refused : public ControlTest, public testing::WithParamInterface<Disagreement> {};

TEST_P(Refused, PrintsBothValues) {
  Worker first;
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  Worker second{.rank = 1};
  GetParam().change(second);
  const std::string text = refusal_of(second, GetParam().code);
  for (const std::string& value : GetParam().printed) EXPECT_THAT(text, HasSubstr(value));
  EXPECT_EQ(jobs.jobs().size(), 1u);
  EXPECT_EQ(jobs.verdicts().read(Verdict::kJoinRefused), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Joins, Refused,
    testing::Values(Disagreement{"features",
                                 [](Worker& w) { w.join.features = 4; },
                                 RefuseCode::kBadVersion,
                                 {"0x4", "0x1"}},
                    Disagreement{"unprintable_name",
                                 [](Worker& w) { w.name = "a\nb"; },
                                 RefuseCode::kBadRequest,
                                 {"'a?b'"}},
                    Disagreement{"world_size_zero",
                                 [](Worker& w) { w.world_size = 0; },
                                 RefuseCode::kLimit,
                                 {"world size 0", "1024", "limits.workers_per_job"}},
                    Disagreement{"world_size_too_big",
                                 [](Worker& w) { w.world_size = 1025; },
                                 RefuseCode::kLimit,
                                 {"1025", "1024"}},
                    Disagreement{"world_size_differs",
                                 [](Worker& w) { w.world_size = 3; },
                                 RefuseCode::kWorldSize,
                                 {"world size 3", "world size 2", "10.0.0.2"}},
                    Disagreement{"chunk_too_big",
                                 [](Worker& w) {
                                   w.join.chunk_bytes = 8896;
                                   w.join.datagram_bytes = 1200;
                                 },
                                 RefuseCode::kLimit,
                                 {"8896", "8832", "limits.chunk_bytes_max"}},
                    Disagreement{"chunk_unaligned",
                                 [](Worker& w) { w.join.chunk_bytes = 1000; },
                                 RefuseCode::kBadRequest,
                                 {"1000", "64"}},
                    Disagreement{"chunk_differs",
                                 [](Worker& w) { w.join.chunk_bytes = 512; },
                                 RefuseCode::kLayout,
                                 {"512", "1024", "set by rank 0"}},
                    Disagreement{"datagram_too_small",
                                 [](Worker& w) { w.join.datagram_bytes = 600; },
                                 RefuseCode::kBadRequest,
                                 {"600", "1118"}},
                    Disagreement{"no_gradients",
                                 [](Worker& w) { w.join.layouts[0].chunk_count = 0; },
                                 RefuseCode::kLimit,
                                 {"0 gradient chunks", "16777216"}},
                    Disagreement{"elements_beyond_chunk",
                                 [](Worker& w) { w.join.layouts[0].max_elems = 513; },
                                 RefuseCode::kBadRequest,
                                 {"513", "512"}},
                    Disagreement{"other_hash",
                                 [](Worker& w) { w.join.layouts[0].hash = 0x1234; },
                                 RefuseCode::kLayout,
                                 {"0000000000001234", "000000000000abcd", "set by rank 0"}},
                    Disagreement{"other_chunk_count",
                                 [](Worker& w) { w.join.layouts[0].chunk_count = 131; },
                                 RefuseCode::kLayout,
                                 {"131 chunks", "130 chunks"}},
                    Disagreement{"other_collectives",
                                 [](Worker& w) { w.join.layouts[1].chunk_count = 3; },
                                 RefuseCode::kBadRequest,
                                 {"3", "64"}},
                    Disagreement{"state_stream",
                                 [](Worker& w) { w.join.layouts[2].chunk_count = 9; },
                                 RefuseCode::kBadRequest,
                                 {"9", "a join says 0"}},
                    Disagreement{"other_nil_rule",
                                 [](Worker& w) { w.join.allow_nil = 0; },
                                 RefuseCode::kBadRequest,
                                 {"allow_nil 0", "has 1"}},
                    Disagreement{"other_order_of_sums",
                                 [](Worker& w) { w.join.features = wire::kFeatureReproducible; },
                                 RefuseCode::kLayout,
                                 {"reproducible 1", "has 0"}},
                    Disagreement{"other_averaging",
                                 [](Worker& w) { w.join.averaging = AveragingChoice::kSum; },
                                 RefuseCode::kLayout,
                                 {"rank 1 at 10.0.0.3:40000", "'sum'", "'default'",
                                  "set by rank 0 at 10.0.0.2:40000"}},
                    Disagreement{"averaging_by_default_and_by_name",
                                 [](Worker& w) { w.join.averaging = AveragingChoice::kWeight; },
                                 RefuseCode::kLayout,
                                 {"'weight'", "'default'"}},
                    Disagreement{"rank_outside",
                                 [](Worker& w) { w.rank = 2; },
                                 RefuseCode::kBadRequest,
                                 {"rank 2", "world size 2"}},
                    Disagreement{"rank_taken",
                                 [](Worker& w) {
                                   w.rank = 0;
                                   w.nonce = 5;
                                 },
                                 RefuseCode::kRankTaken,
                                 {"10.0.0.2:40000", "10.0.0.3:40000", "0.0 s ago"}}),
    [](const auto& test) { return std::string(test.param.what); });

TEST_F(Join, OfAnotherOrdinalIsAnotherJob) {
  Worker first, second;
  second.join.ordinal = 1;
  second.join.layouts[0].hash = 1;
  EXPECT_TRUE(join(first).is(PacketType::kAccept));
  EXPECT_TRUE(join(second).is(PacketType::kAccept));
  EXPECT_NE(first.job, second.job);
  EXPECT_EQ(jobs.jobs().size(), 2u);
}

TEST_F(Join, OfTheLastRankStartsTheJobAndTellsAll) {
  Worker first, second{.rank = 1};
  join(first);
  EXPECT_FALSE(only_job()->started());
  EXPECT_TRUE(sent().empty());
  join(second);
  EXPECT_TRUE(only_job()->started());
  const auto statuses = sent_of(PacketType::kStatus);
  ASSERT_EQ(statuses.size(), 2u);
  for (const Sent& one : statuses) {
    EXPECT_EQ(one.packet.body<wire::Status>().state, wire::JobState::kRunning);
    EXPECT_EQ(one.packet.body<wire::Status>().joined_count, 2);
    EXPECT_EQ(one.packet.mask_word(0), 0u);
  }
  EXPECT_EQ(statuses[0].packet.common().cookie, first.cookie);
  EXPECT_EQ(statuses[1].packet.common().cookie, second.cookie);
}

TEST_F(Join, OfASilentRankTakesItOverAfterThreeSeconds) {
  Worker first, second{.rank = 1};
  join(first);
  join(second);
  Worker successor{.rank = 1, .address = "10.0.0.9:1", .nonce = 99};
  pass(kTakeoverSilence - 100 * kMillisecond, {&first});
  EXPECT_THAT(refusal_of(successor, RefuseCode::kRankTaken), HasSubstr("2.9 s ago"));
  pass(200 * kMillisecond, {&first});
  ASSERT_TRUE(join(successor).is(PacketType::kAccept));
  EXPECT_NE(successor.cookie, second.cookie);
  EXPECT_EQ(only_job()->members[1].cookie.load(), successor.cookie);
  EXPECT_EQ(only_job()->members[1].stale_cookie.load(), second.cookie);

  const Answered old = keepalive(second);
  EXPECT_EQ(old.result.verdict, Verdict::kStaleCookie);
  EXPECT_FALSE(old.result.bind);
  ASSERT_TRUE(old.is(PacketType::kNotice));
  EXPECT_EQ(old.body<wire::Notice>().code, wire::NoticeCode::kReplaced);
  EXPECT_THAT(old.text(), HasSubstr("10.0.0.9:1"));
  EXPECT_EQ(leave(second).result.verdict, Verdict::kStaleCookie);
  EXPECT_THAT(refusal_of(second, RefuseCode::kRankTaken), HasSubstr("10.0.0.9:1"));
}

TEST_F(Join, OfAnotherRunIsRefusedOnceTheFirstHasAnswered) {
  Worker first, second{.rank = 1, .nonce = 5};
  join(first);
  second.join.run_id = 8;
  EXPECT_TRUE(join(second).bytes.empty()) << "the first may have been killed just now";
  pass(kSecond, {&first});
  const std::string told = refusal_of(second, RefuseCode::kOtherRun);
  for (const char* word : {"0000000000000007", "0000000000000008", "10.0.0.2:40000"})
    EXPECT_THAT(told, HasSubstr(word));
  EXPECT_TRUE(keepalive(first).bytes.empty() || !keepalive(first).is(PacketType::kNotice));
}

TEST_F(Join, OfANewRunDiscardsASilentOne) {
  Worker old;
  join(old);
  pass(kTakeoverSilence + 50 * kMillisecond);
  Worker fresh{.nonce = 50, .world_size = 3};
  fresh.join.run_id = 8;
  ASSERT_TRUE(join(fresh).is(PacketType::kAccept));
  EXPECT_NE(fresh.job, old.job);
  EXPECT_EQ(only_job()->spec.world_size, 3);
  const Answered told = keepalive(old);
  ASSERT_TRUE(told.is(PacketType::kNotice));
  EXPECT_EQ(told.body<wire::Notice>().code, wire::NoticeCode::kReplaced);
}

TEST_F(Join, WithNoSecretAnyoneMayJoin) {
  JobsOptions open = options();
  open.secret.clear();
  restart(open);
  Worker worker{.secret = ""};
  EXPECT_TRUE(join(worker).is(PacketType::kAccept));
}

}  // namespace
}  // namespace sluice::agg

// The pure parts of the control side: admission, liveness, the queue for other ranks' state, and
// the legal changes of state. No packets, no fixture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "aggregator/jobs/admission.h"

namespace sluice::agg {
namespace {

using testing::HasSubstr;

constexpr TimeNs kNow = 1000 * kSecond;

// ---- admission ----

struct Admission : testing::Test {
  Admission() {
    std::memcpy(join.name, "digits", 6);
    entry.name = "digits";
    entry.run_id = join.run_id;
    entry.gradients = join.layouts[0];
    entry.spec = decide().spec;
    entry.spec.id = JobId{3};
    entry.options = std::make_shared<const JobsOptions>(options);
    entry.members.resize(2);
    entry.members[0].address = "10.0.0.2:40000";
    entry.change_to(JobMemory::kMaking);
    entry.job = std::make_unique<Job>(entry.spec);
    entry.change_to(JobMemory::kHeld);
  }

  JoinRequest request(std::uint16_t rank = 0) const {
    return {.join = join, .rank = Rank{rank}, .address = "10.0.0.9:4", .now = kNow};
  }
  JobDecision decide(const JobEntry* known = nullptr, const Usage& usage = {}) const {
    return decide_job(request(), options, known, usage, clock);
  }
  RankDecision::Kind rank_decision() const { return decide_rank(request(), entry, clock).kind; }
  void hold(TimeNs heard_ns, std::uint64_t nonce = 5) {
    entry.members[0].change_to(MemberPhase::kJoined);
    entry.members[0].nonce = nonce;
    entry.members[0].liveness.hear(heard_ns);
  }

  JobsOptions options;
  PausableClock clock;
  wire::Join join{.nonce = 1000,
                  .run_id = 7,
                  .layouts = {{.hash = 0xABCD, .chunk_count = 130, .max_elems = 256}, {}, {}},
                  .world_size = 2,
                  .chunk_bytes = 1024,
                  .datagram_bytes = static_cast<std::uint16_t>(wire::datagram_bytes(1024, 2)),
                  .name_bytes = 6};
  JobEntry entry;
};

TEST_F(Admission, FoundsAJobThatNobodyHasAndJoinsOneThatAgrees) {
  const JobDecision found = decide();
  ASSERT_EQ(found.kind, JobDecision::Kind::kFound) << found.refusal.text;
  EXPECT_EQ(found.spec.world_size, 2);
  EXPECT_EQ(found.spec.windows[0], kSyncWindow);
  EXPECT_EQ(decide(&entry).kind, JobDecision::Kind::kJoin);
}

TEST_F(Admission, RefusesWhatDisagreesWithBothValues) {
  entry.members.resize(3);
  const JobDecision decision = decide(&entry);
  ASSERT_EQ(decision.kind, JobDecision::Kind::kRefuse);
  EXPECT_EQ(decision.refusal.code, wire::RefuseCode::kWorldSize);
  EXPECT_THAT(decision.refusal.text, HasSubstr("world size 2"));
  EXPECT_THAT(decision.refusal.text, HasSubstr("world size 3"));
}

TEST_F(Admission, AnotherRunWaitsUntilNobodyOfTheFirstIsHeard) {
  join.run_id = 8;
  entry.asked_ns = kNow;
  EXPECT_EQ(decide(&entry).refusal.code, wire::RefuseCode::kOtherRun) << "it is being prepared";
  hold(kNow - kTakeoverSilence);
  EXPECT_EQ(decide(&entry).kind, JobDecision::Kind::kAskMembers) << "it may have been killed";
  entry.rival_run_id = 8;
  entry.rival_ns = kNow - kTakeoverSilence - kSuspectGrace;
  EXPECT_EQ(decide(&entry).kind, JobDecision::Kind::kAskMembers) << "sent before it was asked";
  entry.rival_ns -= 1;
  EXPECT_EQ(decide(&entry).refusal.code, wire::RefuseCode::kOtherRun) << "it has spoken since";
  entry.rival_run_id = 9;
  EXPECT_EQ(decide(&entry).kind, JobDecision::Kind::kAskMembers) << "for a third run's sake";
  hold(kNow - kTakeoverSilence - 1);
  EXPECT_EQ(decide(&entry).kind, JobDecision::Kind::kReplace);
}

TEST_F(Admission, MemoryThatReturnsMakesAJobWaitAndNotBeRefused) {
  options.max_jobs = 1;
  EXPECT_EQ(decide(nullptr, {.jobs = 1}).refusal.code, wire::RefuseCode::kLimit);
  EXPECT_EQ(decide(nullptr, {.jobs = 1, .returning_jobs = 1}).kind, JobDecision::Kind::kLater);
}

TEST_F(Admission, GivesARankByWhoHoldsIt) {
  using Kind = RankDecision::Kind;
  EXPECT_EQ(rank_decision(), Kind::kTake);
  hold(kNow, join.nonce);
  EXPECT_EQ(rank_decision(), Kind::kAcceptAgain);
  entry.members[0].change_to(MemberPhase::kGone);
  EXPECT_EQ(rank_decision(), Kind::kRevive);
  hold(kNow);
  EXPECT_EQ(rank_decision(), Kind::kRefuse) << "somebody else has it";
  hold(kNow - kTakeoverSilence - 1);
  EXPECT_EQ(rank_decision(), Kind::kTake) << "who is silent";
  entry.run();
  entry.members[0].change_to(MemberPhase::kLeft);
  entry.members[0].left_ns = kNow;
  EXPECT_EQ(rank_decision(), Kind::kIgnore) << "the others may be about to leave as well";
  entry.members[0].left_ns = kNow - kRejoinGrace;
  EXPECT_EQ(rank_decision(), Kind::kRefuse);
}

TEST_F(Admission, ASecondProcessOfAJobThatGoesOnHasTheFirstAsked) {
  using Kind = RankDecision::Kind;
  entry.spec.policy = {.kind = PolicyKind::kFixed, .k = 1};
  entry.job = std::make_unique<Job>(entry.spec);
  entry.run();
  hold(kNow);
  EXPECT_EQ(rank_decision(), Kind::kRefuse) << "nobody else lives who has the state";
  entry.members[1].change_to(MemberPhase::kJoined);
  EXPECT_EQ(rank_decision(), Kind::kAskHolder);
  entry.members[0].change_to(MemberPhase::kGone);
  EXPECT_EQ(rank_decision(), Kind::kTakeOfRunning);
}

// ---- liveness ----

using Finding = Liveness::Finding;

// The member spoke last at `heard_ns`, on any port.
Finding check(Liveness& liveness, TimeNs now, TimeNs heard_ns) {
  return liveness.check(now, 30 * kSecond, [&] { return heard_ns; });
}

TEST(LivenessOfAMember, SilenceIsAnsweredWithAPingASecondAndThenItsEnd) {
  Liveness liveness;
  liveness.hear(kNow);
  EXPECT_EQ(check(liveness, kNow + kSecond, kNow), Finding::kNothing);
  EXPECT_EQ(check(liveness, kNow + kSecond + 1, kNow), Finding::kPing);
  EXPECT_EQ(check(liveness, kNow + kSecond + 2, kNow), Finding::kNothing);
  EXPECT_EQ(check(liveness, kNow + 30 * kSecond, kNow), Finding::kPing);
  EXPECT_EQ(check(liveness, kNow + 30 * kSecond + 1, kNow), Finding::kSilent);
  EXPECT_EQ(check(liveness, kNow + 30 * kSecond + 1, kNow + 30 * kSecond), Finding::kNothing)
      << "data counts as life";
}

TEST(LivenessOfAMember, ASuspectIsDeadAfterThreePingsThatWereReallySent) {
  Liveness liveness;
  liveness.hear(kNow);
  EXPECT_TRUE(liveness.suspect(kNow));
  EXPECT_FALSE(liveness.suspect(kNow)) << "it is being asked";
  EXPECT_EQ(check(liveness, kNow + kSuspectPing, kNow), Finding::kNothing) << "none has left yet";
  TimeNs now = kNow;
  for (unsigned ping = 1; ping <= kSuspectPings; ++ping) {
    liveness.note_ping(now);
    EXPECT_EQ(check(liveness, now + kSuspectPing - 1, kNow), Finding::kNothing);
    now += kSuspectPing;
    EXPECT_EQ(check(liveness, now, kNow), ping < kSuspectPings ? Finding::kPing : Finding::kDied);
  }
}

TEST(LivenessOfAMember, PingsOverAConnectionThatEndedCountForNothing) {
  Liveness liveness;
  EXPECT_TRUE(liveness.suspect_anew(kNow));
  EXPECT_FALSE(liveness.suspect_anew(kNow)) << "a ping waits to be sent";
  TimeNs now = kNow;
  for (unsigned ping = 1; ping <= kSuspectPings + 1; ++ping, now += kSuspectPing) {
    liveness.note_ping(now);
    EXPECT_TRUE(liveness.suspect_anew(now + kSuspectPing - 1));
    EXPECT_EQ(check(liveness, now + kSuspectPing, kNow), Finding::kNothing);
  }
}

TEST(LivenessOfAMember, ASuspectThatSpeaksAfterTheGraceIsClearedForAWhile) {
  Liveness liveness;
  liveness.suspect(kNow);
  check(liveness, kNow + kSecond, kNow + kSuspectGrace);
  EXPECT_TRUE(liveness.suspected()) << "that packet was under way";
  liveness.hear(kNow + kSecond);
  check(liveness, kNow + kSecond, kNow + kSuspectGrace + 1);
  EXPECT_EQ(liveness.state(), Liveness::State::kCleared);
  EXPECT_TRUE(liveness.was_cleared(kNow + kSecond + kClearedFor));
  EXPECT_FALSE(liveness.was_cleared(kNow + kSecond + kClearedFor + 1));
  EXPECT_TRUE(liveness.suspect(kNow + 3 * kSecond));
}

// ---- the line for other ranks' state ----

TEST(Resyncs, OneTransferIsUnderWayAndTheOthersWaitInLine) {
  Resyncs resyncs;
  EXPECT_EQ(resyncs.ask(Rank{1}, 1), Resyncs::Asked::kInLine);
  EXPECT_EQ(resyncs.ask(Rank{2}, 1), Resyncs::Asked::kInLine);
  EXPECT_EQ(resyncs.ask(Rank{1}, 2), Resyncs::Asked::kKnown);
  resyncs.start(kNow);
  resyncs.open(Rank{0}, kNow);
  EXPECT_EQ(resyncs.target(), Rank{1});
  EXPECT_EQ(resyncs.number(), 2u);
  EXPECT_TRUE(resyncs.in_line(Rank{2}));
  EXPECT_FALSE(resyncs.forget(Rank{2}));
  EXPECT_TRUE(resyncs.forget(Rank{1})) << "its transfer has to end";
  resyncs.end();
  EXPECT_FALSE(resyncs.active() || resyncs.has_line());
}

TEST(Resyncs, OnlyTheAnswerToTheNewestOpeningCounts) {
  Resyncs resyncs;
  resyncs.ask(Rank{1}, 1);
  resyncs.start(kNow);
  resyncs.open(Rank{0}, kNow);
  resyncs.open(Rank{2}, kNow + 1);
  EXPECT_FALSE(resyncs.opened(4));
  EXPECT_EQ(resyncs.state(), Resyncs::State::kOpening);
  EXPECT_TRUE(resyncs.opened(5));
  EXPECT_EQ(resyncs.first_step(), 5u);
  EXPECT_EQ(resyncs.ask(Rank{1}, 2), Resyncs::Asked::kRestarted);
  EXPECT_EQ(resyncs.held_ns(kNow + kSecond), kSecond) << "since the first request";
}

TEST(Resyncs, AnAnswerThatDoesNotComeIsAskedForAgain) {
  Resyncs resyncs;
  resyncs.ask(Rank{1}, 1);
  resyncs.start(kNow);
  resyncs.open(Rank{0}, kNow);
  EXPECT_FALSE(resyncs.is_overdue(kNow + kShardAnswer - 1));
  EXPECT_TRUE(resyncs.is_overdue(kNow + kShardAnswer));
  resyncs.open(Rank{0}, kNow + kShardAnswer);
  EXPECT_TRUE(resyncs.opened(9)) << "the lost answer is not waited for";
  EXPECT_TRUE(resyncs.ask_for_loss(kNow));
  EXPECT_FALSE(resyncs.ask_for_loss(kNow + kShardAnswer - 1));
}

// ---- what may follow what ----

TEST(MemberPhase, NobodyComesBackToAFreeRankAndOnlyAMemberIsLost) {
  using enum MemberPhase;
  for (const MemberPhase phase : {kFree, kJoined, kReturning, kGone, kLeft, kAborted, kEvicted}) {
    EXPECT_FALSE(may_follow(phase, kFree));
    const bool live = phase == kJoined || phase == kReturning;
    EXPECT_EQ(may_follow(phase, kGone), live);
    EXPECT_EQ(may_follow(phase, kEvicted), live);
    EXPECT_TRUE(may_follow(phase, kJoined)) << "another process takes the rank";
  }
}

TEST(MemberPhaseDeathTest, AnIllegalChangeEndsTheProcess) {
  MemberEntry member;
  EXPECT_DEATH(member.change_to(MemberPhase::kLeft), "may_follow");
  JobEntry entry;
  EXPECT_DEATH(entry.change_to(JobMemory::kGoing), "may_follow");
  EXPECT_DEATH(Resyncs().end(), "active");
}

}  // namespace
}  // namespace sluice::agg

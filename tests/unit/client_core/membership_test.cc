// A joined session on the control port: keepalives, silence, notices, leaving.
#include <gmock/gmock.h>

#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using wire::PacketType;

TEST(Membership, SendsAKeepaliveEvery250MillisecondsAndAtOnceForAPing) {
  Scripted bench;
  bench.start();
  for (int i = 0; i < 8; ++i) {
    bench.pass(250 * kMillisecond);
    bench.status(wire::JobState::kRunning, 2, 0);
  }
  std::size_t keepalives = 0;
  for (const Sent& packet : bench.passed) keepalives += packet.type() == PacketType::kKeepalive;
  EXPECT_EQ(keepalives, 8u);
  EXPECT_TRUE(bench.sent().empty());
  bench.answer(wire::Ping{});
  EXPECT_EQ(bench.sent(PacketType::kKeepalive).size(), 1u);
}

TEST(Membership, NamesTheRanksThatDidNotJoinInTime) {
  SessionOptions options = Scripted::default_options();
  options.world_size = 8;
  options.join_timeout_ns = 3 * kSecond;
  Scripted bench(options);
  bench.sent();
  bench.challenge();
  bench.sent();
  bench.accept();
  for (int i = 0; i < 13; ++i) {
    bench.status(wire::JobState::kForming, 5, 0b10100100);
    bench.pass(250 * kMillisecond);
  }
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kTimedOut);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("5 of 8"), HasSubstr("ranks 2, 5, 7")));
}

TEST(Membership, ReportsWhoIsAwaitedOnceNobodyHasComeForFiveSeconds) {
  SessionOptions options = Scripted::default_options();
  options.world_size = 3;
  Scripted bench(options);
  bench.sent();
  bench.challenge();
  bench.sent();
  bench.accept();
  std::vector<std::string> reports;
  const auto wait = [&](DurationNs duration_ns, std::uint16_t joined, std::uint64_t missing) {
    for (const TimeNs end_ns = bench.now + duration_ns; bench.now < end_ns;) {
      bench.status(wire::JobState::kForming, joined, missing);
      bench.pass(250 * kMillisecond);
      for (const Event& event : bench.events())
        if (event.kind == Event::Kind::kStalled) reports.push_back(event.status.message());
    }
  };
  wait(4 * kSecond, 1, 0b101);
  wait(4750 * kMillisecond, 2, 0b100);
  EXPECT_THAT(reports, IsEmpty());
  wait(500 * kMillisecond, 2, 0b100);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0], AllOf(HasSubstr("10.0.0.1:7700"),
                                HasSubstr("2 of 3 ranks here; waiting for rank 2")));
  wait(9 * kSecond, 2, 0b100);
  EXPECT_THAT(reports, SizeIs(1));
  wait(kSecond, 2, 0b100);
  EXPECT_THAT(reports, SizeIs(2));
}

// Of three ranks that wait for one that never comes, the first to give up is not its fellow.
TEST(Membership, TellsRanksThatNeverCameFromThoseThatGaveUpWaiting) {
  SessionOptions options = Scripted::default_options();
  options.world_size = 4;
  options.join_timeout_ns = 3 * kSecond;
  options.appliance_address = "inproc://here";
  Scripted bench(options);
  bench.sent();
  bench.challenge();
  bench.sent();
  bench.accept();
  for (int i = 0; i < 13; ++i) {
    bench.status(wire::JobState::kForming, i < 11 ? 3 : 1, i < 11 ? 0b0100 : 0b1101);
    bench.pass(250 * kMillisecond);
  }
  EXPECT_THAT(bench.failure().message(),
              AllOf(HasSubstr("3 of 4 ranks joined within 3.0 s; missing: rank 2; no longer here: "
                              "ranks 0, 3."),
                    HasSubstr("ranks of other processes cannot come to an inproc:// address")));
}

TEST(Membership, FailsNamingTheAddressWhenTheApplianceFallsSilent) {
  Scripted bench;
  bench.start();
  bench.pass(3900 * kMillisecond);
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
  bench.pass(200 * kMillisecond);
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kUnreachable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("10.0.0.1:7700"), HasSubstr("silent")));
}

TEST(Membership, DoesNotBlameTheApplianceForItsOwnSleep) {
  Scripted bench;
  bench.start();
  bench.now += 20 * kSecond;  // stopped by a debugger
  bench.session.handle_timeout(bench.now);
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
  bench.pass(5 * kSecond);
  EXPECT_EQ(bench.session.state(), SessionState::kClosed);
}

TEST(Membership, EndsWithTheNoticesText) {
  Scripted bench;
  bench.start();
  bench.answer_text(wire::Notice{.code = wire::NoticeCode::kMemberDied, .rank = 0},
                    "job 'job': rank 0 at 10.0.0.2 died");
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_EQ(status.message(), "job 'job' rank 1 at 10.0.0.1:7700: rank 0 at 10.0.0.2 died");
  EXPECT_TRUE(bench.sent().empty());
}

TEST(Membership, RepeatsItsLeaveUntilItIsAcknowledged) {
  Scripted bench;
  bench.start();
  bench.session.leave(wire::LeaveReason::kFinished, bench.now);
  EXPECT_EQ(bench.sent(PacketType::kLeave).size(), 1u);
  bench.pass(120 * kMillisecond);
  EXPECT_EQ(bench.passed.size(), 2u);
  bench.status(wire::JobState::kRunning, 2, 0, true);
  EXPECT_TRUE(bench.saw(Event::Kind::kLeft));
  EXPECT_EQ(bench.session.state(), SessionState::kClosed);
}

TEST(Membership, StopsWaitingForTheAcknowledgementAfterHalfASecond) {
  Scripted bench;
  bench.start();
  bench.session.leave(wire::LeaveReason::kAbnormal, bench.now);
  bench.pass(500 * kMillisecond);
  EXPECT_TRUE(bench.saw(Event::Kind::kLeft));
}

TEST(Membership, RefusesPacketsUnderAnotherCookieJobOrRank) {
  Scripted bench;
  bench.start();
  bench.sender.cookie ^= 1;
  EXPECT_EQ(bench.status(wire::JobState::kEnded, 2, 0), Verdict::kBadCookie);
  bench.sender.cookie ^= 1;
  bench.sender.job ^= 1;
  EXPECT_EQ(bench.status(wire::JobState::kEnded, 2, 0), Verdict::kUnknownJob);
  bench.sender.job ^= 1;
  bench.sender.rank ^= 1;
  EXPECT_EQ(bench.status(wire::JobState::kEnded, 2, 0), Verdict::kBadRank);
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
}

}  // namespace
}  // namespace sluice::client

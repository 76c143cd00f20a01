// A member's packets may come by any path. Its results go only to a path that has answered a ping.
#include "aggregator/jobs/paths.h"

#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using Validation = MemberPaths::Validation;

PathKey path_of(std::uint8_t number) {
  PathKey path{};
  path[0] = number;
  return path;
}

constexpr TimeNs kStart = 100 * kSecond;

class MemberPathsTest : public testing::Test {
 protected:
  MemberPathsTest() { paths.join(7, path_of(1), kStart); }
  MemberPaths paths;
};

TEST_F(MemberPathsTest, TheJoinsPathIsProvenForGood) {
  EXPECT_EQ(paths.judge(path_of(1), false, kStart), Validation::kProven);
  EXPECT_EQ(paths.judge(path_of(1), false, kStart + 3600 * kSecond), Validation::kProven);
}

TEST_F(MemberPathsTest, ACandidateIsAskedOnceIn250MsAndMovesNothing) {
  int asked = 0;
  for (TimeNs now = kStart; now < kStart + 2 * kSecond; now += kMillisecond)
    asked += paths.judge(path_of(2), false, now) == Validation::kAsk;
  EXPECT_EQ(asked, 8);
  EXPECT_EQ(paths.judge(path_of(1), false, kStart + 3600 * kSecond), Validation::kProven);
}

TEST_F(MemberPathsTest, ALateCopyOfTheJoinMovesNothingBack) {
  EXPECT_EQ(paths.judge(path_of(2), true, kStart + 1), Validation::kProven);
  EXPECT_FALSE(paths.join(7, path_of(1), kStart + 2));
  EXPECT_TRUE(paths.join(7, path_of(2), kStart + 2));
  EXPECT_TRUE(paths.join(8, path_of(3), kStart + 3)) << "another process";
  EXPECT_EQ(paths.judge(path_of(2), false, kStart + 3), Validation::kAsk);
}

TEST_F(MemberPathsTest, AnEchoMovesTheMember) {
  EXPECT_EQ(paths.judge(path_of(2), false, kStart), Validation::kAsk);
  EXPECT_EQ(paths.judge(path_of(2), true, kStart + 1), Validation::kProven);
  EXPECT_EQ(paths.judge(path_of(2), false, kStart + 3600 * kSecond), Validation::kProven);
}

TEST_F(MemberPathsTest, TwoRoutersThatAlternateAreAskedOnceInTenSeconds) {
  int asked = 0;
  for (int packet = 0; packet < 240; ++packet) {  // one minute
    const TimeNs now = kStart + packet * 250 * kMillisecond;
    const PathKey path = path_of(static_cast<std::uint8_t>(1 + packet % 2));
    const Validation validation = paths.judge(path, false, now);
    if (validation == Validation::kProven) continue;
    ++asked;
    EXPECT_EQ(paths.judge(path, true, now + kMillisecond), Validation::kProven);
  }
  EXPECT_GE(asked, 8);
  EXPECT_LE(asked, 13);
}

TEST_F(MemberPathsTest, ManyForgedSourcesGetFourPingsIn250Ms) {
  int asked = 0;
  for (int packet = 0; packet < 1000; ++packet)
    asked += paths.judge(path_of(static_cast<std::uint8_t>(2 + packet % 250)), false,
                         kStart + packet * kMillisecond) == Validation::kAsk;
  EXPECT_LE(asked, 16);
}

TEST(PathToken, IsOfOneCookieOnePathAndTenSeconds) {
  const wire::HmacKey key("boot"), other("other");
  const std::uint64_t token = path_token(key, 5, path_of(2), kStart);
  EXPECT_TRUE(is_path_token(token, key, 5, path_of(2), kStart));
  EXPECT_TRUE(is_path_token(token, key, 5, path_of(2), kStart + kTokenEpoch));
  EXPECT_FALSE(is_path_token(token, key, 5, path_of(2), kStart + 2 * kTokenEpoch));
  EXPECT_FALSE(is_path_token(token, key, 5, path_of(3), kStart));
  EXPECT_FALSE(is_path_token(token, key, 6, path_of(2), kStart));
  EXPECT_FALSE(is_path_token(token, other, 5, path_of(2), kStart));
  EXPECT_FALSE(is_path_token(0, key, 5, path_of(2), kStart));
}

TEST(PathKeyTest, EveryPartOfThePathCounts) {
  wire::UdpPath path{.src = wire::ipv4_address(10, 0, 0, 1),
                     .dst = wire::ipv4_address(10, 0, 0, 2)};
  const PathKey key = path_key(path, 0);
  EXPECT_NE(key, PathKey{});
  EXPECT_NE(path_key(path, 1), key);
  wire::UdpPath other = path;
  other.dst_mac.bytes[5] = 1;
  EXPECT_NE(path_key(other, 0), key);
  other = path;
  other.dst.bytes[3] = 3;
  EXPECT_NE(path_key(other, 0), key);
  other = path;
  other.dst_port = 1;
  EXPECT_NE(path_key(other, 0), key);
  other = path;
  other.vlan_tci = 5;
  EXPECT_NE(path_key(other, 0), key);
}

// The same through the control side.
class MovingMember : public ControlTest {
 protected:
  MovingMember() {
    path = path_of(1);
    workers = running_job(2);
  }
  Answered speak(const PathKey& from, std::uint64_t token = 0) {
    path = from;
    return send(workers[0], wire::Keepalive{.timestamp_us = 77, .token = token});
  }
  std::vector<Worker> workers;
};

TEST_F(MovingMember, AKeepaliveFromElsewhereIsAnsweredByAPingAndBindsNothing) {
  const Answered answered = speak(path_of(2));
  ASSERT_TRUE(answered.is(wire::PacketType::kPing));
  EXPECT_NE(answered.body<wire::Ping>().token, 0u);
  EXPECT_LE(answered.bytes.size(), answered.request_bytes);
  EXPECT_FALSE(answered.result.bind);
  EXPECT_TRUE(speak(path_of(2)).bytes.empty()) << "one ping in 250 ms";
  EXPECT_TRUE(speak(path_of(1)).is(wire::PacketType::kStatus));
}

TEST_F(MovingMember, TheEchoMustComeFromWhereThePingWent) {
  const std::uint64_t token = speak(path_of(2)).body<wire::Ping>().token;
  EXPECT_FALSE(speak(path_of(3), token).result.bind);
  const Answered moved = speak(path_of(2), token);
  EXPECT_TRUE(moved.result.bind);
  EXPECT_TRUE(moved.is(wire::PacketType::kStatus));
}

TEST_F(MovingMember, ACandidatesPacketsCountAsSignsOfLife) {
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(speak(path_of(2)).result.bind);
    path = path_of(1);
    pass(250 * kMillisecond, {&workers[1]});
  }
  EXPECT_TRUE(speak(path_of(1)).is(wire::PacketType::kStatus));
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning);
}

TEST_F(MovingMember, ALeaveFromElsewhereCountsAndIsAnsweredByAPing) {
  path = path_of(2);
  const Answered answered = leave(workers[0]);
  EXPECT_TRUE(answered.is(wire::PacketType::kPing));
  EXPECT_FALSE(answered.result.bind);
  EXPECT_EQ(answered.result.verdict, Verdict::kLeave);
  const std::uint64_t token = answered.body<wire::Ping>().token;
  EXPECT_TRUE(speak(path_of(2), token).is(wire::PacketType::kStatus));
}

TEST_F(MovingMember, AReplacedProcessLearnsOfItOnlyWhereItListens) {
  pass(4 * kSecond, {&workers[1]});
  Worker successor = successor_of(workers[0]);
  path = path_of(7);
  ASSERT_TRUE(join(successor).is(wire::PacketType::kAccept));
  const Answered asked = speak(path_of(1));
  ASSERT_TRUE(asked.is(wire::PacketType::kPing));
  EXPECT_LE(asked.bytes.size(), asked.request_bytes);
  const Answered told = speak(path_of(1), asked.body<wire::Ping>().token);
  EXPECT_TRUE(told.is(wire::PacketType::kNotice));
  EXPECT_FALSE(told.result.bind);
}

}  // namespace
}  // namespace sluice::agg

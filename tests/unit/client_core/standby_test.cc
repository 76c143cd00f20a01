// When a job moves to the next of its addresses, and what it asks there.
#include "client/core/member/standby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using wire::Drain;

class StandbyAsks : public testing::Test {
 protected:
  static SessionOptions make_options(std::size_t count) {
    SessionOptions options{.job_name = "job", .rank = Rank{1}, .world_size = 2, .nonce = 77};
    for (std::size_t i = 0; i < count; ++i)
      options.addresses.push_back("udp://10.0.0." + std::to_string(i + 1) + ":7700");
    options.appliance_address = options.addresses.front();
    return options;
  }
  static Layout make_layout() {
    return Layout::create({{.name = "a", .elem_count = 16}}, 256, Dtype::kFloat32).value();
  }

  // The next question, whose answer tells `epoch`. False: none is due.
  bool answer(std::uint32_t epoch) {
    standby.handle_timeout(now);
    std::array<std::uint8_t, kMaxDatagramBytes> bytes{};
    if (standby.poll_transmit(bytes) == 0) return false;
    wire::Packet packet;
    EXPECT_EQ(wire::parse(std::span(bytes).first(join_bytes(layout, 2)), packet),
              Verdict::kAccepted);
    const auto& join = packet.body<wire::Join>();
    EXPECT_EQ(join.was_member, 1);
    EXPECT_EQ(join.has_proof, 0);
    EXPECT_EQ(join.epoch, options.epoch);
    std::array<std::uint8_t, 256> reply{};
    const std::size_t size =
        wire::encode(reply, {.rank = 1}, wire::Challenge{.nonce = join.nonce, .epoch = epoch});
    EXPECT_EQ(wire::parse(std::span(reply).first(size), packet), Verdict::kAccepted);
    EXPECT_TRUE(standby.is_answer(packet));
    standby.handle(packet, now);
    return true;
  }
  void go_to(std::uint32_t epoch) {
    options.epoch = epoch;
    standby.moved(now);
  }

  TimeNs now = kSecond;
  SessionOptions options = make_options(2);
  Layout layout = make_layout();
  Standby standby{options, layout, now};
};

TEST_F(StandbyAsks, AsksFourTimesASecondAndKnowsForASecondThatSomebodyIsThere) {
  EXPECT_FALSE(standby.is_there(now));
  EXPECT_TRUE(answer(0));
  EXPECT_FALSE(answer(0)) << "not due";
  EXPECT_EQ(standby.next_timeout(), now + kKeepaliveInterval);
  now += kSecond;
  EXPECT_TRUE(standby.is_there(now));
  now += 1;
  EXPECT_FALSE(standby.is_there(now));
}

TEST_F(StandbyAsks, MovesAfterThreeQuartersOfASecondOfSilenceIfSomebodyIsThere) {
  EXPECT_EQ(standby.decide({.silent_ns = 10 * kSecond}, now), std::nullopt);
  answer(0);
  EXPECT_EQ(standby.decide({.silent_ns = 749 * kMillisecond}, now), std::nullopt);
  EXPECT_THAT(standby.decide({.silent_ns = 750 * kMillisecond}, now), Optional(1u));
  EXPECT_EQ(standby.decide({.silent_ns = 2 * kSecond, .is_new = true}, now), std::nullopt);
  EXPECT_THAT(standby.decide({.ends = true}, now), Optional(1u));
}

TEST_F(StandbyAsks, AJobThatMustStayFollowsTheOthersAlone) {
  answer(0);
  EXPECT_EQ(standby.decide({.silent_ns = 10 * kSecond, .must_stay = true}, now), std::nullopt);
  EXPECT_EQ(standby.decide({.drain = Drain::kBegun, .between_steps = true, .must_stay = true}, now),
            std::nullopt);
  now += kSecond;
  answer(1);
  EXPECT_THAT(standby.decide({.must_stay = true}, now), Optional(1u));
}

TEST_F(StandbyAsks, FollowsAHigherEpochOfItsAddressAlone) {
  answer(2);
  EXPECT_EQ(standby.decide({}, now), std::nullopt) << "that is where the job is";
  standby.learn(3);
  EXPECT_EQ(standby.decide({}, now), std::nullopt) << "told by the wrong one";
  now += kSecond;
  answer(3);
  EXPECT_THAT(standby.decide({}, now), Optional(3u));
}

TEST_F(StandbyAsks, MovesAtTheEndOfAStepWhenTheApplianceDrainsOrASecondLater) {
  answer(0);
  EXPECT_EQ(standby.decide({.drain = Drain::kAsked}, now), std::nullopt);
  EXPECT_THAT(standby.decide({.drain = Drain::kAsked, .between_steps = true}, now), Optional(1u));
  EXPECT_THAT(standby.decide({.drain = Drain::kBegun}, now), Optional(1u))
      << "no step ends any more where a member has gone";
  now += kSecond;
  answer(0);
  EXPECT_THAT(standby.decide({.drain = Drain::kAsked}, now), Optional(1u));
}

TEST_F(StandbyAsks, WithOneAddressNothingMoves) {
  SessionOptions alone = make_options(1);
  Standby single(alone, layout, now);
  EXPECT_FALSE(single.exists());
  EXPECT_EQ(single.next_timeout(), kNever);
  EXPECT_EQ(single.decide({.silent_ns = 10 * kSecond, .ends = true}, now), std::nullopt);
  EXPECT_EQ(single.decide({.drain = Drain::kBegun, .between_steps = true}, now), std::nullopt);
  EXPECT_EQ(single.address(), 0u);
}

TEST_F(StandbyAsks, GoesOnWhenRanksDoNotComeAndWaitsTwiceAsLongEachTime) {
  answer(0);
  EXPECT_EQ(standby.decide({.incomplete_ns = kSecond * 60}, now), std::nullopt) << "not moved yet";
  DurationNs limit = 3 * kSecond;
  for (std::uint32_t epoch = 1; epoch <= 4; ++epoch, limit *= 2) {
    go_to(epoch);
    answer(0);
    EXPECT_EQ(standby.decide({.incomplete_ns = limit - 1}, now), std::nullopt);
    EXPECT_THAT(standby.decide({.incomplete_ns = limit}, now), Optional(epoch + 1));
  }
  standby.settled();
  EXPECT_EQ(standby.decide({.incomplete_ns = kSecond * 60}, now), std::nullopt);
}

TEST_F(StandbyAsks, WarnsOnceOfAnAddressThatIsSilent) {
  now += 5 * kSecond;
  EXPECT_THAT(standby.take_warning(now),
              AllOf(HasSubstr("udp://10.0.0.2:7700 has not answered for 5.0 s"),
                    HasSubstr("cannot move there")));
  EXPECT_EQ(standby.take_warning(now), "");
  EXPECT_TRUE(answer(0));
  now += 6 * kSecond;
  EXPECT_NE(standby.take_warning(now), "");
}

}  // namespace
}  // namespace sluice::client

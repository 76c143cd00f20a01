#include "client/core/handover/return_vote.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::client {
namespace {

// What one member says in one step.
struct Said {
  bool ready = false;
  std::uint32_t collectives = 0;
};

class Voters {
 public:
  Voters(std::uint32_t count, Step first) : first_(first) {
    for (std::uint32_t self = 0; self < count; ++self) all_.emplace_back(count, self);
    for (ReturnVote& vote : all_) vote.open(first);
  }

  // True: all return with the next step, and all know.
  bool step(const std::vector<Said>& said) {
    std::vector<float> sum(all_.size());
    std::vector<std::span<float>> votes;
    for (std::size_t self = 0; self < all_.size(); ++self) {
      ReturnVote& vote = all_[self];
      EXPECT_FALSE(vote.is_due()) << "it has not come to the step";
      vote.come_to(first_);
      EXPECT_TRUE(vote.is_due());
      votes.push_back(vote.cast(said[self].ready, said[self].collectives));
      EXPECT_TRUE(vote.is_voting() && !vote.is_due());
      for (std::size_t at = 0; at < sum.size(); ++at) sum[at] += votes[self][at];
    }
    ++first_;
    std::size_t agreed = 0;
    for (std::size_t self = 0; self < all_.size(); ++self) {
      std::ranges::copy(sum, votes[self].begin());
      agreed += all_[self].count();
      EXPECT_EQ(all_[self].return_step(),
                all_[self].state() == ReturnVote::State::kDecided ? first_ : 0);
    }
    EXPECT_TRUE(agreed == 0 || agreed == all_.size());
    return agreed != 0;
  }

  std::vector<ReturnVote>& all() { return all_; }

 private:
  std::vector<ReturnVote> all_;
  Step first_;
};

TEST(ReturnVote, AllReturnWithTheStepAfterTheFirstInWhichAllAreReady) {
  for (std::uint32_t ready = 0; ready < 8; ++ready) {
    Voters voters(3, 8);
    const std::vector<Said> said{{(ready & 1) != 0}, {(ready & 2) != 0}, {(ready & 4) != 0}};
    EXPECT_EQ(voters.step(said), ready == 7) << ready;
    if (ready == 7) continue;
    EXPECT_TRUE(voters.step({{true}, {true}, {true}}));
  }
}

TEST(ReturnVote, AllStayUnlessAllHaveEndedTheSameCollectives) {
  Voters voters(2, 1);
  EXPECT_FALSE(voters.step({{true, 4}, {true, 5}}));
  EXPECT_TRUE(voters.step({{true, 5}, {true, 5}}));
}

TEST(ReturnVote, IsNotDueBeforeItsStepNorOnceTheReturnIsDecided) {
  ReturnVote vote(1, 0);
  vote.come_to(20);
  EXPECT_FALSE(vote.is_due());
  vote.open(21);
  EXPECT_FALSE(vote.is_due());
  vote.come_to(21);
  vote.come_to(3);  // an older step says nothing new
  EXPECT_TRUE(vote.is_due());
  vote.cast(true, 0);
  EXPECT_TRUE(vote.count());
  EXPECT_EQ(vote.return_step(), 22u);
  vote.come_to(22);
  EXPECT_FALSE(vote.is_due());
  vote.close();
  EXPECT_EQ(vote.return_step(), 0u);
  EXPECT_EQ(vote.state(), ReturnVote::State::kClosed);
}

}  // namespace
}  // namespace sluice::client

// In which step all members return to the aggregator that they left, because it answers again.
//
// A member that works at the aggregator which stands in votes once a step, when the step's first
// submission is due: whether it could return now. The votes of a step are summed as gradients are,
// and no member ends the step without the sum. So the first step in whose sum all members are ready
// is the same for all, and with the step after it all return. No member has submitted anything of
// that step, and nothing of an earlier step is left.
//
// An example of two members. A is ready in step 8, B in step 9. The sum of step 8 lacks B, the sum
// of step 9 lacks nobody, and with step 10 both return. If the first aggregator is lost to A once
// more before step 10, A returns all the same, and loses it there as if for the first time.
//
// Collectives return with the steps, but a collective may begin in any step. So no member is ready
// while it is in a collective, and a vote states how many collectives the member has ended: unless
// all votes state the same number, all members stay. A member that begins a collective votes first,
// if it has not, and waits for the sum. A member that is in a collective when a step begins, or
// when the members' states become known, votes at once. Otherwise some members would wait for the
// sum while others, in the collective, never vote.
//
// Pure: it decides, the caller submits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/types.h"

namespace sluice::client {

class ReturnVote {
 public:
  enum class State : std::uint8_t {
    kClosed,   // the members are where they belong, or not all are known to have left
    kOpen,     // a vote is due once the member comes to its step
    kVoting,   // the step's sum is awaited
    kDecided,  // all return with return_step()
  };

  ReturnVote(std::uint32_t members, std::uint32_t self) noexcept : members_(members), self_(self) {}

  State state() const noexcept { return state_; }
  // This member has come to the step. At any time.
  void come_to(Step step) noexcept { reached_ = std::max(reached_, step); }

  // The first step that has a vote, equal on all members.
  void open(Step step) noexcept;
  bool is_due() const noexcept { return state_ == State::kOpen && step_ <= reached_; }
  bool is_voting() const noexcept { return state_ == State::kVoting; }
  Step step() const noexcept { return step_; }  // of the vote that is due, or under way
  // In: this member's vote; out: the sum of all members'.
  std::span<float> cast(bool ready, std::uint32_t collectives);
  // The sum is there. True: all return with the next step.
  bool count();
  // 0: none is decided yet.
  Step return_step() const noexcept { return state_ == State::kDecided ? step_ : 0; }
  void close() noexcept;  // all have returned

 private:
  const std::uint32_t members_;
  const std::uint32_t self_;
  std::vector<float> votes_;  // by member: 0, or one more than the collectives that it has ended
  Step reached_ = 0;
  Step step_ = 0;
  State state_ = State::kClosed;
};

}  // namespace sluice::client

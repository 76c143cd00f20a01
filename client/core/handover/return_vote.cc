#include "client/core/handover/return_vote.h"

#include <functional>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kCountMask = 0xFFFF;  // of collectives that are at most one apart

}  // namespace

void ReturnVote::open(Step step) noexcept {
  CHECK(state_ == State::kClosed && step != 0);
  state_ = State::kOpen;
  step_ = step;
}

std::span<float> ReturnVote::cast(bool ready, std::uint32_t collectives) {
  CHECK(is_due());
  state_ = State::kVoting;
  votes_.assign(members_, 0);
  if (ready) votes_[self_] = 1 + static_cast<float>(collectives & kCountMask);
  return votes_;
}

bool ReturnVote::count() {
  CHECK(state_ == State::kVoting);
  ++step_;
  const bool agreed =
      votes_[0] != 0 && std::ranges::adjacent_find(votes_, std::not_equal_to<>()) == votes_.end();
  state_ = agreed ? State::kDecided : State::kOpen;
  return agreed;
}

void ReturnVote::close() noexcept {
  CHECK(state_ == State::kDecided);
  state_ = State::kClosed;
}

}  // namespace sluice::client

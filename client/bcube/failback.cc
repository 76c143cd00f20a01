#include "client/bcube/failback.h"

#include <algorithm>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr DurationNs kFirstWait = kSecond;
constexpr DurationNs kLongestWait = 64 * kSecond;
// What has been there for so long is no flapping box.
constexpr DurationNs kSteady = 64 * kSecond;

}  // namespace

void Failback::change(State from, State to) noexcept {
  CHECK(state_ == from && to != State::kHere);
  state_ = to;
}

void Failback::lose(TimeNs now) noexcept {
  if (is_lost()) return;
  const bool again = ended_ns_ != 0 && now - ended_ns_ < kSteady;
  wait_ns_ = again ? std::min(2 * wait_ns_, kLongestWait) : kFirstWait;
  due_ns_ = now + wait_ns_;
  state_ = State::kWaiting;
}

// Who was answered and got no further waits longer: it may be the box that comes and goes.
void Failback::fail(TimeNs now) noexcept {
  if (state_ == State::kHere || state_ == State::kWaiting) return;
  if (state_ != State::kAsking) wait_ns_ = std::min(2 * wait_ns_, kLongestWait);
  due_ns_ = now + wait_ns_;
  state_ = State::kWaiting;
}

void Failback::end(TimeNs now) noexcept {
  CHECK(is_lost());
  ended_ns_ = now;
  state_ = State::kHere;
}

}  // namespace sluice::client

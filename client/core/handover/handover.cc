#include "client/core/handover/handover.h"

#include <algorithm>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kCountMask = 0xFFFF;  // of counts that are at most one apart

}  // namespace

std::uint32_t Handover::add_row(Kind kind, std::uint32_t root) {
  CHECK(state_ == State::kSettled && root < members_);
  rows_.push_back({.kind = kind, .root = root});
  return static_cast<std::uint32_t>(rows_.size() - 1);
}

void Handover::contribute(std::uint32_t index, Step step) noexcept {
  Row& row = rows_[index];
  CHECK(step != 0 && step >= row.step);
  row.step = step;
  row.phase = Phase::kContributed;
}

void Handover::finish(std::uint32_t index) noexcept {
  Row& row = rows_[index];
  CHECK(row.phase == Phase::kContributed);
  row.phase = Phase::kDone;
}

std::size_t Handover::state_elems(std::uint32_t members, std::size_t rows) noexcept {
  return 2 * members + rows * words(members);
}

bool Handover::can_give(const Row& row, Step step) const noexcept {
  if (row.step != step || (row.kind != Kind::kAllReduce && row.root != self_)) return false;
  return row.phase == Phase::kDone || row.kind == Kind::kBroadcast;
}

void Handover::begin(Step step, std::uint32_t collectives) {
  CHECK(state_ == State::kSettled && step != 0);
  state_ = State::kExchanging;
  begun_ = step;
  collectives_ = collectives;
  states_.assign(state_elems(members_, rows_.size()), 0);
  states_[self_] = static_cast<float>(step & kCountMask);
  states_[members_ + self_] = static_cast<float>(collectives & kCountMask);
  float* word = &states_[2 * members_ + self_ / kWordBits];
  for (const Row& row : rows_) {
    if (can_give(row, step)) *word = static_cast<float>(1u << self_ % kWordBits);
    word += words(members_);
  }
}

void Handover::end_exchange() {
  CHECK(state_ == State::kExchanging);
  state_ = State::kKnown;
  bool some_behind = false;
  for (std::uint32_t member = 0; member < members_; ++member)
    some_behind |= static_cast<std::uint32_t>(states_[member]) == ((begun_ - 1) & kCountMask);
  first_step_ = some_behind ? begun_ - 1 : begun_;
}

void Handover::settle() noexcept {
  CHECK(state_ == State::kKnown);
  state_ = State::kSettled;
}

bool Handover::is_collective_over() const noexcept {
  CHECK(state_ == State::kKnown);
  const std::span<const float> ended = std::span(states_).subspan(members_, members_);
  const auto one_more = static_cast<float>((collectives_ + 1) & kCountMask);
  return std::ranges::find(ended, one_more) != ended.end();
}

bool Handover::is_ahead(std::uint32_t member) const noexcept {
  return static_cast<std::uint32_t>(states_[member]) != (first_step_ & kCountMask);
}

bool Handover::has(std::uint32_t member, std::uint32_t row) const noexcept {
  const float word = states_[2 * members_ + row * words(members_) + member / kWordBits];
  return is_ahead(member) || (static_cast<std::uint32_t>(word) >> member % kWordBits & 1) != 0;
}

// One that has the result, the same one by every member's reckoning.
std::optional<std::uint32_t> Handover::holder_of(std::uint32_t index) const noexcept {
  const Row& row = rows_[index];
  if (row.kind != Kind::kAllReduce)
    return has(row.root, index) ? std::optional(row.root) : std::nullopt;
  for (std::uint32_t member = 0; member < members_; ++member)
    if (has(member, index)) return member;
  return {};
}

Handover::Fate Handover::fate(std::uint32_t index) const noexcept {
  CHECK(state_ == State::kKnown && index < rows_.size());
  const Row& row = rows_[index];
  const std::optional<std::uint32_t> holder = holder_of(index);
  if (!holder) {
    CHECK(row.step <= first_step_);
    return row.step == first_step_ ? Fate::kContributeAgain : Fate::kContributeFirst;
  }
  if (row.kind == Kind::kReduce) return Fate::kNothing;  // its root has it
  if (*holder == self_) return Fate::kGive;
  return needs(index) ? Fate::kTake : Fate::kNothing;
}

}  // namespace sluice::client

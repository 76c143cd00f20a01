#include "client/bcube/detour.h"

#include <algorithm>
#include <functional>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kCountMask = 0xFFFF;  // of steps, which are at most one apart

}  // namespace

std::uint32_t Detour::add_row(Row row) {
  CHECK(state_ == State::kNone && row.source < ports_);
  rows_.push_back(row);
  return static_cast<std::uint32_t>(rows_.size() - 1);
}

void Detour::set_spares(const Spares& spares) noexcept {
  CHECK(state_ == State::kNone && spares.survey_lane != 0);
  spares_ = spares;
  state_ = State::kReady;
}

void Detour::give_up() noexcept {
  CHECK(state_ == State::kReady);
  state_ = State::kNone;
}

void Detour::regain() noexcept {
  CHECK(state_ == State::kNone && spares_.survey_lane != 0);
  state_ = State::kReady;
}

std::size_t Detour::survey_elems(std::uint32_t ports, std::size_t rows) noexcept {
  return 2 * ports + rows * words(ports);
}

void Detour::begin(Step step, std::uint32_t collectives) {
  CHECK(state_ == State::kReady && step != 0);
  state_ = State::kAsking;
  ++moves_;
  begun_ = step;
  collectives_ = collectives;
  survey_.assign(survey_elems(ports_, rows_.size()), 0);
  survey_[digit_] = static_cast<float>(step & kCountMask);
  survey_[ports_ + digit_] = static_cast<float>(collectives & kCountMask);
  float* word = &survey_[2 * ports_ + digit_ / kWordBits];
  for (const Row& row : rows_) {
    const bool source = row.source == digit_;
    const bool has = row.way == Way::kDown ? source && row.asked == step
                                           : (row.way == Way::kTurn || source) && row.held == step;
    if (has) *word = static_cast<float>(1u << digit_ % kWordBits);
    word += words(ports_);
  }
}

void Detour::handle_survey() {
  CHECK(state_ == State::kAsking && begun_ != 0);
  state_ = State::kMoved;
  bool some_behind = false;
  for (std::uint32_t digit = 0; digit < ports_; ++digit)
    some_behind |= static_cast<std::uint32_t>(survey_[digit]) == ((begun_ - 1) & kCountMask);
  first_step_ = vote_step_ = some_behind ? begun_ - 1 : begun_;
}

bool Detour::is_collective_over() const noexcept {
  CHECK(state_ == State::kMoved);
  const std::span<const float> over = std::span(survey_).subspan(ports_, ports_);
  const auto one_more = static_cast<float>((collectives_ + 1) & kCountMask);
  return std::ranges::find(over, one_more) != over.end();
}

bool Detour::is_ahead(std::uint32_t digit) const noexcept {
  return static_cast<std::uint32_t>(survey_[digit]) != (first_step_ & kCountMask);
}

bool Detour::has(std::uint32_t digit, std::uint32_t row) const noexcept {
  const float word = survey_[2 * ports_ + row * words(ports_) + digit / kWordBits];
  return is_ahead(digit) || (static_cast<std::uint32_t>(word) >> digit % kWordBits & 1) != 0;
}

std::span<float> Detour::vote(bool ready, std::uint32_t collectives) {
  CHECK(is_vote_due() && back_step_ == 0);
  voting_ = true;
  votes_.assign(ports_, 0);
  if (ready) votes_[digit_] = 1 + static_cast<float>(collectives & kCountMask);
  return votes_;
}

bool Detour::handle_votes() {
  CHECK(voting_ && back_step_ == 0);
  voting_ = false;
  ++vote_step_;
  if (votes_[0] == 0 || std::ranges::adjacent_find(votes_, std::not_equal_to<>()) != votes_.end())
    return false;
  back_step_ = vote_step_;
  return true;
}

void Detour::go_back() noexcept {
  CHECK(state_ == State::kMoved && busy == 0 && back_step_ != 0);
  state_ = State::kReady;
  back_step_ = 0;
  ++returns_;
}

Detour::Fate Detour::fate(std::uint32_t index) const noexcept {
  CHECK(state_ == State::kMoved && index < rows_.size());
  const Row& row = rows_[index];
  if (row.way != Way::kTurn) {
    Fate fate{.over = has(row.source, index), .supplier = {}};
    if (fate.over && row.way == Way::kDown) fate.supplier = row.source;
    return fate;
  }
  for (std::uint32_t digit = 0; digit < ports_; ++digit)
    if (has(digit, index)) return {.over = true, .supplier = digit};
  return {};
}

}  // namespace sluice::client

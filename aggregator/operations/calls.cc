#include "aggregator/operations/calls.h"

#include <algorithm>

#include "aggregator/base/check.h"

namespace sluice::agg {

using wire::OutcomeCode;

Calls::Calls(std::span<const Rank> ranks, std::size_t mask_word_count)
    : ranks_(ranks.begin(), ranks.end()),
      mask_word_count_(mask_word_count),
      kept_(kRing),
      masks_(kRing * 2 * mask_word_count),
      next_(ranks.size()),
      noted_(ranks.size()),
      told_to_(ranks.size()),
      lives_(ranks.size(), 1) {
  CHECK(!ranks_.empty() && ranks_.size() <= 64 * mask_word_count);
}

Calls::Operation* Calls::find(std::uint64_t number) noexcept {
  Operation& operation = kept_[number % kRing];
  return operation.by != wire::kNoRank && operation.number == number ? &operation : nullptr;
}

Verdict Calls::call(std::size_t place, std::uint64_t number,
                    const wire::Description& what) noexcept {
  if (number >= called_by_all_ + kKeptCalls) return Verdict::kTooNew;
  Operation* operation = find(number);
  if (operation == nullptr) {
    if (number < called_by_all_) return Verdict::kTooOld;
    operation = &kept_[number % kRing];
    DCHECK(operation->by == wire::kNoRank || operation->number + kRing <= number);
    *operation = {.number = number, .what = what, .by = ranks_[place].value};
    std::fill_n(mask_of(number), 2 * mask_word_count_, std::uint64_t{0});
  }
  const bool differs = operation->what != what;
  if (differs) {
    if (broken_.open())
      broken_ = {.code = OutcomeCode::kDiffers,
                 .rank = ranks_[place].value,
                 .other = operation->by,
                 .expected = operation->what,
                 .actual = what};
    // What it tells again is noted all the same, or what it has heard of later ones is not.
    if (number >= told_to_[place]) return Verdict::kCollectiveMismatch;
  }
  const Rank bit{static_cast<std::uint16_t>(place)};
  next_[place] = std::max(next_[place], number + 1);
  check_left(place);
  if (test_bit(mask_of(number), bit)) return Verdict::kDuplicate;
  set_bit(mask_of(number), bit);
  ++operation->count;
  const bool was_last = noted_[place] <= called_by_all_;
  for (std::uint64_t& noted = noted_[place]; find(noted) != nullptr; ++noted)
    if (!test_bit(mask_of(noted), bit)) break;
  if (was_last) advance();
  return differs ? Verdict::kCollectiveMismatch : Verdict::kCall;
}

// The first operation that some member lacks.
void Calls::advance() noexcept {
  std::uint64_t least = UINT64_MAX;
  for (std::size_t place = 0; place < ranks_.size(); ++place)
    if (lives_[place]) least = std::min(least, noted_[place]);
  if (least != UINT64_MAX) called_by_all_ = std::max(called_by_all_, least);
}

// ---- what an appliance that is lost has told ----

void Calls::resume(std::size_t place, std::uint64_t first, std::uint64_t over) noexcept {
  CHECK(first <= over && noted_[place] == 0);
  next_[place] = noted_[place] = first;
  told_to_[place] = over;
  resuming_ = true;
}

void Calls::set_broken(const Fate& why) noexcept {
  if (broken_.open()) broken_ = why;
}

void Calls::hear(std::size_t place, std::uint64_t number, const wire::Description& what,
                 OutcomeCode code, std::uint16_t rank) noexcept {
  Operation* const operation = find(number);
  if (code == OutcomeCode::kOpen || operation == nullptr || number >= told_to_[place]) return;
  if (code == OutcomeCode::kCompleted) {
    if (operation->what != what) return;
    set_bit(heard_of(number), Rank{static_cast<std::uint16_t>(place)});
    if (!operation->open() || operation->heard != OutcomeCode::kOpen) return;
    operation->code = operation->heard = code;
    return;
  }
  if (!operation->open() || operation->heard != OutcomeCode::kOpen) return;
  const bool breaks = code == OutcomeCode::kLost || code == OutcomeCode::kDiffers;
  operation->heard = breaks && broken_.open() ? OutcomeCode::kCancelled : code;
  operation->cancelled_by = rank;
  operation->to_judge = resuming_ = true;
}

bool Calls::all_told() const noexcept {
  for (std::size_t place = 0; place < ranks_.size(); ++place)
    if (lives_[place] && noted_[place] < told_to_[place]) return false;
  return true;
}

bool Calls::resuming() noexcept {
  if (!resuming_) return false;
  if (!all_told()) return true;
  return resuming_ = std::ranges::any_of(kept_, [](const Operation& one) {
           return one.open() && one.heard != OutcomeCode::kOpen;
         });
}

std::size_t Calls::find_behind(std::uint64_t number,
                               std::array<wire::Behind, wire::kMaxBehind>& behind) const noexcept {
  std::size_t count = 0;
  for (std::size_t place = 0; place < ranks_.size() && count < behind.size(); ++place)
    if (lives_[place] && next_[place] <= number)
      behind[count++] = {.rank = ranks_[place].value,
                         .operations = static_cast<std::uint32_t>(number + 1 - next_[place])};
  return count;
}

void Calls::remove(std::size_t place) noexcept {
  if (!lives_[place]) return;
  lives_[place] = 0;
  if (broken_.open()) broken_ = {.code = OutcomeCode::kLost, .rank = ranks_[place].value};
  advance();
  // What nobody that lives has the results of is complete if its chunks are.
  for (Operation& operation : kept_) {
    if (operation.by == wire::kNoRank || operation.heard != OutcomeCode::kCompleted) continue;
    std::uint64_t* const heard = heard_of(operation.number);
    clear_bit(heard, Rank{static_cast<std::uint16_t>(place)});
    if (std::any_of(heard, heard + mask_word_count_, [](std::uint64_t word) { return word != 0; }))
      continue;
    operation.code = operation.heard = OutcomeCode::kOpen;
  }
}

void Calls::leave(std::size_t place, std::uint64_t from) noexcept {
  if (!lives_[place]) return;
  lives_[place] = 0;
  if (from < left_from_) {
    left_from_ = from;
    left_ = ranks_[place].value;
  }
  for (std::size_t other = 0; other < ranks_.size(); ++other) check_left(other);
  if (std::ranges::find(lives_, 1) != lives_.end()) advance();
}

// An operation that lacks a member which has left breaks the group.
void Calls::check_left(std::size_t place) noexcept {
  if (next_[place] > left_from_ && broken_.open())
    broken_ = {.code = OutcomeCode::kLost, .rank = left_};
}

bool Calls::wants_judgement(Operation& operation) noexcept {
  if (!operation.open()) return false;
  operation.to_judge |= !broken_.open() || operation.cancelled_by != wire::kNoRank;
  return operation.to_judge;
}

Calls::Operation* Calls::begin_judgement() noexcept {
  if (judging() || (resuming_ && !all_told())) return nullptr;
  for (Operation& operation : kept_) {
    if (!operation.to_judge || !operation.open()) continue;
    judging_ = operation.number;
    return &operation;
  }
  return nullptr;
}

void Calls::end_judgement(bool complete) noexcept {
  CHECK(judging());
  Operation* const operation = find(judging_);
  judging_ = kNothing;
  if (operation == nullptr) return;  // all have called it, and many after it
  CHECK(operation->to_judge && operation->open());
  operation->to_judge = false;
  complete = complete && operation->heard == OutcomeCode::kOpen;
  if (!complete && ended_ < UINT8_MAX) ++ended_;
  operation->code = complete                                 ? OutcomeCode::kCompleted
                    : operation->heard != OutcomeCode::kOpen ? operation->heard
                    : broken_.open()                         ? OutcomeCode::kCancelled
                                                             : broken_.code;
}

Fate Calls::fate_of(const Operation& operation) const noexcept {
  switch (operation.code) {
    case OutcomeCode::kOpen:
    case OutcomeCode::kNoMemory:
    case OutcomeCode::kCompleted: return {.code = operation.code};
    case OutcomeCode::kCancelled: return {.code = operation.code, .rank = operation.cancelled_by};
    default: return broken_;  // it has ended by what has broken the group
  }
}

}  // namespace sluice::agg

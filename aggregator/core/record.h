// The step record: what is decided about a step of a stream before it opens.
//
// A slot takes parts of members of `eligible` only. It is complete when at least k of them have
// their part in it and no member of `required` is missing. This rule decides every kind of
// collective: a synchronous sum has k = n, a broadcast k = 1 with eligible = required = {root}, a
// barrier k = n and no data.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "aggregator/base/check.h"
#include "aggregator/base/types.h"
#include "aggregator/core/mask.h"

namespace sluice::agg {

struct StepRecord {
  Step step = 0;
  std::uint16_t k = 0;
  MemberMask eligible;
  MemberMask required;
  // No slot completes without a part of a rank that is still eligible: the parts of a rank that is
  // gone must not move the window on, away from the only rank that can still follow.
  bool by_the_living = false;

  // How many ranks a slot could have that has these in it: a rank that is gone counts if it is in.
  std::uint16_t eligible_count(const std::uint64_t* counted_words,
                               std::size_t word_count) const noexcept {
    std::size_t count = 0;
    for (std::size_t word = 0; word < word_count; ++word)
      count +=
          static_cast<std::size_t>(std::popcount(eligible.words()[word] | counted_words[word]));
    DCHECK(count >= eligible.count());
    return static_cast<std::uint16_t>(count);
  }

  // Required ranks are eligible, and k is not more than there are.
  bool consistent() const noexcept {
    return k <= eligible.count() && required.subset_of(eligible.words(), kMaskWords);
  }

  // Death and leave are the only changes of a published record.
  void remove(Rank rank) noexcept {
    eligible.clear(rank);
    required.clear(rank);
    k = std::min(k, static_cast<std::uint16_t>(eligible.count()));
    DCHECK(consistent());
  }

  bool satisfied_by(const std::uint64_t* counted_words, std::size_t counted,
                    std::size_t word_count) const noexcept {
    DCHECK(count_bits(counted_words, word_count) == counted);
    if (counted < k || counted == 0) return false;  // as for all contributions but the last
    if (by_the_living && !eligible.empty() && !eligible.meets(counted_words, word_count))
      return false;
    return required.subset_of(counted_words, word_count);
  }

  // The record of a slot from which the ranks of `abstained_words` abstain. Each of them counts as
  // one of the k, else n - k stragglers and one rank that abstains would stop a step. At least one
  // contribution is still needed, so that a result has a gradient in it; but when all ranks have
  // abstained, the slot is complete without any.
  StepRecord without(const std::uint64_t* abstained_words, std::size_t word_count) const noexcept {
    StepRecord rest = *this;
    for (std::size_t word = 0; word < word_count; ++word) {
      rest.eligible.words()[word] &= ~abstained_words[word];
      rest.required.words()[word] &= ~abstained_words[word];
    }
    const std::size_t left = rest.eligible.count();
    const std::size_t abstained = eligible.count() - left;
    const std::size_t needed = k > abstained ? k - abstained : 1;
    rest.k = static_cast<std::uint16_t>(std::min(needed, left));
    DCHECK(rest.consistent());
    return rest;
  }
};

}  // namespace sluice::agg

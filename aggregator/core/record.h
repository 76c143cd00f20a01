// The step record: the one published decision about a step of a stream.
//
// A slot folds only members of `may` and completes when at least k of them are in and no member of
// `must` is missing. That one rule decides every kind of collective: a synchronous sum is k = n, a
// broadcast is k = 1 with may = must = {root}, a barrier is k = n without data.
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
  MemberMask may;
  MemberMask must;
  // No slot completes without a member of `may`: what a rank left behind that is gone since must
  // not move the window on, away from the only one that can still follow.
  bool by_the_living = false;

  // How many ranks a slot with these in it could have: one that is gone since counts where it is
  // in.
  std::uint16_t may_count(const std::uint64_t* counted_words,
                          std::size_t word_count) const noexcept {
    std::size_t count = 0;
    for (std::size_t word = 0; word < word_count; ++word)
      count += static_cast<std::size_t>(std::popcount(may.words()[word] | counted_words[word]));
    DCHECK(count >= may.count());
    return static_cast<std::uint16_t>(count);
  }

  // Nobody must be in who may not, and no more are waited for than there are.
  bool consistent() const noexcept {
    return k <= may.count() && must.subset_of(may.words(), kMaskWords);
  }

  // Death and leave are the only changes of a published record.
  void remove(Rank rank) noexcept {
    may.clear(rank);
    must.clear(rank);
    const auto may_count = static_cast<std::uint16_t>(may.count());
    if (k > may_count) k = may_count;
    DCHECK(consistent());
  }

  bool satisfied_by(const std::uint64_t* counted_words, std::size_t counted,
                    std::size_t word_count) const noexcept {
    DCHECK(count_bits(counted_words, word_count) == counted);
    if (counted < k || counted == 0) return false;  // as for all contributions but the last
    if (by_the_living && !may.empty() && !may.meets(counted_words, word_count)) return false;
    return must.subset_of(counted_words, word_count);
  }

  // The same record for a slot that the ranks of `passed_words` have nothing for. Each of them
  // takes a place among the k, else n - k stragglers and a pass would stop a step; but never the
  // last one, so that a result has somebody's gradient. Nobody is left when all have passed: then
  // the slot is complete without any.
  StepRecord without(const std::uint64_t* passed_words, std::size_t word_count) const noexcept {
    StepRecord rest = *this;
    for (std::size_t word = 0; word < word_count; ++word) {
      rest.may.words()[word] &= ~passed_words[word];
      rest.must.words()[word] &= ~passed_words[word];
    }
    const std::size_t left = rest.may.count();
    const std::size_t passed = may.count() - left;
    const std::size_t needed = k > passed ? k - passed : 1;
    rest.k = static_cast<std::uint16_t>(std::min(needed, left));
    DCHECK(rest.consistent());
    return rest;
  }
};

}  // namespace sluice::agg

// A set of ranks of a job of any size: the mask of a result in the oracle, or the ranks that were
// ever cut off. It is not the aggregator's own type, so that each checks the other.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "tests/sim/random.h"

namespace sluice::sim {

class RankSet {
 public:
  // Ranks 0 .. 63 are the bits of a word: tests write small sets as numbers.
  constexpr RankSet(std::uint64_t first_word = 0) : words_{first_word} {}
  static RankSet below(std::size_t count) {
    RankSet set;
    for (std::size_t rank = 0; rank < count; ++rank)
      set.add(Rank{static_cast<std::uint16_t>(rank)});
    return set;
  }
  static RankSet of(const std::array<std::uint64_t, kMaskWords>& words) {
    RankSet set;
    set.words_ = words;
    return set;
  }

  void set_word(std::size_t index, std::uint64_t word) { words_[index] = word; }
  std::uint64_t word(std::size_t index) const { return words_[index]; }
  void add(Rank rank) { words_[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64); }
  bool has(Rank rank) const { return words_[rank.value / 64] >> (rank.value % 64) & 1; }
  int count() const {
    int total = 0;
    for (const std::uint64_t word : words_) total += std::popcount(word);
    return total;
  }
  bool empty() const { return *this == RankSet{}; }
  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < words_.size(); ++i)
      if (words_[i] != 0) hash = mix(hash ^ words_[i], i);
    return hash;
  }

  template <class Action>
  void for_each(Action action) const {
    for (std::size_t i = 0; i < words_.size(); ++i)
      for (std::uint64_t left = words_[i]; left != 0; left &= left - 1)
        action(Rank{static_cast<std::uint16_t>(64 * i + std::countr_zero(left))});
  }

  RankSet& operator|=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  RankSet& operator&=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
    return *this;
  }
  // The ranks of this set that are not in `other`.
  RankSet without(const RankSet& other) const {
    RankSet rest = *this;
    for (std::size_t i = 0; i < words_.size(); ++i) rest.words_[i] &= ~other.words_[i];
    return rest;
  }
  friend RankSet operator&(RankSet a, const RankSet& b) { return a &= b; }
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  std::array<std::uint64_t, kMaskWords> words_;
};

}  // namespace sluice::sim

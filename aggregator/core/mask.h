// Sets of ranks, which travel as ceil(n / 64) words.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// Set, test and count bits of any run of words: the masks of slots are one array without a wrapper.
inline bool test_bit(const std::uint64_t* words, Rank rank) noexcept {
  return words[rank.value / 64] >> (rank.value % 64) & 1;
}
inline void set_bit(std::uint64_t* words, Rank rank) noexcept {
  words[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
}

inline void clear_bit(std::uint64_t* words, Rank rank) noexcept {
  words[rank.value / 64] &= ~(std::uint64_t{1} << (rank.value % 64));
}

inline std::size_t count_bits(const std::uint64_t* words, std::size_t word_count) noexcept {
  std::size_t total = 0;
  for (std::size_t i = 0; i < word_count; ++i)
    total += static_cast<std::size_t>(std::popcount(words[i]));
  return total;
}

inline bool disjoint(const std::uint64_t* left, const std::uint64_t* right,
                     std::size_t word_count) noexcept {
  for (std::size_t i = 0; i < word_count; ++i)
    if (left[i] & right[i]) return false;
  return true;
}

// A set of up to kMaxWorkers ranks.
class MemberMask {
 public:
  static MemberMask all(std::size_t worker_count) noexcept {
    DCHECK(worker_count <= kMaxWorkers);
    MemberMask mask;
    for (std::size_t rank = 0; rank < worker_count; ++rank)
      mask.set(Rank{static_cast<std::uint16_t>(rank)});
    return mask;
  }
  static MemberMask only(Rank rank) noexcept {
    MemberMask mask;
    mask.set(rank);
    return mask;
  }

  void set(Rank rank) noexcept {
    DCHECK(rank.value < kMaxWorkers);
    set_bit(words_.data(), rank);
  }
  void clear(Rank rank) noexcept {
    DCHECK(rank.value < kMaxWorkers);
    clear_bit(words_.data(), rank);
  }
  bool test(Rank rank) const noexcept {
    DCHECK(rank.value < kMaxWorkers);
    return test_bit(words_.data(), rank);
  }
  std::size_t count() const noexcept { return count_bits(words_.data(), words_.size()); }
  bool empty() const noexcept { return count() == 0; }
  const std::uint64_t* words() const noexcept { return words_.data(); }
  std::uint64_t* words() noexcept { return words_.data(); }

  // Whether every member of this set is in `words` (of `word_count` words).
  bool subset_of(const std::uint64_t* words, std::size_t word_count) const noexcept {
    DCHECK(word_count <= kMaskWords);
    for (std::size_t i = 0; i < word_count; ++i)
      if (words_[i] & ~words[i]) return false;
    return true;
  }

  // Whether some member of this set is in `words`.
  bool meets(const std::uint64_t* words, std::size_t word_count) const noexcept {
    DCHECK(word_count <= kMaskWords);
    for (std::size_t i = 0; i < word_count; ++i)
      if (words_[i] & words[i]) return true;
    return false;
  }

  friend bool operator==(const MemberMask&, const MemberMask&) = default;

 private:
  std::array<std::uint64_t, kMaskWords> words_{};
};

}  // namespace sluice::agg

// Lists of ranks in messages to people, for both ends. Cold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

inline constexpr std::size_t kListedRanks = 8;  // further ranks are only counted

// "rank 2", "ranks 2, 5", "ranks 0, 1, ... and 40 more"
inline std::string list_ranks(const std::uint64_t* words, std::size_t word_count) {
  std::string list;
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < 64 * word_count; ++rank) {
    if (!(words[rank / 64] >> (rank % 64) & 1)) continue;
    if (++count <= kListedRanks) list += (count == 1 ? "" : ", ") + std::to_string(rank);
  }
  if (count > kListedRanks) list += " and " + std::to_string(count - kListedRanks) + " more";
  return (count == 1 ? "rank " : "ranks ") + (count == 0 ? "none" : list);
}

}  // namespace sluice

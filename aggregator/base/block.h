// A block's chunks as the bits of a word, its first one the least: in lists of chunks on the wire
// and in what both ends remember of them.
#pragma once

#include <bit>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"

namespace sluice {

constexpr std::uint64_t chunk_bit(ChunkIndex chunk) noexcept {
  return std::uint64_t{1} << (chunk % kChunksPerBlock);
}
constexpr bool has_chunk(std::uint64_t chunks, ChunkIndex chunk) noexcept {
  return chunks >> (chunk % kChunksPerBlock) & 1;
}
// Of a block's chunks, of which there are some.
constexpr ChunkIndex first_chunk(std::uint32_t block, std::uint64_t chunks) noexcept {
  return block * kChunksPerBlock + static_cast<ChunkIndex>(std::countr_zero(chunks));
}
constexpr bool at_most_one(std::uint64_t chunks) noexcept { return (chunks & (chunks - 1)) == 0; }
constexpr std::uint32_t count_of(std::uint64_t chunks) noexcept {
  if (at_most_one(chunks)) return chunks != 0;  // a call of a function without the instruction
  return static_cast<std::uint32_t>(std::popcount(chunks));
}

}  // namespace sluice

// The chunks of a block as the bits of a word, the first chunk as the lowest bit: for lists of
// chunks on the wire and for the state that both ends keep of them.
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
// The first of a block's chunks. Precondition: there is one.
constexpr ChunkIndex first_chunk(std::uint32_t block, std::uint64_t chunks) noexcept {
  return block * kChunksPerBlock + static_cast<ChunkIndex>(std::countr_zero(chunks));
}
constexpr bool at_most_one(std::uint64_t chunks) noexcept { return (chunks & (chunks - 1)) == 0; }
constexpr std::uint32_t count_of(std::uint64_t chunks) noexcept {
  if (at_most_one(chunks)) return chunks != 0;  // a call of a function without the instruction
  return static_cast<std::uint32_t>(std::popcount(chunks));
}

}  // namespace sluice

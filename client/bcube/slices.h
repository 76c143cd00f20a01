// How a gradient is cut for its ways through a BCube: into slices of whole chunks, each of which
// one thread carries and one server owns in the end.
//
// Every worker cuts alike. A slice is small enough for the next stage to begin while its neighbours
// are still in this one, and each of the n^k owners and k threads gets as many elements as any
// other, to within a slice. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/bcube/topology.h"
#include "client/core/calls/layout.h"

namespace sluice::client {

inline constexpr std::uint32_t kSliceChunks = 16;  // at most
inline constexpr std::uint32_t kSlicesALevel = 8;  // of an owner in a thread, if there are as many

struct Slice {
  std::uint32_t tensor = 0;
  std::uint64_t first_elem = 0;
  std::uint64_t elem_count = 0;
  std::uint32_t thread = 0;
  std::uint32_t owner = 0;  // a rank
};

// Of each of a tensor's chunks but the last, at every stage: half-way sums are float32. With one
// level there are none, and chunks are an ordinary job's.
inline std::uint32_t chunk_elems_of(const Bcube& bcube, const Layout& layout,
                                    std::uint32_t tensor) noexcept {
  return bcube.levels() == 1 ? layout.chunk_elems(tensor)
                             : static_cast<std::uint32_t>(layout.chunk_bytes() / sizeof(float));
}

// In the order of the layout, so those of a tensor stand together.
std::vector<Slice> cut(const Bcube& bcube, const Layout& layout);

}  // namespace sluice::client

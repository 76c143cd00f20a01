#include "client/bcube/slices.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

// The owner whose turn is the `turn`th. Of n in a row each has another digit at every level, so
// that at no switch slice after slice goes to the same server while the others' ports idle.
std::uint32_t owner_of_turn(const Bcube& bcube, std::uint32_t turn) noexcept {
  const std::uint32_t n = bcube.switch_ports();
  std::uint32_t owner = 0, digit = 0, power = 1;
  for (std::uint32_t level = 0; level < bcube.levels(); ++level, power *= n) {
    digit = (digit + turn / power) % n;
    owner += digit * power;
  }
  return owner;
}

std::uint64_t chunks_of(const Bcube& bcube, const Layout& layout, std::uint32_t tensor) noexcept {
  const std::uint64_t chunk_elems = chunk_elems_of(bcube, layout, tensor);
  return (layout.tensor(tensor).elem_count + chunk_elems - 1) / chunk_elems;
}

// Small gradients are cut smaller: a slice's stages follow each other, so what one owner has in one
// thread should be many slices.
std::uint64_t most_chunks(const Bcube& bcube, const Layout& layout, std::uint64_t takers) noexcept {
  if (bcube.levels() == 1) return kSliceChunks;
  std::uint64_t chunks = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    chunks += chunks_of(bcube, layout, tensor);
  return std::clamp<std::uint64_t>(chunks / (takers * kSlicesALevel * bcube.levels()), 1,
                                   kSliceChunks);
}

}  // namespace

std::vector<Slice> cut(const Bcube& bcube, const Layout& layout) {
  // Who has least so far gets the next slice; of equals, threads take turns before owners do.
  using Load = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;  // elements, turn, thread
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::uint32_t turn = 0; turn < bcube.servers(); ++turn)
    for (std::uint32_t thread = 0; thread < bcube.levels(); ++thread)
      loads.emplace(0, turn, thread);
  const std::uint64_t takers = loads.size();

  const std::uint64_t most = most_chunks(bcube, layout, takers);
  std::vector<Slice> slices;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    const std::uint64_t elem_count = layout.tensor(tensor).elem_count;
    const std::uint64_t chunk_elems = chunk_elems_of(bcube, layout, tensor);
    const std::uint64_t chunks = chunks_of(bcube, layout, tensor);
    const std::uint64_t rounds = (chunks + takers * most - 1) / (takers * most);
    const std::uint64_t slice_chunks = (chunks + takers * rounds - 1) / (takers * rounds);
    CHECK(slice_chunks >= 1 && slice_chunks <= most);
    for (std::uint64_t first = 0; first < elem_count; first += slice_chunks * chunk_elems) {
      const auto [load, turn, thread] = loads.top();
      const std::uint64_t count = std::min(slice_chunks * chunk_elems, elem_count - first);
      loads.pop();
      loads.emplace(load + count, turn, thread);
      slices.push_back({tensor, first, count, thread, owner_of_turn(bcube, turn)});
    }
  }
  return slices;
}

}  // namespace sluice::client

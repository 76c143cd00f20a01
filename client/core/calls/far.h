// A far tensor: its gradient, its residual and its average lie where the session can't read them,
// in the memory of a device. The session gets its chunks as they travel, and leaves behind what
// became of each and what its result was; whoever submits it (client/device) does the rest.
//
// One is handed to and fro: until a submission of it begins and after its end it is the
// submitter's, in between the session's, but for what is given back, which is under the session's
// lock. The memory that it points to is the submitter's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/check.h"

namespace sluice::client {

// What its residual keeps of a chunk's value. Numbers are those of the device's kernels.
enum class Fate : std::uint8_t {
  kOpen = 0,       // nothing is known: the residual stays as it was
  kDelivered = 1,  // what packing lost
  kMissed = 2,     // all of it
  kUnknown = 3     // nothing, also of what was left before
};

// What came for a chunk; its average is what the bytes hold * factor / divisor. Laid out as the
// device's kernels read it.
struct FarResult {
  std::uint64_t first_byte = 0;
  std::uint32_t bytes = 0;  // of an entry of a sparse packet, or of a dense payload; 0: all is zero
  float factor = 1;
  float divisor = 1;
  std::uint32_t unused = 0;
};

// Where a chunk's bytes are among those of its tensor, as the device's kernels write it.
struct FarExtent {
  static constexpr unsigned kCountBits = 16;
  std::uint64_t bits = 0;
  static constexpr FarExtent of(std::uint64_t first_byte, std::size_t bytes) noexcept {
    return {first_byte << kCountBits | bytes};
  }
  constexpr std::uint64_t first_byte() const noexcept { return bits >> kCountBits; }
  constexpr std::size_t bytes() const noexcept { return bits & ((1u << kCountBits) - 1); }
};

struct FarTensor {
  // Read by the session. Chunk i is what extents[i] says: an entry of a sparse packet, nothing, or,
  // as long as that, a dense payload. No extents: dense payloads, one behind the other.
  const std::uint8_t* packed = nullptr;
  const FarExtent* extents = nullptr;
  std::size_t dense_bytes = 0;  // of every chunk but the last
  // Written by the session.
  std::span<Fate> fates;         // by chunk
  std::span<FarResult> results;  // likewise
  std::span<std::uint8_t> values;
  std::size_t value_bytes = 0;  // of results, in the order in which they came
  // Dense payloads, dense_bytes apart, that will not be delivered after all, and whose they are.
  std::vector<std::uint32_t> given_chunks;
  std::vector<std::uint8_t> given_payloads;

  std::span<const std::uint8_t> packed_of(std::uint32_t chunk, std::size_t dense) const noexcept {
    if (extents == nullptr) return {packed + chunk * dense_bytes, dense};
    return {packed + extents[chunk].first_byte(), extents[chunk].bytes()};
  }
  void keep_result(std::uint32_t chunk, std::span<const std::uint8_t> bytes, float factor,
                   float divisor) noexcept {
    CHECK(chunk < results.size() && values.size() - value_bytes >= bytes.size());
    std::copy(bytes.begin(), bytes.end(),
              values.begin() + static_cast<std::ptrdiff_t>(value_bytes));
    results[chunk] = {value_bytes, static_cast<std::uint32_t>(bytes.size()), factor, divisor, 0};
    value_bytes += bytes.size();
  }
};

}  // namespace sluice::client

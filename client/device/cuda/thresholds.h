// Kernels that find thresholds: the sums of client/prune/magnitudes.h, in its order of additions,
// and the element of a rank, by counting the elements in ranges of magnitudes as that file does.
// Thresholds and counts stay on the device, so that the host need not wait for them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "client/device/cuda/lanes.h"
#include "client/prune/magnitudes.h"

namespace sluice::cuda {

using client::kSumBlock;
using client::kSumColumns;
using client::kSumLanes;

struct Elements {
  const float* gradient = nullptr;
  const float* residual = nullptr;
  std::uint64_t elem_count = 0;
  SLUICE_LANE float value(std::uint64_t at) const { return gradient[at] + residual[at]; }
};

// Equals usable() in client/prune/threshold.cc.
SLUICE_LANE float usable(double threshold) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  constexpr float kMost = std::numeric_limits<float>::max();
  if (!(threshold <= static_cast<double>(kMost))) return kMost;
  const float rounded = static_cast<float>(threshold);
  return rounded < kLeast ? kLeast : rounded;
}

struct Sums {
  double left = 0;
  double right = 0;
};

constexpr std::uint64_t sum_blocks(std::uint64_t elem_count) {
  return (elem_count + kSumBlock - 1) / kSumBlock;
}

// Sums each block of kSumBlock elements, with a lane for each of its kSumLanes partial sums.
struct SumBlocks {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kBlocksAtOnce = kThreads / kSumLanes;
  static constexpr int kPhases = 2;
  static constexpr int kAllWait = 1;
  struct Shared {
    float left[kThreads];
    float right[kThreads];
  };

  Elements from;
  const float* least =
      nullptr;  // null: sums values and squares; else magnitudes from *least on, and counts them
  Sums* out = nullptr;  // a block's

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    const std::uint64_t number =
        std::uint64_t{lane.block} * kBlocksAtOnce + lane.thread / kSumLanes;
    if (phase == 0) return sum_lane(number, lane.thread, shared);
    if (lane.thread % kSumLanes != 0 || number >= sum_blocks(from.elem_count)) return;
    Sums sums;
    for (std::uint32_t i = 0; i < kSumLanes; ++i) {
      sums.left += static_cast<double>(shared.left[lane.thread + i]);
      sums.right += static_cast<double>(shared.right[lane.thread + i]);
    }
    out[number] = sums;
  }

  SLUICE_LANE void sum_lane(std::uint64_t number, std::uint32_t thread, Shared& shared) const {
    const std::uint64_t begin = number * kSumBlock;
    const std::uint64_t behind = begin + kSumBlock;
    const std::uint64_t end = behind < from.elem_count ? behind : from.elem_count;
    const std::uint32_t least_bits = least == nullptr ? 0 : bits_of(*least);
    float left = 0;
    float right = 0;
    for (std::uint64_t at = begin + thread % kSumLanes; at < end; at += kSumLanes) {
      const float value = from.value(at);
      if (least == nullptr) {
        left += value;
        right += value * value;
      } else if (magnitude_of(value) >= least_bits) {
        left += float_of(magnitude_of(value));
        right += 1;
      }
    }
    shared.left[thread] = left;
    shared.right[thread] = right;
  }
};

// Adds up the blocks' sums and computes the threshold. One block of threads.
struct FinishSums {
  static constexpr std::uint32_t kThreads = kSumColumns;
  static constexpr int kPhases = 2;
  static constexpr int kAllWait = 1;
  struct Shared {
    double left[kSumColumns];
    double right[kSumColumns];
  };

  const Sums* blocks = nullptr;
  std::uint64_t elem_count = 0;
  double sigmas = 0;  // 0: the mean of what SumBlocks found above *threshold
  Sums* total = nullptr;
  float* threshold = nullptr;

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    const std::uint64_t count = sum_blocks(elem_count);
    if (phase == 0) {
      Sums sums;
      for (std::uint64_t block = lane.thread; block < count; block += kSumColumns) {
        sums.left += blocks[block].left;
        sums.right += blocks[block].right;
      }
      shared.left[lane.thread] = sums.left;
      shared.right[lane.thread] = sums.right;
    } else if (lane.thread == 0) {
      Sums sums;
      for (std::uint32_t column = 0; column < kSumColumns; ++column) {
        sums.left += shared.left[column];
        sums.right += shared.right[column];
      }
      *total = sums;
      if (sigmas != 0)
        *threshold = usable(sigmas * deviation(sums));
      else if (sums.right != 0)
        *threshold = usable(sums.left / sums.right);
    }
  }

  SLUICE_LANE double deviation(const Sums& sums) const {
    const auto count = static_cast<double>(elem_count);
    const double mean = sums.left / count;
    const double variance = sums.right / count - mean * mean;
    return std::sqrt(0 < variance ? variance : 0);  // 0 for a NaN too
  }
};

// ---- the element of a rank: three passes, of 11, 10 and 10 bits of the magnitudes ----

inline constexpr int kSelectPasses = 3;
inline constexpr std::uint32_t kMostRanges = 2048;
constexpr std::uint32_t select_ranges(int pass) { return pass == 0 ? kMostRanges : 1024; }
constexpr int select_shift(int pass) { return 20 - 10 * pass; }

// All zeros before the first pass.
struct Selection {
  std::uint32_t counts[kMostRanges];
  std::uint64_t rank;  // within the range that was chosen last
  std::uint32_t low;   // the first magnitude of that range
};

struct CountRanges {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr int kPhases = 3;
  static constexpr int kAllWait = 1;
  struct Shared {
    std::uint32_t counts[kMostRanges];
  };

  Elements from;
  int pass = 0;
  Selection* selection = nullptr;

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    const std::uint32_t ranges = select_ranges(pass);
    if (phase == 1) {
      const std::uint32_t low = selection->low;
      const int shift = select_shift(pass);
      const std::uint64_t stride = std::uint64_t{lane.blocks} * kThreads;
      for (std::uint64_t at = std::uint64_t{lane.block} * kThreads + lane.thread;
           at < from.elem_count; at += stride) {
        const std::uint32_t range = (magnitude_of(from.value(at)) - low) >> shift;
        if (range < ranges) atomic_add(shared.counts[range], 1);
      }
      return;
    }
    for (std::uint32_t range = lane.thread; range < ranges; range += kThreads) {
      if (phase == 0)
        shared.counts[range] = 0;
      else if (shared.counts[range] != 0)
        atomic_add(selection->counts[range], shared.counts[range]);
    }
  }
};

// Chooses the range that the rank falls into; after the last pass it is one magnitude, the
// threshold. One block of threads.
struct ChooseRange {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr int kPhases = 3;
  static constexpr int kAllWait = 1;
  struct Shared {
    std::uint32_t parts[kThreads];
  };

  int pass = 0;
  std::uint64_t rank = 0;
  Selection* selection = nullptr;
  float* threshold = nullptr;

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    const std::uint32_t part = select_ranges(pass) / kThreads;
    if (phase == 0) {
      std::uint32_t count = 0;
      for (std::uint32_t i = 0; i < part; ++i) count += selection->counts[lane.thread * part + i];
      shared.parts[lane.thread] = count;
    } else if (phase == 1) {
      if (lane.thread == 0) choose(shared);
    } else {
      for (std::uint32_t i = 0; i < part; ++i) selection->counts[lane.thread * part + i] = 0;
    }
  }

  // Counts from the greatest magnitude down. Counts are below 2^32, so the rest of the rank fits
  // too.
  SLUICE_LANE void choose(const Shared& shared) const {
    const std::uint32_t part = select_ranges(pass) / kThreads;
    std::uint64_t left = pass == 0 ? rank : selection->rank;
    std::uint32_t at = kThreads - 1;
    for (; at > 0 && shared.parts[at] < left; --at) left -= shared.parts[at];
    std::uint32_t range = at * part + part - 1;
    for (; range > at * part && selection->counts[range] < left; --range)
      left -= selection->counts[range];
    selection->rank = left;
    selection->low += range << select_shift(pass);
    if (pass == kSelectPasses - 1)
      *threshold = usable(static_cast<double>(float_of(selection->low)));
  }
};

}  // namespace sluice::cuda

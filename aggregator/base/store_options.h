// The options of a job of kind store, as its join states them: the bound on staleness, and how
// pushes update its parameters.
//
// The struct travels as it is in memory (wire/control.h), so every field has a fixed size.
// store/optimizer.h and store/spec.h check the values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

enum class UpdateRule : std::uint8_t {
  kDelta,  // workers push differences of parameters: each runs its own optimizer
  kSgd,    // workers push gradients
  kAdam,
};

inline constexpr std::uint32_t kNoBound = UINT32_MAX;  // asynchronous

struct [[gnu::packed]] UpdateOptions {
  UpdateRule rule = UpdateRule::kDelta;
  double weight_decay = 0;
  // kSgd
  double momentum = 0;
  double dampening = 0;
  std::uint8_t nesterov = 0;  // 0 or 1
  // kAdam
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  // 1: m + (1 - beta1) (g - m), as PyTorch 2 computes the first moment.
  std::uint8_t interpolates = 0;

  // The number of arrays of a chunk's size that are kept beside its parameters.
  std::size_t state_count() const noexcept {
    if (rule == UpdateRule::kAdam) return 2;
    return rule == UpdateRule::kSgd && momentum != 0 ? 1 : 0;
  }
  friend bool operator==(const UpdateOptions&, const UpdateOptions&) = default;
};

// Versions of a store's chunk. A store gives those from kFirstVersion on: an older one is of
// initial values that a worker has sent to an appliance which is lost, and of which it has heard
// nothing.
using StoreVersion = std::uint64_t;
inline constexpr StoreVersion kNoVersion = 0;
inline constexpr StoreVersion kUnseenVersion = 1;
inline constexpr StoreVersion kFirstVersion = 2;
inline constexpr StoreVersion kMostVersion = StoreVersion{1} << 62;  // that a worker may state

// The wish of a worker for a store that was retained when its workers left, and for its own store
// later.
enum class StoreKeep : std::uint8_t {
  kKeep,  // goes on with the retained store; outlives its workers
  kEnd,   // ends with its last worker
  kAnew,  // discards the retained store; outlives its workers
  kTake,  // goes on with the retained store, and creates none
};

struct [[gnu::packed]] StoreOptions {
  // Iteration t may read parameters that hold all workers' iterations up to t - 1 - bound. 0: the
  // pushes of an iteration are gathered and applied together, once.
  std::uint32_t bound = 0;
  UpdateOptions update;
  friend bool operator==(const StoreOptions&, const StoreOptions&) = default;
};
static_assert(sizeof(StoreOptions) == 55);

}  // namespace sluice

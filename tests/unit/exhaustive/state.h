// One state of a small job: the knowledge of its shards and its workers after some schedule.
//
// A state fits 64 bits, and states that differ only by the names of workers or of chunks are one.
// Packets under way are no part of it. The network may hold a copy of every packet that was ever
// sent, so any contribution that a worker can have made may arrive now, once more, or never: loss,
// delay, reordering and any number of duplicates need no bits.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "aggregator/base/types.h"

namespace sluice::exhaustive {

inline constexpr std::size_t kMostWorkers = 4;
inline constexpr std::size_t kChunks = 2;
inline constexpr std::size_t kSteps = 2;
inline constexpr Step kFirstStep = 3;  // the steps before are k = n in every job
inline constexpr std::uint8_t kBoth = 0b11;

// A worker's contribution to the second step: a gradient computed on it, or the late chunks of its
// gradient of the first step. Decided when the first chunk is counted.
enum class Mode : std::uint8_t { kUndecided, kFresh, kCatchUp };

// Arrays are indexed by step - kFirstStep and hold one bit a chunk.
struct WorkerState {
  // The worker's contribution is in the slot's mask, or the worker has passed: see Mode::kCatchUp.
  std::array<std::uint8_t, kSteps> counted{};
  std::array<std::uint8_t, kSteps> seen{};  // it has the result
  Mode mode = Mode::kUndecided;
  bool dead = false;

  friend bool operator==(const WorkerState&, const WorkerState&) = default;
};

struct ShardState {
  bool adopted = true;        // has taken over the open step's record
  bool without_dead = false;  // the dead worker is not in that record
  bool told = false;          // has carried out the command that a member is gone
  bool sweeping = false;      // has yet to look at its open slots after that

  friend bool operator==(const ShardState&, const ShardState&) = default;
};

struct State {
  std::array<WorkerState, kMostWorkers> workers;
  std::array<std::uint8_t, kSteps> complete{};
  std::array<std::uint8_t, kSteps> lowered{};  // completed with a k that a death had lowered
  std::array<ShardState, kChunks> shards;

  Step open_step() const noexcept {
    if (complete[0] != kBoth) return kFirstStep;
    return complete[1] != kBoth ? kFirstStep + 1 : kFirstStep + 2;
  }
  bool anyone_dead() const noexcept {
    for (const WorkerState& worker : workers)
      if (worker.dead) return true;
    return false;
  }

  friend bool operator==(const State&, const State&) = default;
};

using Key = std::uint64_t;

// The key of all states that are equal but for names; never 0.
Key canonical_key(const State& state, std::size_t worker_count, std::size_t shard_count) noexcept;
// The key of this state alone, names included.
Key plain_key(const State& state) noexcept;
State state_of(Key key) noexcept;
// A number that grows with every event that changes a state, so that no event leads back.
int progress_of(const State& state) noexcept;
// One line for people.
std::string describe(const State& state, std::size_t worker_count);

}  // namespace sluice::exhaustive

#include "tests/unit/exhaustive/state.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sluice::exhaustive {
namespace {

constexpr int kWorkerBits = 11;

Key pack(const WorkerState& worker) noexcept {
  return Key{worker.counted[0]} | Key{worker.counted[1]} << 2 | Key{worker.seen[0]} << 4 |
         Key{worker.seen[1]} << 6 | static_cast<Key>(worker.mode) << 8 | Key{worker.dead} << 10;
}

WorkerState unpack_worker(Key bits) noexcept {
  const auto pair = [bits](int at) { return static_cast<std::uint8_t>(bits >> at & kBoth); };
  return {.counted = {pair(0), pair(2)},
          .seen = {pair(4), pair(6)},
          .mode = static_cast<Mode>(pair(8)),
          .dead = (bits >> 10 & 1) != 0};
}

Key pack(const ShardState& shard) noexcept {
  return Key{shard.adopted} | Key{shard.without_dead} << 1 | Key{shard.told} << 2 |
         Key{shard.sweeping} << 3;
}

void swap_bits(std::uint8_t& pair) noexcept {
  pair = static_cast<std::uint8_t>((pair & 1) << 1 | pair >> 1);
}

// Nothing is ordered by rank, so workers may be sorted.
void sort_workers(State& state, std::size_t worker_count) noexcept {
  for (std::size_t i = 1; i < worker_count; ++i)
    for (std::size_t j = i; j > 0 && pack(state.workers[j]) < pack(state.workers[j - 1]); --j)
      std::swap(state.workers[j], state.workers[j - 1]);
}

// With two shards each has one chunk, and they change places with it.
void swap_chunks(State& state, std::size_t shard_count) noexcept {
  for (WorkerState& worker : state.workers)
    for (std::size_t step = 0; step < kSteps; ++step) {
      swap_bits(worker.counted[step]);
      swap_bits(worker.seen[step]);
    }
  for (std::size_t step = 0; step < kSteps; ++step) {
    swap_bits(state.complete[step]);
    swap_bits(state.lowered[step]);
  }
  if (shard_count == kChunks) std::swap(state.shards[0], state.shards[1]);
}

}  // namespace

Key plain_key(const State& state) noexcept {
  Key key = Key{1} << 63;
  for (std::size_t i = 0; i < kMostWorkers; ++i) key |= pack(state.workers[i]) << kWorkerBits * i;
  key |= Key{state.complete[0]} << 44 | Key{state.complete[1]} << 46;
  key |= Key{state.lowered[0]} << 48 | Key{state.lowered[1]} << 50;
  for (std::size_t i = 0; i < kChunks; ++i) key |= pack(state.shards[i]) << (52 + 4 * i);
  return key;
}

Key canonical_key(const State& state, std::size_t worker_count, std::size_t shard_count) noexcept {
  State named = state;
  sort_workers(named, worker_count);
  const Key key = plain_key(named);
  swap_chunks(named, shard_count);
  sort_workers(named, worker_count);
  return std::min(key, plain_key(named));
}

State state_of(Key key) noexcept {
  State state;
  for (std::size_t i = 0; i < kMostWorkers; ++i)
    state.workers[i] = unpack_worker(key >> kWorkerBits * i);
  const auto pair = [key](int at) { return static_cast<std::uint8_t>(key >> at & kBoth); };
  state.complete = {pair(44), pair(46)};
  state.lowered = {pair(48), pair(50)};
  for (std::size_t i = 0; i < kChunks; ++i) {
    const Key bits = key >> (52 + 4 * i);
    state.shards[i] = {.adopted = (bits & 1) != 0,
                       .without_dead = (bits & 2) != 0,
                       .told = (bits & 4) != 0,
                       .sweeping = (bits & 8) != 0};
  }
  return state;
}

// All bits but the shards' are only ever set. Opening a step, which sets at least one, makes shards
// forget at most that they adopted the one before.
int progress_of(const State& state) noexcept {
  const Key key = plain_key(state);
  int progress = 4 * std::popcount(key & ((Key{1} << 52) - 1));
  for (const ShardState& shard : state.shards)
    progress += 4 * shard.told + shard.adopted - shard.sweeping;
  return progress;
}

std::string describe(const State& state, std::size_t worker_count) {
  std::string text = "open " + std::to_string(state.open_step());
  const auto chunks = [](std::uint8_t bits) {
    return std::string(bits & 1 ? "a" : "-") + (bits & 2 ? "b" : "-");
  };
  for (std::size_t step = 0; step < kSteps; ++step)
    text +=
        "; step " + std::to_string(kFirstStep + step) + " complete " + chunks(state.complete[step]);
  for (std::size_t i = 0; i < worker_count; ++i) {
    const WorkerState& worker = state.workers[i];
    text += "; " + std::to_string(i) + (worker.dead ? " (dead)" : "") + " counted " +
            chunks(worker.counted[0]) + " " + chunks(worker.counted[1]) + " seen " +
            chunks(worker.seen[0]) + " " + chunks(worker.seen[1]);
    if (worker.mode == Mode::kFresh) text += " fresh";
    if (worker.mode == Mode::kCatchUp) text += " catching up";
  }
  for (const ShardState& shard : state.shards) {
    if (!shard.adopted) text += "; a shard has yet to adopt";
    if (shard.told) text += shard.sweeping ? "; a shard is to sweep" : "; a shard was told";
  }
  return text;
}

}  // namespace sluice::exhaustive

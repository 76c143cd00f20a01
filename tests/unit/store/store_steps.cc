// store_steps RULE WORKERS ITERATIONS ELEMENTS DECAY MOMENTUM DAMPENING NESTEROV BETA1 BETA2
// EPSILON INTERPOLATES: a store of one layer, bound 0, sums in rank order, for test_optimizers.py.
//
// Standard input: the initial parameters, then for each iteration the learning rate (float64) and
// every worker's gradient. Standard output: the parameters after each iteration. Floats are little-
// endian float32.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "aggregator/store/store.h"

namespace {

using namespace sluice;  // NOLINT: a program of one page

constexpr std::uint16_t kChunkElems = 96;

template <class T>
bool read(T* to, std::size_t count) {
  return std::fread(to, sizeof(T), count, stdin) == count;
}

std::size_t chunks_of(std::size_t elem_count) {
  return (elem_count + kChunkElems - 1) / kChunkElems;
}

bool push_all(agg::StoreShard& store, std::uint16_t rank, Step iteration, double rate,
              const std::vector<float>& values) {
  for (std::size_t at = 0; at < values.size(); at += kChunkElems) {
    const std::size_t count = std::min<std::size_t>(kChunkElems, values.size() - at);
    const Verdict verdict =
        store.push({.rank = Rank{rank},
                    .iteration = iteration,
                    .chunk = static_cast<ChunkIndex>(at / kChunkElems),
                    .rate = rate,
                    .block_chunks = static_cast<std::uint32_t>(chunks_of(values.size())),
                    .values = {reinterpret_cast<const std::uint8_t*>(&values[at]), count * 4}});
    if (verdict != Verdict::kFolded && verdict != Verdict::kCompleted) return false;
  }
  return true;
}

bool play(const agg::StoreSpec& spec, Step iterations, std::size_t elem_count) {
  agg::StoreShard store(spec, ShardId{0}, 1);
  std::vector<float> values(elem_count);
  if (!read(values.data(), elem_count) || !push_all(store, 0, 0, 0, values)) return false;
  for (Step iteration = 1; iteration <= iterations; ++iteration) {
    double rate = 0;
    if (!read(&rate, 1)) return false;
    for (std::uint16_t turn = 0; turn < spec.world_size; ++turn)
      if (!read(values.data(), elem_count) || !push_all(store, turn, iteration, rate, values))
        return false;
    for (ChunkIndex chunk = 0; chunk < chunks_of(elem_count); ++chunk) {
      const auto parameters = store.parameters(chunk);
      std::fwrite(parameters.data(), sizeof(float), parameters.size(), stdout);
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 13) return 2;
  const std::string rule = argv[1];
  const auto number = [&](int at) { return std::atof(argv[at]); };
  agg::StoreSpec spec{.world_size = static_cast<std::uint16_t>(number(2)),
                      .block_count = 1,
                      .max_elems = kChunkElems,
                      .in_rank_order = true};
  spec.update = {.rule = rule == "adam"  ? UpdateRule::kAdam
                         : rule == "sgd" ? UpdateRule::kSgd
                                         : UpdateRule::kDelta,
                 .weight_decay = number(5),
                 .momentum = number(6),
                 .dampening = number(7),
                 .nesterov = number(8) != 0,
                 .beta1 = number(9),
                 .beta2 = number(10),
                 .epsilon = number(11),
                 .interpolates = number(12) != 0};
  if (const Status status = agg::check_store(spec); !status.ok()) {
    std::fprintf(stderr, "store_steps: %s\n", status.message().c_str());
    return 2;
  }
  return play(spec, static_cast<Step>(number(3)), static_cast<std::size_t>(number(4))) ? 0 : 1;
}

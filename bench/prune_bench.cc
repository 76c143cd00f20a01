// The measuring half of the prune bench (prune.py runs it and explains it): Google Benchmark
// programs for the pruning of a gradient, a plain loop for the same, and memcpy.
//
//     bench_prune [--target=NAME] [--benchmark_...]
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/sparse.h"
#include "client/prune/threshold.h"

namespace sluice::client {
namespace {

constexpr std::size_t kChunkElems = 336;  // that 1,500 bytes carry
constexpr std::size_t kCacheElems = 336 * 192, kMemoryElems = 336 * 50'000;
constexpr double kDensity = 0.01;

// A gradient and a residual that grew under error feedback: it is below the threshold everywhere.
struct Tensor {
  std::vector<float> gradient, residual, left;
  float threshold = 0;

  Thresholds thresholds(const PruneOptions& options) const {
    const PruneTensor tensor{.elem_count = gradient.size()};
    return Thresholds(options, {&tensor, 1});
  }
  void find_threshold() {
    threshold =
        thresholds({.rule = PruneRule::kStatic, .fraction = kDensity}).next(0, gradient, residual);
  }
};

Tensor make_tensor(std::size_t elem_count) {
  std::mt19937_64 random(1);
  std::student_t_distribution<float> draw(4);
  Tensor tensor;
  for (std::size_t i = 0; i < elem_count; ++i) {
    tensor.gradient.push_back(1e-3f * draw(random));
    tensor.residual.push_back(1e-3f * draw(random));
  }
  tensor.left.resize(elem_count);
  tensor.find_threshold();
  for (std::size_t i = 0; i < elem_count; ++i)
    if (std::fabs(tensor.residual[i]) >= tensor.threshold) tensor.residual[i] = 0;
  tensor.find_threshold();
  return tensor;
}

using Select = std::size_t (*)(const float*, const float*, std::size_t, float, float*,
                               std::span<std::uint8_t>);

// What the client does when a packet is filled.
std::size_t select_kernel(const float* gradient, const float* residual, std::size_t count,
                          float threshold, float*, std::span<std::uint8_t> out) {
  return agg::compress_pruned(gradient, residual, count, threshold, out);
}

// The same in two passes.
std::size_t select_passes(const float* gradient, const float* residual, std::size_t count,
                          float threshold, float* left, std::span<std::uint8_t> out) {
  agg::prune(gradient, residual, count, threshold, left);
  return agg::compress(reinterpret_cast<const std::uint8_t*>(left), count, Dtype::kFloat32, out);
}

// The same entry as a plain loop makes it, for few values.
std::size_t select_loop(const float* gradient, const float* residual, std::size_t count,
                        float threshold, float* left, std::span<std::uint8_t> out) {
  std::uint16_t found = 0;
  std::uint16_t places[kChunkElems];
  for (std::size_t i = 0; i < count; ++i) {
    const float value = gradient[i] + residual[i];
    if (std::fabs(value) >= threshold) {
      places[found] = static_cast<std::uint16_t>(i);
      left[found++] = value;
    }
  }
  if (found == 0) return 0;
  std::memcpy(out.data(), &found, sizeof found);
  std::memcpy(out.data() + 2, places, found * sizeof places[0]);
  std::memcpy(out.data() + 2 + found * sizeof places[0], left, found * sizeof(float));
  return 2 + found * (sizeof places[0] + sizeof(float));
}

std::size_t select_all(const Tensor& tensor, Select select, std::span<std::uint8_t> out) {
  alignas(64) float left[kChunkElems];
  std::size_t bytes = 0;
  for (std::size_t at = 0; at < tensor.gradient.size(); at += kChunkElems)
    bytes += select(&tensor.gradient[at], &tensor.residual[at], kChunkElems, tensor.threshold, left,
                    out.subspan(bytes, kMaxChunkBytes));
  return bytes;
}

// The kernels give the loop's bytes, or nothing here is worth measuring.
bool same_bytes(const Tensor& tensor) {
  std::vector<std::uint8_t> one(tensor.gradient.size() + kMaxChunkBytes), other(one.size());
  const std::size_t bytes = select_all(tensor, select_loop, one);
  bool same = bytes != 0;
  for (const Select select : {select_kernel, select_passes})
    same &= bytes == select_all(tensor, select, other) && one == other;
  return same;
}

void add(const std::string& name, Tensor& tensor, std::function<void()> body) {
  benchmark::RegisterBenchmark(name.c_str(), [&tensor, body](benchmark::State& state) {
    for (auto iteration : state) {
      body();
      benchmark::ClobberMemory();
    }
    const double bits = static_cast<double>(state.iterations()) *
                        static_cast<double>(tensor.gradient.size() * sizeof(float)) * 8;
    state.counters["gradient_bits"] = benchmark::Counter(bits, benchmark::Counter::kIsRate);
  });
}

void register_sides(const std::string& place, Tensor& tensor) {
  static std::vector<std::uint8_t> out(kMemoryElems + kMaxChunkBytes);
  const auto selects = [&tensor](Select select) {
    return [&tensor, select] { benchmark::DoNotOptimize(select_all(tensor, select, out)); };
  };
  add("select/" + place, tensor, selects(select_kernel));
  add("passes/" + place, tensor, selects(select_passes));
  add("loop/" + place, tensor, selects(select_loop));
  add("copy/" + place, tensor, [&tensor] {
    std::memcpy(tensor.left.data(), tensor.gradient.data(), tensor.left.size() * sizeof(float));
  });
  // Of a gradient of zeros the residual stays what it is, however often.
  static const std::vector<float> zeros(kMemoryElems);
  add("residual/" + place, tensor, [&tensor] {
    for (std::size_t at = 0; at < tensor.residual.size(); at += kChunkElems)
      agg::keep_rest(&zeros[at], &tensor.residual[at], kChunkElems, &zeros[at]);
  });
  for (const auto& [name, options] :
       {std::pair<const char*, PruneOptions>{"static", {.rule = PruneRule::kStatic}},
        {"sampled", {.rule = PruneRule::kSampled}},
        {"sigma", {.rule = PruneRule::kSigma}},
        {"dynamic", {.rule = PruneRule::kDynamic}},
        {"dynamic_raw", {.rule = PruneRule::kDynamicRaw}}}) {
    auto thresholds = std::make_shared<Thresholds>(tensor.thresholds(options));
    add(std::string(name) + "/" + place, tensor, [&tensor, thresholds] {
      benchmark::DoNotOptimize(thresholds->next(0, tensor.gradient, tensor.residual));
    });
  }
}

int run(int argc, char** argv) {
  std::string_view target;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--target="))
      target = argument.substr(std::strlen("--target="));
    else
      argv[kept++] = argv[i];
  }
  if (!agg::force_fold_target(target)) {
    std::fprintf(stderr, "--target=%s: not one of this machine's:", std::string(target).c_str());
    for (const std::string_view name : agg::fold_targets())
      std::fprintf(stderr, " %s", std::string(name).c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  benchmark::Initialize(&kept, argv);
  if (benchmark::ReportUnrecognizedArguments(kept, argv)) return 2;
  benchmark::AddCustomContext("target", std::string(agg::fold_target()));
  Tensor cached = make_tensor(kCacheElems), far = make_tensor(kMemoryElems);
  for (const Tensor* tensor : {&cached, &far})
    if (!same_bytes(*tensor)) {
      std::fprintf(stderr, "the kernels and a plain loop disagree about what leaves\n");
      return 1;
    }
  register_sides("cache", cached);
  register_sides("memory", far);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace sluice::client

int main(int argc, char** argv) { return sluice::client::run(argc, argv); }

// The measuring half of the fold bench (fold.py runs it and explains it): Google Benchmark programs
// for the sum kernels and for memcpy over the same two buffers, so that caches and pages are alike.
//
//   bench_fold [--fold_target=NAME] [--max_bytes=N] [--benchmark_...]
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "aggregator/base/check.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/signs.h"

namespace sluice::agg {
namespace {

constexpr std::size_t kCallBytes = 1024;  // of the rows that call once a chunk

// The two buffers every side uses: the payload is read, the accumulator (wide enough for two bytes
// a float) is written.
struct Buffers {
  std::uint8_t* payload = nullptr;
  float* acc = nullptr;
};

// Touched memory, in huge pages where the system has them.
void* map_bytes(std::size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  madvise(mapped, bytes, MADV_HUGEPAGE);
  std::memset(mapped, 0, bytes);
  return mapped;
}

Buffers make_buffers(std::size_t max_bytes) {
  Buffers buffers;
  buffers.payload = static_cast<std::uint8_t*>(map_bytes(max_bytes));
  buffers.acc = static_cast<float*>(map_bytes(max_bytes));
  // Small integers: no denormals or infinities, whose speed differs on some processors.
  for (std::size_t i = 0; i < max_bytes / sizeof(float); ++i) {
    const float value = static_cast<float>(i % 7);
    std::memcpy(buffers.payload + i * sizeof(float), &value, sizeof(value));
  }
  return buffers;
}

void count_payload(benchmark::State& state, std::size_t bytes) {
  state.counters["payload_bits"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(bytes) * 8,
                         benchmark::Counter::kIsRate);
}

void bench_fold(benchmark::State& state, Buffers buffers, std::size_t bytes, std::size_t call_bytes,
                Dtype dtype) {
  const std::size_t call_elems = call_bytes / dtype_bytes(dtype);
  for (auto iteration : state) {
    for (std::size_t at = 0; at < bytes; at += call_bytes) {
      fold_add(buffers.acc + at / dtype_bytes(dtype), buffers.payload + at, call_elems, dtype);
    }
    benchmark::ClobberMemory();
  }
  count_payload(state, bytes);
}

// The fused kernels, a chunk a call; the payload counted is the gradient's, or the sum's.
enum class Fused { kPack, kResidual, kMean, kResult, kSigns, kNorm };

void bench_fused(benchmark::State& state, Buffers buffers, std::size_t bytes,
                 std::size_t call_bytes, Dtype wire, Fused kernel) {
  const std::size_t call_elems = call_bytes / sizeof(float);
  const auto* gradient = reinterpret_cast<const float*>(buffers.payload);
  alignas(64) std::uint8_t out[kCallBytes];
  std::uint64_t signs[sign_words(kCallBytes / sizeof(float), kAllSigns)] = {};
  const Wanted wanted{.signs = kernel == Fused::kSigns ? signs : nullptr,
                      .norm = kernel == Fused::kNorm};
  for (auto iteration : state) {
    for (std::size_t at = 0; at < bytes / sizeof(float); at += call_elems) {
      float* const residual = buffers.acc + at;
      if (kernel == Fused::kPack) pack(gradient + at, residual, call_elems, wire, out);
      if (kernel == Fused::kResidual)
        update_residual(gradient + at, residual, call_elems, wire, true);
      if (kernel == Fused::kMean)
        benchmark::DoNotOptimize(finish_unbiased(gradient + at, call_elems, 3, wire, 1, out));
      if (kernel >= Fused::kResult) {  // a narrow one elsewhere: the sum is needed again
        std::uint8_t* const to =
            wire == Dtype::kFloat32 ? buffers.payload + at * sizeof(float) : out;
        benchmark::DoNotOptimize(finish(gradient + at, call_elems, 3, wire, to, wanted));
      }
    }
    benchmark::ClobberMemory();
  }
  count_payload(state, bytes);
}

void bench_memcpy(benchmark::State& state, Buffers buffers, std::size_t bytes,
                  std::size_t call_bytes) {
  auto* to = reinterpret_cast<std::uint8_t*>(buffers.acc);
  for (auto iteration : state) {
    for (std::size_t at = 0; at < bytes; at += call_bytes) {
      std::memcpy(to + at, buffers.payload + at, call_bytes);
    }
    benchmark::ClobberMemory();
  }
  count_payload(state, bytes);
}

void register_benches(Buffers buffers, std::size_t max_bytes) {
  const auto add = [&](const char* side, std::size_t bytes, std::size_t call_bytes, auto body,
                       auto... rest) {
    const std::string name = std::string(side) + "/" + std::to_string(bytes);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      body(state, buffers, bytes, call_bytes, rest...);
    });
  };
  constexpr std::size_t kSmall = 256 << 10;
  for (std::size_t bytes : {kSmall, std::size_t{8} << 20, std::size_t{1} << 30}) {
    if (bytes > max_bytes) continue;
    add("float32", bytes, bytes, bench_fold, Dtype::kFloat32);
    add("memcpy", bytes, bytes, bench_memcpy);
  }
  add("float32_chunks", kSmall, kCallBytes, bench_fold, Dtype::kFloat32);
  add("memcpy_chunks", kSmall, kCallBytes, bench_memcpy);
  add("float16", kSmall, kSmall, bench_fold, Dtype::kFloat16);
  add("bfloat16", kSmall, kSmall, bench_fold, Dtype::kBfloat16);
  add("int8_chunks", kSmall, kCallBytes, bench_fold, Dtype::kInt8);
  for (const auto& [name, wire] :
       {std::pair{"float32", Dtype::kFloat32}, {"bfloat16", Dtype::kBfloat16}}) {
    const std::string side = name;
    add(("result_" + side).c_str(), kSmall, kCallBytes, bench_fused, wire, Fused::kResult);
    add(("signs_" + side).c_str(), kSmall, kCallBytes, bench_fused, wire, Fused::kSigns);
    add(("norm_" + side).c_str(), kSmall, kCallBytes, bench_fused, wire, Fused::kNorm);
  }
  for (const auto& [name, wire] : {std::pair{"float16", Dtype::kFloat16},
                                   {"bfloat16", Dtype::kBfloat16},
                                   {"int8", Dtype::kInt8}}) {
    const std::string side = name;
    add(("pack_" + side).c_str(), kSmall, kCallBytes, bench_fused, wire, Fused::kPack);
    add(("residual_" + side).c_str(), kSmall, kCallBytes, bench_fused, wire, Fused::kResidual);
    add(("mean_" + side).c_str(), kSmall, kCallBytes, bench_fused, wire, Fused::kMean);
  }
}

// Takes our own flags out of argv and leaves Google Benchmark's.
bool take_flag(std::string_view argument, std::string_view name, std::string_view& value) {
  if (!argument.starts_with(name)) return false;
  value = argument.substr(name.size());
  return true;
}

int run(int argc, char** argv) {
  std::string_view target;
  std::string_view limit = "8388608";
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (take_flag(argv[i], "--fold_target=", target)) continue;
    if (take_flag(argv[i], "--max_bytes=", limit)) continue;
    argv[kept++] = argv[i];
  }
  if (!force_fold_target(target)) {
    std::fprintf(stderr,
                 "--fold_target=%s: not one of this machine's:", std::string(target).c_str());
    for (std::string_view name : fold_targets()) {
      std::fprintf(stderr, " %s", std::string(name).c_str());
    }
    std::fprintf(stderr, "\n");
    return 2;
  }
  std::size_t max_bytes = 0;
  const auto [end, error] = std::from_chars(limit.begin(), limit.end(), max_bytes);
  if (error != std::errc() || end != limit.end() || max_bytes < (1 << 20)) {
    std::fprintf(stderr, "--max_bytes=%s: give a number of at least 1048576\n",
                 std::string(limit).c_str());
    return 2;
  }
  benchmark::Initialize(&kept, argv);
  if (benchmark::ReportUnrecognizedArguments(kept, argv)) return 2;
  benchmark::AddCustomContext("fold_target", std::string(fold_target()));
  register_benches(make_buffers(max_bytes), max_bytes);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace sluice::agg

int main(int argc, char** argv) { return sluice::agg::run(argc, argv); }

// The measuring half of the gpu bench (gpu.py runs it and explains it): one line a sample, SIDE
// SECONDS, behind a line with the device's name. It calls the plug-in for device memory through its
// tables, and computes the processor's thresholds beside them.
//
//     bench_gpu [--kib=N] [--repetitions=N]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "aggregator/base/check.h"
#include "client/core/calls/far.h"
#include "client/device/copy_stage.h"
#include "client/device/kernels.h"
#include "client/plugin_file.h"
#include "client/prune/threshold.h"

namespace sluice::client {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kChunkElems = 336;  // that 1,500 bytes carry

struct Options {
  std::size_t elem_count = std::size_t{64} << 18;  // of float32
  int repetitions = 9;
};

template <class T>
const T* table(const char* symbol) {
  const auto found = open_plugin("the plug-in for device memory", "libsluice_cuda.so", symbol,
                                 "build where CMake finds nvcc");
  if (found.ok()) return static_cast<const T*>(found.value());
  std::fprintf(stderr, "bench_gpu: %s\n", found.status().message().c_str());
  std::exit(1);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), tensor_count_(options.elem_count) {
    if (plugin_.count() <= 0) fail("there is no device, so nothing was measured");
    device_ = plugin_.open(0, SLUICE_DEVICE_PINNED, &facts_);
    if (device_ == nullptr) fail("the device can't be opened");
    bytes_ = tensor_count_ * sizeof(float);
    host_ = static_cast<std::uint8_t*>(plugin_.allocate(device_, bytes_));
    if (host_ == nullptr) fail("no page-locked memory");
    make_gradient();
    gradient_ = acquire<float>(bytes_);
    residual_ = acquire<float>(bytes_);
    output_ = acquire<float>(bytes_);
    upload(gradient_, gradient_values_);
    upload(residual_, residual_values_);
    const std::size_t chunks = tensor_count_ / kChunkElems + 1;
    const sluice_device_tensor all = tensor();
    room_ = acquire<void>(kernels_.workspace_bytes(&all));
    packed_ = acquire<std::uint8_t>(bytes_ + chunks * sizeof(float));
    extents_ = acquire<std::uint64_t>((chunks + 1) * sizeof(std::uint64_t));
    results_ = acquire<sluice_device_result>(chunks * sizeof(sluice_device_result));
    threshold_ = acquire<float>(sizeof(float));
  }

  int run() {
    std::printf("device %s\n", facts_.name);
    check_thresholds();
    register_sides();
    for (const auto& [name, side] : sides_) side();  // the first call loads kernels
    for (int i = 0; i < options_.repetitions; ++i)
      for (const auto& [name, side] : sides_) std::printf("%s %.9f\n", name, side());
    return 0;
  }

 private:
  using Side = std::function<double()>;

  [[noreturn]] void fail(const char* what) const {
    std::fprintf(stderr, "bench_gpu: %s: %s\n", what, plugin_.error());
    std::exit(1);
  }
  template <class T>
  T* acquire(std::size_t bytes) const {
    void* const memory = kernels_.acquire(device_, bytes);
    if (memory == nullptr) fail("no memory");
    return static_cast<T*>(memory);
  }
  sluice_device_mark* started(sluice_device_mark* mark) const {
    if (mark == nullptr) fail("a call failed");
    return mark;
  }
  bool passed(sluice_device_mark* mark) const {
    const std::int32_t passed = plugin_.passed(device_, mark);
    if (passed < 0) fail("the device failed");
    if (passed > 0) plugin_.drop(device_, mark);
    return passed > 0;
  }
  void finish(sluice_device_mark* mark) const {
    started(mark);
    while (!passed(mark)) {
    }
  }
  template <class T, class U>
  void upload(T* to, const std::vector<U>& from) const {
    const std::size_t bytes = from.size() * sizeof(U);
    CHECK(bytes <= bytes_);
    std::memcpy(host_, from.data(), bytes);
    finish(kernels_.copy(device_, to, host_, bytes));
  }

  // With a residual that grew under error feedback: it is small where the gradient is big.
  void make_gradient() {
    std::mt19937_64 random(1);
    std::student_t_distribution<float> draw(4);
    for (std::size_t i = 0; i < tensor_count_; ++i) {
      gradient_values_.push_back(1e-3f * draw(random));
      residual_values_.push_back(std::clamp(1e-3f * draw(random), -4e-3f, 4e-3f));
    }
  }
  sluice_device_tensor tensor(std::uint32_t wire = 0) const {
    return {.gradient = gradient_,
            .residual = residual_,
            .elem_count = tensor_count_,
            .chunk_elems = kChunkElems,
            .wire = wire};
  }
  sluice_device_rule rank_of(double density) const {
    const double wanted = density * static_cast<double>(tensor_count_);
    return {.kind = SLUICE_DEVICE_RANK,
            .rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted + 0.5)),
            .sigmas = 0};
  }

  sluice_device_mark* find(const sluice_device_rule& rule) const {
    const sluice_device_tensor of = tensor();
    return kernels_.find_threshold(device_, &of, &rule, room_, threshold_);
  }
  sluice_device_mark* pack(std::uint32_t wire) const {
    const sluice_device_tensor of = tensor(wire);
    return kernels_.pack(device_, &of, threshold_, packed_, extents_);
  }
  sluice_device_mark* unpack() const {
    const sluice_device_tensor of = tensor();
    return kernels_.unpack(device_, &of, packed_, results_, output_);
  }
  // What pack() has made is a sum of eight.
  void make_results() const {
    const std::size_t chunks = (tensor_count_ + kChunkElems - 1) / kChunkElems;
    finish(kernels_.copy(device_, host_, extents_, (chunks + 1) * sizeof(std::uint64_t)));
    std::vector<FarExtent> extents(chunks + 1);
    std::memcpy(extents.data(), host_, extents.size() * sizeof(FarExtent));
    std::vector<sluice_device_result> results;
    for (std::size_t i = 0; i < chunks; ++i)
      results.push_back(
          {extents[i].first_byte(), static_cast<std::uint32_t>(extents[i].bytes()), 1, 8, 0});
    upload(results_, results);
  }
  double on_processor(const PruneOptions& options, float* found = nullptr) const {
    const PruneTensor one{.elem_count = tensor_count_};
    Thresholds thresholds(options, {&one, 1});
    const auto begin = Clock::now();
    const float threshold = thresholds.next(0, gradient_values_, residual_values_);
    if (found != nullptr) *found = threshold;
    return seconds_since(begin);
  }

  // Nothing here is worth measuring that gives something else than the processor.
  void check_thresholds() const {
    const auto check = [&](const sluice_device_rule& rule, const PruneOptions& options) {
      float right = 0, found = 0;
      on_processor(options, &right);
      finish(find(rule));
      finish(kernels_.copy(device_, host_, threshold_, sizeof found));
      std::memcpy(&found, host_, sizeof found);
      if (found != right) fail("device and processor disagree about a threshold");
    };
    check(kSigmas, {.rule = PruneRule::kSigma, .sigmas = kSigmas.sigmas});
    check(rank_of(0.01), {.rule = PruneRule::kStatic, .fraction = 0.01});
  }

  // A call often enough to hide that the host starts it; the last one's end is all calls' end.
  Side repeated(const std::function<sluice_device_mark*()>& call) const {
    return [this, call] {
      constexpr int kCalls = 16;
      const auto begin = Clock::now();
      for (int i = 1; i < kCalls; ++i) plugin_.drop(device_, started(call()));
      finish(call());
      return seconds_since(begin) / kCalls;
    };
  }
  // Behind what `prepare` does, which does not count.
  static Side after(const std::function<void()>& prepare, const Side& side) {
    return [prepare, side] {
      prepare();
      return side();
    };
  }

  // As the copier does: pieces, of which some 50 us worth run at once.
  double copy_pieces() const {
    const auto limits = CopyStage::limits_for(facts_.bytes_per_s);
    const auto begin = Clock::now();
    std::vector<sluice_device_mark*> running;
    for (std::size_t at = 0; at < bytes_ || !running.empty();) {
      std::erase_if(running, [&](sluice_device_mark* mark) { return passed(mark); });
      if (at == bytes_ || (running.size() + 1) * limits.piece_bytes > limits.in_flight_bytes)
        continue;
      const std::size_t bytes = std::min(limits.piece_bytes, bytes_ - at);
      running.push_back(
          started(plugin_.copy_in(device_, host_ + at, piece_of(gradient_, at), bytes)));
      at += bytes;
    }
    return seconds_since(begin);
  }
  static std::uint8_t* piece_of(float* memory, std::size_t at) {
    return reinterpret_cast<std::uint8_t*>(memory) + at;
  }
  double copy_whole() const {
    const auto begin = Clock::now();
    finish(plugin_.copy_in(device_, host_, gradient_, bytes_));
    return seconds_since(begin);
  }
  // Averages on their way back, alone, beside packing, and that packing alone.
  double return_beside(bool copies, int packs) const {
    const auto begin = Clock::now();
    sluice_device_mark* const copy =
        copies ? started(plugin_.copy_out(device_, output_, host_, bytes_)) : nullptr;
    for (int i = 1; i < packs; ++i) plugin_.drop(device_, started(pack(0)));
    if (packs > 0) finish(pack(0));
    if (copy != nullptr) finish(copy);
    return seconds_since(begin);
  }

  void register_sides() {
    const auto add = [&](const char* name, Side side) { sides_.emplace_back(name, side); };
    const auto add_after = [&](const char* name, double density,
                               const std::function<sluice_device_mark*()>& call) {
      add(name, after([this, density] { finish(find(rank_of(density))); }, repeated(call)));
    };
    add("copy", repeated([this] { return kernels_.copy(device_, output_, gradient_, bytes_); }));
    add_after("pack_float32", 0.01, [this] { return pack(0); });
    add_after("pack_float16", 0.01, [this] { return pack(1); });
    add_after("pack_bfloat16", 0.01, [this] { return pack(2); });
    add_after("pack_int8", 0.01, [this] { return pack(4); });
    add("residual_float32", [this] {
      finish(find(rank_of(0.01)));
      const double seconds = repeated([this] {
        const sluice_device_tensor of = tensor();
        return kernels_.update_residual(device_, &of, threshold_, nullptr);
      })();
      upload(residual_, residual_values_);
      return seconds;
    });
    for (const auto& [name, density] : {std::pair{"unpack_sparse", 0.077}, {"unpack_dense", 1.0}})
      add(name, after(
                    [this, density] {
                      finish(find(rank_of(density)));
                      finish(pack(0));
                      make_results();
                    },
                    repeated([this] { return unpack(); })));
    for (const auto& [name, wire] :
         {std::pair{"convert_float16", 1u}, {"convert_bfloat16", 2u}, {"convert_int8", 4u}})
      add(name, repeated([this, wire] {
            const sluice_device_tensor of = tensor(wire);
            return kernels_.convert(device_, &of, packed_);
          }));
    add("rank", repeated([this] { return find(rank_of(0.01)); }));
    add("sigma", repeated([this] { return find(kSigmas); }));
    add("dynamic", repeated([this] { return find({.kind = SLUICE_DEVICE_DYNAMIC}); }));
    add("processor_sigma",
        [this] { return on_processor({.rule = PruneRule::kSigma, .sigmas = kSigmas.sigmas}); });
    add("engine", [this] { return copy_whole(); });
    add("pieces", [this] { return copy_pieces(); });
    // As many packs as take about as long as the copy.
    const double copy_s = return_beside(true, 0);
    const int packs = std::clamp(static_cast<int>(copy_s / return_beside(false, 1)), 1, 1000);
    add("return_alone", [this] { return return_beside(true, 0); });
    add("packs_alone", [this, packs] { return return_beside(false, packs); });
    add("return_and_packs", [this, packs] { return return_beside(true, packs); });
  }

  static constexpr sluice_device_rule kSigmas{.kind = SLUICE_DEVICE_SIGMA, .rank = 0, .sigmas = 3};
  const Options options_;
  const std::size_t tensor_count_;
  const sluice_device_plugin& plugin_ = *table<sluice_device_plugin>(SLUICE_DEVICE_PLUGIN_SYMBOL);
  const sluice_device_kernels& kernels_ =
      *table<sluice_device_kernels>(SLUICE_DEVICE_KERNELS_SYMBOL);
  sluice_device* device_ = nullptr;
  sluice_device_facts facts_{};
  std::size_t bytes_ = 0;  // of the gradient
  std::vector<float> gradient_values_, residual_values_;
  std::uint8_t* host_ = nullptr;
  float* gradient_ = nullptr;
  float* residual_ = nullptr;
  float* output_ = nullptr;
  void* room_ = nullptr;
  std::uint8_t* packed_ = nullptr;
  std::uint64_t* extents_ = nullptr;
  sluice_device_result* results_ = nullptr;
  float* threshold_ = nullptr;
  std::vector<std::pair<const char*, Side>> sides_;
};

bool read_number(std::string_view argument, std::string_view name, std::size_t& number) {
  if (!argument.starts_with(name)) return false;
  const char* const end = argument.data() + argument.size();
  const auto read = std::from_chars(argument.data() + name.size(), end, number);
  return read.ec == std::errc() && read.ptr == end && number > 0;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::size_t number = 0;
    if (read_number(argv[i], "--kib=", number) && number < (8u << 20)) {
      options.elem_count = number << 8;
    } else if (read_number(argv[i], "--repetitions=", number) && number <= 1000) {
      options.repetitions = static_cast<int>(number);
    } else {
      std::fprintf(stderr, "usage: bench_gpu [--kib=N] [--repetitions=N]\n");
      return 2;
    }
  }
  return Bench(options).run();
}

}  // namespace
}  // namespace sluice::client

int main(int argc, char** argv) { return sluice::client::run(argc, argv); }

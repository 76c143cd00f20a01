// The kernels of a plug-in for device memory against the host's, bit for bit: those of the fake
// device, which runs the device's source lane by lane, or of the plug-in in SLUICE_PLUGIN_DIR.
#include "client/device/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/sparse.h"
#include "client/core/calls/far.h"
#include "client/core/sums/average.h"
#include "client/device/cuda/host_lanes.h"
#include "client/device/cuda/operations.h"
#include "client/plugin_file.h"
#include "client/prune/threshold.h"
#include "tests/unit/prune/gradients.h"

namespace sluice::client {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
constexpr Dtype kWires[] = {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8};

template <class T>
const T* table(const char* symbol) {
  const auto found = open_plugin("the plug-in", "libsluice_cuda.so", symbol, "build it");
  CHECK(found.ok());
  return static_cast<const T*>(found.value());
}

class Kernels : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("SLUICE_PLUGIN_DIR", FAKE_DEVICE_DIR, 0);
    plugin_ = table<sluice_device_plugin>(SLUICE_DEVICE_PLUGIN_SYMBOL);
    kernels_ = table<sluice_device_kernels>(SLUICE_DEVICE_KERNELS_SYMBOL);
    CHECK(plugin_->abi == SLUICE_DEVICE_PLUGIN_ABI && kernels_->abi == SLUICE_DEVICE_KERNELS_ABI);
    sluice_device_facts facts{};
    if (plugin_->count() > 0) device_ = plugin_->open(0, SLUICE_DEVICE_PINNED, &facts);
    if (device_ != nullptr) staging_ = plugin_->allocate(device_, kStagingBytes);
  }
  static void TearDownTestSuite() {
    if (staging_ != nullptr) plugin_->release(device_, staging_);
    if (device_ != nullptr) plugin_->close(device_);
  }
  void SetUp() override {
    if (plugin_->count() <= 0) GTEST_SKIP() << "no device: " << plugin_->error();
    ASSERT_NE(staging_, nullptr) << plugin_->error();
  }

  static void finish(sluice_device_mark* mark) {
    ASSERT_NE(mark, nullptr) << plugin_->error();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::int32_t passed = 0;
    while ((passed = plugin_->passed(device_, mark)) == 0 &&
           std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    plugin_->drop(device_, mark);
    ASSERT_GT(passed, 0) << plugin_->error();
  }

  // A copy of host memory on the device, with room behind it that nothing may write.
  template <class T>
  class OnDevice {
   public:
    explicit OnDevice(const std::vector<T>& from) : OnDevice(from.size()) { write(from); }
    explicit OnDevice(std::size_t count) : count_(count) {
      memory_ = static_cast<T*>(kernels_->acquire(device_, bytes() + kGuardBytes));
      CHECK(memory_ != nullptr && bytes() + kGuardBytes <= kStagingBytes);
      std::memset(staging_, kGuard, bytes() + kGuardBytes);
      finish(kernels_->copy(device_, memory_, staging_, bytes() + kGuardBytes));
    }
    ~OnDevice() { kernels_->free(device_, memory_); }
    OnDevice(const OnDevice&) = delete;
    T* get() const { return memory_; }
    void write(const std::vector<T>& from) {
      if (!from.empty()) std::memcpy(staging_, from.data(), bytes());
      finish(kernels_->copy(device_, memory_, staging_, bytes()));
    }
    std::vector<T> read() const {
      finish(kernels_->copy(device_, staging_, memory_, bytes() + kGuardBytes));
      const auto* const at = static_cast<const std::uint8_t*>(staging_);
      for (std::size_t i = 0; i < kGuardBytes; ++i) CHECK(at[bytes() + i] == kGuard);
      std::vector<T> values(count_);
      if (count_ != 0) std::memcpy(values.data(), at, bytes());
      return values;
    }

   private:
    std::size_t bytes() const { return count_ * sizeof(T); }
    std::size_t count_;
    T* memory_ = nullptr;
  };

  static constexpr std::size_t kStagingBytes = 8 << 20;
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::uint8_t kGuard = 0x5a;
  static inline const sluice_device_plugin* plugin_ = nullptr;
  static inline const sluice_device_kernels* kernels_ = nullptr;
  static inline sluice_device* device_ = nullptr;
  static inline void* staging_ = nullptr;
};

// Which NaN an addition yields is the machine's; of this one all make the same.
Gradients of_one_nan(Gradients some) {
  for (float& value : some.gradient)
    if (std::isnan(value)) value = std::bit_cast<float>(0x7fffffffu);
  return some;
}

std::vector<Gradients> all_kinds(std::size_t count) {
  const auto seed = static_cast<std::uint64_t>(count);
  std::vector<Gradients> kinds{drawn(count, seed), of_one_nan(awkward(count, seed))};
  kinds.push_back({Floats(count), Floats(count)});
  kinds.push_back({Floats(count, -0.5f), Floats(count)});
  kinds.push_back({Floats(count, 1e-40f), Floats(count, 2e-39f)});  // denormal
  kinds.push_back({Floats(count, -0.0f), Floats(count, -0.0f)});
  kinds.push_back(drawn(count, seed + 1));
  kinds.back().gradient[count / 2] = std::numeric_limits<float>::infinity();
  return kinds;
}

sluice_device_tensor tensor_of(const float* gradient, float* residual, std::size_t count,
                               std::size_t chunk_elems, Dtype wire) {
  return {.gradient = gradient,
          .residual = residual,
          .elem_count = count,
          .chunk_elems = static_cast<std::uint32_t>(chunk_elems),
          .wire = static_cast<std::uint32_t>(wire)};
}

TEST_F(Kernels, FindTheHostsThresholds) {
  for (const std::size_t count : {1u, 17u, 1023u, 5000u, 300'000u})
    for (const Gradients& some : all_kinds(count)) {
      const PruneTensor one{.elem_count = count};
      OnDevice<float> gradient(some.gradient), residual(some.residual), found(std::size_t{1});
      const auto tensor = tensor_of(gradient.get(), residual.get(), count, 336, Dtype::kFloat32);
      OnDevice<std::uint8_t> workspace(kernels_->workspace_bytes(&tensor));
      const auto check = [&](const PruneOptions& options, const sluice_device_rule& rule) {
        finish(kernels_->find_threshold(device_, &tensor, &rule, workspace.get(), found.get()));
        const float right = Thresholds(options, {&one, 1}).next(0, some.gradient, some.residual);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(found.read()[0]),
                  std::bit_cast<std::uint32_t>(right))
            << count << " " << static_cast<int>(options.rule) << " " << right;
      };
      for (const double fraction : {1e-9, 0.001, 0.01, 0.3, 1.0}) {
        const double wanted = fraction * static_cast<double>(count);
        const auto rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted + 0.5));
        check({.rule = PruneRule::kStatic, .fraction = fraction, .min_elems = 1},
              {.kind = SLUICE_DEVICE_RANK, .rank = rank, .sigmas = 0});
      }
      for (const double sigmas : {1.0, 3.0})
        check({.rule = PruneRule::kSigma, .sigmas = sigmas, .min_elems = 1},
              {.kind = SLUICE_DEVICE_SIGMA, .rank = 0, .sigmas = sigmas});
      check({.rule = PruneRule::kDynamic, .min_elems = 1},
            {.kind = SLUICE_DEVICE_DYNAMIC, .rank = 0, .sigmas = 0});
    }
}

// Calls `each` with every chunk's first element and length.
template <class Each>
void for_each_chunk(std::size_t count, std::size_t chunk_elems, const Each& each) {
  for (std::size_t first = 0; first < count; first += chunk_elems)
    each(first, std::min(chunk_elems, count - first));
}

// What the host makes of a chunk that is pruned: see Residuals::pack().
Bytes pruned_payload(const Gradients& some, std::size_t first, std::size_t count, float threshold,
                     Dtype wire) {
  Floats left(count);
  const Floats nothing(count);
  agg::prune(&some.gradient[first], &some.residual[first], count, threshold, left.data());
  Bytes payload(payload_bytes(wire, count));
  if (wire == Dtype::kFloat32)
    std::memcpy(payload.data(), left.data(), payload.size());
  else
    agg::pack(left.data(), nothing.data(), count, wire, payload.data());
  return payload;
}

// An entry, or the payload where that is no longer.
Bytes shorter_of(const Bytes& payload, std::size_t count, Dtype wire) {
  Bytes entry(payload.size() - 1);
  const std::size_t bytes = agg::compress(payload.data(), count, wire, entry);
  if (bytes == agg::kNotCompressed) return payload;
  entry.resize(bytes);
  return entry;
}

struct Shape {
  std::size_t count;
  std::size_t chunk_elems;
};
constexpr Shape kShapes[] = {{1, 1},     {5, 336},    {31, 16},     {33, 32},
                             {337, 336}, {5003, 353}, {6000, 2208}, {20'000, 336}};

TEST_F(Kernels, PackAndUpdateResidualsAsTheHostDoesInEveryFormat) {
  for (const Shape& shape : kShapes)
    for (const Gradients& some : all_kinds(shape.count))
      for (const Dtype wire : kWires)
        for (const float threshold : {0.0f, 1e-39f, 4e-4f, 2e-3f, 8e-3f, kPruneAll}) {
          std::vector<Bytes> chunks;
          Floats rest = some.residual;
          for_each_chunk(shape.count, shape.chunk_elems, [&](std::size_t at, std::size_t count) {
            const Bytes payload = pruned_payload(some, at, count, threshold, wire);
            chunks.push_back(shorter_of(payload, count, wire));
            Floats left(count);
            agg::fold_store(left.data(), payload.data(), count, wire);
            agg::keep_rest(&some.gradient[at], &rest[at], count, left.data());
          });

          OnDevice<float> gradient(some.gradient), residual(some.residual);
          const auto tensor =
              tensor_of(gradient.get(), residual.get(), shape.count, shape.chunk_elems, wire);
          OnDevice<std::uint8_t> found(shape.count * 8);
          OnDevice<std::uint64_t> found_extents(chunks.size() + 1);
          OnDevice<float> limit(Floats{threshold});
          finish(kernels_->pack(device_, &tensor, limit.get(), found.get(), found_extents.get()));
          finish(kernels_->update_residual(device_, &tensor, limit.get(), nullptr));
          const Bytes bytes = found.read();
          std::vector<std::uint64_t> extents = found_extents.read();
          SCOPED_TRACE(testing::Message() << shape.count << " elements, format "
                                          << static_cast<int>(wire) << ", threshold " << threshold);
          for (std::size_t i = 0; i < chunks.size(); ++i) {
            const FarExtent at{extents[i]};
            ASSERT_LE(at.first_byte() + at.bytes(), extents.back());
            const auto part = std::span(bytes).subspan(at.first_byte(), at.bytes());
            ASSERT_TRUE(std::ranges::equal(part, chunks[i]));
          }
          std::sort(extents.begin(), extents.end() - 1);  // by place
          std::uint64_t covered = 0;
          for (std::size_t i = 0; i < chunks.size(); covered += FarExtent{extents[i++]}.bytes())
            if (FarExtent{extents[i]}.bytes() != 0 && FarExtent{extents[i]}.first_byte() != covered)
              FAIL() << "a gap, or two chunks in one place, at " << covered;
          ASSERT_EQ(extents.back(), covered);
          ASSERT_EQ(std::memcmp(residual.read().data(), rest.data(), 4 * rest.size()), 0);
        }
}

TEST_F(Kernels, ConvertDensePayloadsAndKeepWhatWasRoundedAway) {
  for (const Shape& shape : kShapes)
    for (const Gradients& some : all_kinds(shape.count))
      for (const Dtype wire : {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8}) {
        Bytes payloads;
        Floats rest = some.residual;
        for_each_chunk(shape.count, shape.chunk_elems, [&](std::size_t at, std::size_t count) {
          Bytes payload(payload_bytes(wire, count));
          agg::pack(&some.gradient[at], &some.residual[at], count, wire, payload.data());
          payloads.insert(payloads.end(), payload.begin(), payload.end());
          agg::update_residual(&some.gradient[at], &rest[at], count, wire, true);
        });
        OnDevice<float> gradient(some.gradient), residual(some.residual);
        OnDevice<std::uint8_t> found(payloads.size());
        const auto tensor =
            tensor_of(gradient.get(), residual.get(), shape.count, shape.chunk_elems, wire);
        finish(kernels_->convert(device_, &tensor, found.get()));
        finish(kernels_->update_residual(device_, &tensor, nullptr, nullptr));
        ASSERT_EQ(found.read(), payloads) << shape.count << " " << static_cast<int>(wire);
        ASSERT_EQ(std::memcmp(residual.read().data(), rest.data(), rest.size() * sizeof(float)), 0)
            << shape.count << " " << static_cast<int>(wire);
      }
}

// Of every fate, and what is given back behind that: what the host's Residuals do.
TEST_F(Kernels, KeepOfEachChunkWhatBecameOfIt) {
  for (const Shape& shape : kShapes)
    for (const Gradients& some : all_kinds(shape.count))
      for (const Dtype wire : kWires)
        for (const float threshold : {-1.0f, 2e-3f}) {  // below 0: converted, not pruned
          if (threshold < 0 && wire == Dtype::kFloat32) continue;
          Floats rest = some.residual;
          Bytes fates, given;
          std::vector<std::uint32_t> chunks;
          for_each_chunk(shape.count, shape.chunk_elems, [&](std::size_t at, std::size_t count) {
            const auto fate = static_cast<std::uint8_t>((fates.size() + shape.count) % 4);
            const bool delivered = fate == SLUICE_DEVICE_DELIVERED;
            Floats left(count);
            if (delivered && threshold >= 0)
              agg::fold_store(left.data(), pruned_payload(some, at, count, threshold, wire).data(),
                              count, wire);
            if (fate == SLUICE_DEVICE_UNKNOWN)
              std::fill_n(&rest[at], count, 0.0f);
            else if (fate != SLUICE_DEVICE_OPEN && threshold >= 0)
              agg::keep_rest(&some.gradient[at], &rest[at], count, left.data());
            else if (fate != SLUICE_DEVICE_OPEN)
              agg::update_residual(&some.gradient[at], &rest[at], count, wire, delivered);
            if (fates.size() % 3 == 0) {
              const Bytes payload = pruned_payload(some, at, count, 0, wire);
              agg::give_back(&rest[at], payload.data(), count, wire);
              chunks.push_back(static_cast<std::uint32_t>(fates.size()));
              given.insert(given.end(), payload.begin(), payload.end());
              given.resize(chunks.size() * payload_bytes(wire, shape.chunk_elems));
            }
            fates.push_back(fate);
          });
          for (float& value : rest) value *= 0.5f;
          OnDevice<float> gradient(some.gradient), residual(some.residual);
          OnDevice<float> limit(Floats{threshold});
          OnDevice<std::uint8_t> outcome(fates), payloads(given);
          OnDevice<std::uint32_t> of(chunks);
          const auto tensor =
              tensor_of(gradient.get(), residual.get(), shape.count, shape.chunk_elems, wire);
          finish(kernels_->update_residual(device_, &tensor, threshold < 0 ? nullptr : limit.get(),
                                           outcome.get()));
          finish(kernels_->give_back(device_, &tensor, of.get(), payloads.get(),
                                     static_cast<std::uint32_t>(chunks.size())));
          finish(kernels_->scale(device_, residual.get(), shape.count, 0.5f));
          ASSERT_EQ(std::memcmp(residual.read().data(), rest.data(), rest.size() * sizeof(float)),
                    0)
              << shape.count << " " << static_cast<int>(wire) << " " << threshold;
        }
}

// Results of several kinds, by what the host is told of them.
struct Rule {
  Summed summed;
  AveragingChoice averaging;
  float factor;
  float divisor;
};
constexpr Rule kRules[] = {
    {{8, 4, 4, false}, AveragingChoice::kWeight, 1, 8},
    {{3, 3, 4, true}, AveragingChoice::kWeight, 1, 1},
    {{7, 3, 4, true}, AveragingChoice::kSum, 7, 1},
    {{7, 3, 4, false}, AveragingChoice::kSum, 1, 1},
    {{5, 3, 7, false}, AveragingChoice::kWorld, 1, static_cast<float>(5.0 * 7 / 3)},
    {{0, 4, 4, false}, AveragingChoice::kWeight, 1, 0},
};

TEST_F(Kernels, UnpackResultsIntoTheHostsAverages) {
  for (const Shape& shape : kShapes)
    for (const Gradients& some : all_kinds(shape.count))
      for (const Dtype wire : kWires)
        for (const float threshold : {0.0f, 1e-3f, 8e-3f}) {
          Bytes packed;
          std::vector<sluice_device_result> results;
          Floats right(shape.count);
          agg::Accumulator scratch(shape.chunk_elems);
          for_each_chunk(shape.count, shape.chunk_elems, [&](std::size_t at, std::size_t count) {
            const Rule& rule = kRules[results.size() % std::size(kRules)];
            const Bytes payload = pruned_payload(some, at, count, threshold, wire);
            const Bytes bytes = shorter_of(payload, count, wire);
            results.push_back({packed.size(), static_cast<std::uint32_t>(bytes.size()), rule.factor,
                               rule.divisor, 0});
            packed.insert(packed.end(), bytes.begin(), bytes.end());
            (void)write_average(reinterpret_cast<std::uint8_t*>(&right[at]), payload, count,
                                Dtype::kFloat32, wire, rule.summed, rule.averaging, scratch.data());
          });
          OnDevice<std::uint8_t> values(packed);
          OnDevice<sluice_device_result> table(results);
          OnDevice<float> output(shape.count);
          const auto tensor = tensor_of(nullptr, nullptr, shape.count, shape.chunk_elems, wire);
          finish(kernels_->unpack(device_, &tensor, values.get(), table.get(), output.get()));
          const Floats found = output.read();
          for (std::size_t i = 0; i < found.size(); ++i) {
            if (std::isnan(found[i]) && std::isnan(right[i])) continue;
            ASSERT_EQ(agg::bits_of(found[i]), agg::bits_of(right[i]))
                << i << " of " << shape.count << ", format " << static_cast<int>(wire);
          }
        }
}

TEST_F(Kernels, OfNoElementsAreNoWork) {
  OnDevice<float> values(std::size_t{1});
  OnDevice<std::uint64_t> extents(std::vector<std::uint64_t>{1});
  const auto tensor = tensor_of(values.get(), values.get(), 0, 336, Dtype::kInt8);
  finish(kernels_->pack(device_, &tensor, values.get(), nullptr, extents.get()));
  finish(kernels_->update_residual(device_, &tensor, values.get(), nullptr));
  finish(kernels_->give_back(device_, &tensor, nullptr, nullptr, 0));
  finish(kernels_->scale(device_, values.get(), 0, 2));
  finish(kernels_->convert(device_, &tensor, nullptr));
  finish(kernels_->unpack(device_, &tensor, nullptr, nullptr, nullptr));
  EXPECT_EQ(extents.read()[0], 0u);
}

// Thresholds are rounded; the sums themselves are the same to the last bit too.
TEST(Lanes, AddMomentsInTheWrittenOrder) {
  for (const std::size_t count : {0u, 1u, 15u, 1024u, 1025u, 40'000u, 1'000'003u}) {
    const Gradients some = drawn(count, count + 1);
    const cuda::Elements from{some.gradient.data(), some.residual.data(), count};
    std::vector<cuda::Sums> memory(cuda::Workspace(nullptr, count).bytes / sizeof(cuda::Sums));
    const cuda::Workspace space(memory.data(), count);
    float threshold = 0;
    ASSERT_TRUE(cuda::sum_up(cuda::HostLauncher(), from, nullptr, 1, space, &threshold));
    const Moments right = moments(some.values());
    EXPECT_EQ(space.total->left, right.sum) << count;
    EXPECT_EQ(space.total->right, right.squares) << count;
  }
}

}  // namespace
}  // namespace sluice::client

#include "aggregator/core/sparse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "tests/unit/fold/fold_reference.h"

namespace sluice::agg {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

Floats awkward(std::size_t count, std::uint64_t seed) {
  Floats values;
  for (const std::uint32_t bits : awkward_bits(count, seed)) values.push_back(float_of_bits(bits));
  return values;
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// A dense payload of which about `permille` elements have any bit.
Bytes payload_of(Dtype dtype, std::size_t elem_count, unsigned permille, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes payload(payload_bytes(dtype, elem_count));
  const std::size_t elem_bytes = dtype_bytes(dtype);
  for (std::size_t i = 0; i < elem_count; ++i) {
    const std::uint64_t drawn = random() | 1;
    if (random() % 1000 < permille) std::memcpy(&payload[i * elem_bytes], &drawn, elem_bytes);
  }
  const float scale = 0.5f;
  if (dtype == Dtype::kInt8) std::memcpy(&payload[elem_count], &scale, sizeof scale);
  return payload;
}

// What compress() must give, one element after the other.
Bytes entry_reference(const Bytes& payload, std::size_t elem_count, Dtype dtype) {
  const std::size_t elem_bytes = dtype_bytes(dtype);
  std::vector<std::uint16_t> places;
  Bytes bitmap((elem_count + 7) / 8), values;
  for (std::size_t i = 0; i < elem_count; ++i) {
    const std::uint8_t* element = &payload[i * elem_bytes];
    if (std::all_of(element, element + elem_bytes, [](std::uint8_t byte) { return byte == 0; }))
      continue;
    places.push_back(static_cast<std::uint16_t>(i));
    bitmap[i / 8] = static_cast<std::uint8_t>(bitmap[i / 8] | 1u << i % 8);
    values.insert(values.end(), element, element + elem_bytes);
  }
  if (places.empty()) return {};
  if (dtype == Dtype::kInt8) values.insert(values.end(), payload.end() - 4, payload.end());
  const auto count = static_cast<std::uint16_t>(places.size());
  Bytes entry(2);
  std::memcpy(entry.data(), &count, 2);
  if (2 * places.size() <= bitmap.size()) {
    bitmap.resize(2 * places.size());
    std::memcpy(bitmap.data(), places.data(), bitmap.size());
  }
  entry.insert(entry.end(), bitmap.begin(), bitmap.end());
  entry.insert(entry.end(), values.begin(), values.end());
  return entry;
}

Bytes compressed(const Bytes& payload, std::size_t elem_count, Dtype dtype) {
  Bytes entry(payload.size() + 2 * elem_count + 2);
  const std::size_t bytes = compress(payload.data(), elem_count, dtype, entry);
  CHECK(bytes != kNotCompressed);
  entry.resize(bytes);
  return entry;
}

wire::SparseEntry view(const Bytes& entry, std::size_t elem_count, Dtype dtype) {
  std::span<const std::uint8_t> rest = entry;
  return entry.empty() ? wire::SparseEntry{} : wire::take_entry(rest, elem_count, dtype);
}

TEST(Prune, LetsWhatReachesTheThresholdLeaveOnEveryTarget) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= 70; ++length)
      for (const float threshold : {0.0f, 0.5f, 2.0f, kInfinity}) {
        Floats gradient = awkward(length, length);
        if (length > 3) gradient[3] = -threshold;  // reaches it: the residual is 0 there
        Floats residual(length);
        for (std::size_t i = 0; i < length; ++i) residual[i] = i % 4 == 3 ? 0 : 0.25f;
        Floats left(length, -7);
        prune(gradient.data(), residual.data(), length, threshold, left.data());
        for (std::size_t i = 0; i < length; ++i) {
          const float value = gradient[i] + residual[i];
          const bool leaves = std::isnan(value) || std::fabs(value) >= threshold;
          if (std::isnan(value))
            ASSERT_TRUE(std::isnan(left[i])) << target;
          else
            ASSERT_EQ(bits_of(left[i]), leaves ? bits_of(value) : 0u) << target << " " << value;
        }
        const Floats before = residual;
        keep_rest(gradient.data(), residual.data(), length, left.data());
        for (std::size_t i = 0; i < length; ++i) {
          const float rest = (gradient[i] + before[i]) - left[i];
          ASSERT_EQ(residual[i], std::isfinite(rest) ? rest : before[i]) << target;
        }
      }
  });
}

TEST(Prune, InOnePassGivesTheEntryOfWhatLeavesOnEveryTarget) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= 400; length += length < 140 ? 1 : 37)
      for (const float threshold : {0.0f, 0.5f, 2.0f, kInfinity}) {
        const Floats gradient = awkward(length, length);
        Floats residual(length), left(length);
        for (std::size_t i = 0; i < length; ++i) residual[i] = i % 3 == 0 ? 0 : 0.25f;
        prune(gradient.data(), residual.data(), length, threshold, left.data());
        Bytes payload(length * sizeof(float));
        std::memcpy(payload.data(), left.data(), payload.size());
        const Bytes expected = compressed(payload, length, Dtype::kFloat32);
        for (const std::size_t room : {expected.size() + 1, expected.size()}) {
          Bytes entry(room, 0xEE);
          ASSERT_EQ(compress_pruned(gradient.data(), residual.data(), length, threshold, entry),
                    expected.size());
          entry.resize(expected.size());
          ASSERT_EQ(entry, expected) << target << " " << length << " " << threshold;
        }
        if (expected.empty()) continue;
        Bytes less(expected.size() - 1, 0xEE);
        ASSERT_EQ(compress_pruned(gradient.data(), residual.data(), length, threshold, less),
                  kNotCompressed);
        ASSERT_EQ(less, Bytes(less.size(), 0xEE));
      }
  });
}

class Sparse : public testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(EveryFormat, Sparse,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16,
                                         Dtype::kInt8));

TEST_P(Sparse, AnEntryStandsForItsDensePayloadAtEveryLengthAndDensity) {
  const Dtype dtype = GetParam();
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= 400; length += length < 140 ? 1 : 37)
      for (const unsigned permille : {0u, 10u, 77u, 300u, 1000u}) {
        const Bytes payload = payload_of(dtype, length, permille, length + permille);
        const Bytes entry = compressed(payload, length, dtype);
        ASSERT_EQ(entry, entry_reference(payload, length, dtype)) << target << " " << length;
        ASSERT_EQ(wire::check_entries(entry, entry.empty() ? 0 : 1, length, dtype),
                  Verdict::kAccepted);
        Bytes expanded(payload.size(), 0xEE);
        expand(view(entry, length, dtype), length, dtype, expanded.data());
        if (!entry.empty()) {
          ASSERT_EQ(expanded, payload) << target << " " << length;
        }
        // With less room by a byte there is none.
        if (entry.empty()) continue;
        Bytes less(entry.size() - 1, 0xEE);
        ASSERT_EQ(compress(payload.data(), length, dtype, less), kNotCompressed);
        ASSERT_EQ(less, Bytes(less.size(), 0xEE));
      }
  });
}

TEST_P(Sparse, AddsWhatTheDensePayloadAdds) {
  const Dtype dtype = GetParam();
  for (const unsigned permille : {0u, 10u, 300u, 1000u}) {
    constexpr std::size_t kLength = 101;
    Bytes payload = payload_of(dtype, kLength, permille, permille);
    if (permille == 0) payload = Bytes(payload.size());  // an empty chunk has no scale
    const Bytes entry = compressed(payload, kLength, dtype);
    Accumulator dense(kLength), sparse(kLength);
    std::fill_n(dense.data(), kLength, 1.0f);
    std::fill_n(sparse.data(), kLength, 1.0f);
    fold_add(dense.data(), payload.data(), kLength, dtype);
    add_sparse(sparse.data(), view(entry, kLength, dtype), kLength, dtype);
    for (std::size_t i = 0; i < kLength; ++i)
      ASSERT_TRUE(bits_of(dense.data()[i]) == bits_of(sparse.data()[i]) ||
                  (std::isnan(dense.data()[i]) && std::isnan(sparse.data()[i])))
          << i;
  }
}

TEST(Compress, AnInt8ChunkThatIsNotFiniteStaysDense) {
  Bytes payload(8 + 4);
  const float scale = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&payload[8], &scale, sizeof scale);
  Bytes entry(64);
  EXPECT_EQ(compress(payload.data(), 8, Dtype::kInt8, entry), kNotCompressed);
}

// Whatever becomes of each step's chunk, nothing is lost: delivered + residual = gradients.
TEST_P(Sparse, WhatIsDeliveredAndTheResidualAreTheSumOfTheGradients) {
  const Dtype dtype = GetParam();
  constexpr std::size_t kLength = 150;
  const Floats zeros(kLength);
  Floats residual(kLength), delivered(kLength), sum(kLength), left(kLength);
  std::mt19937_64 random(7);
  std::size_t travelled = 0;
  for (std::size_t step = 0; step < 50; ++step) {
    Floats gradient(kLength);
    for (float& value : gradient) value = static_cast<float>(random() % 1024) - 512;
    const float threshold = step == 49 ? 0 : 500;  // the last one is dense
    prune(gradient.data(), residual.data(), kLength, threshold, left.data());
    Bytes payload(payload_bytes(dtype, kLength));
    if (dtype == Dtype::kFloat32)
      std::memcpy(payload.data(), left.data(), payload.size());
    else
      pack(left.data(), zeros.data(), kLength, dtype, payload.data());
    const Bytes entry = compressed(payload, kLength, dtype);
    travelled += entry.size();
    expand(view(entry, kLength, dtype), kLength, dtype, payload.data());
    fold_store(left.data(), payload.data(), kLength, dtype);
    const bool dropped = step % 5 == 1;
    for (std::size_t i = 0; i < kLength; ++i) {
      sum[i] += gradient[i];
      if (!dropped) delivered[i] += left[i];
    }
    if (dropped) std::fill(left.begin(), left.end(), 0.0f);
    keep_rest(gradient.data(), residual.data(), kLength, left.data());
  }
  for (std::size_t i = 0; i < kLength; ++i) EXPECT_EQ(delivered[i] + residual[i], sum[i]) << i;
  EXPECT_LT(travelled, 50 * payload_bytes(dtype, kLength));
}

}  // namespace
}  // namespace sluice::agg

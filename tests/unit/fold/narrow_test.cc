#include "aggregator/core/narrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/fold/fold_reference.h"

namespace sluice::agg {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t kMaxLength = 70;  // four vectors of the widest target, and a remainder

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

float scale_of(const Bytes& payload) {
  float scale;
  std::memcpy(&scale, &payload[payload.size() - sizeof scale], sizeof scale);
  return scale;
}

// What a receiver reads.
Floats read(const Bytes& payload, std::size_t elem_count, Dtype wire) {
  Floats values(elem_count);
  for (std::size_t i = 0; i < elem_count; ++i) {
    if (wire == Dtype::kInt8) {
      values[i] = static_cast<float>(static_cast<std::int8_t>(payload[i])) * scale_of(payload);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, &payload[2 * i], sizeof bits);
      values[i] = decode_reference(bits, format_of(wire));
    }
  }
  return values;
}

float scale_reference(float most) {
  float scale = std::numeric_limits<float>::min();
  while (scale * 127 < most) scale *= 2;
  return scale;
}

Bytes pack_reference(const Floats& values, Dtype wire) {
  Bytes payload(payload_bytes(wire, values.size()));
  if (wire != Dtype::kInt8) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t bits = encode_reference(values[i], format_of(wire));
      std::memcpy(&payload[2 * i], &bits, sizeof bits);
    }
    return payload;
  }
  if (values.empty()) return payload;
  float most = 0;
  for (const float value : values)
    most = std::isfinite(value) && !std::isnan(most) ? std::max(most, std::fabs(value)) : kNan;
  const float scale = std::isnan(most) ? kNan : scale_reference(most);
  for (std::size_t i = 0; i < values.size() && !std::isnan(scale); ++i) {
    const float quanta = std::nearbyint(values[i] / scale);
    payload[i] =
        static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(quanta, -127.0f, 127.0f)));
  }
  std::memcpy(&payload[values.size()], &scale, sizeof scale);
  return payload;
}

// Normal numbers of some binades around `size`, with both signs.
Floats ordinary(std::size_t count, std::uint64_t seed, float size = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw(0, size);
  Floats values(count);
  for (float& value : values) value = draw(random);
  return values;
}
Floats awkward(std::size_t count, std::uint64_t seed) {
  Floats values;
  for (const std::uint32_t bits : awkward_bits(count, seed)) values.push_back(float_of_bits(bits));
  return values;
}

class Narrow : public testing::TestWithParam<Dtype> {
 protected:
  Dtype wire() const { return GetParam(); }
  Bytes packed(const Floats& gradient, const Floats& residual) const {
    GuardedBytes out(payload_bytes(wire(), gradient.size()));
    GuardedBytes in(4 * gradient.size());
    if (!gradient.empty()) std::memcpy(in.data(), gradient.data(), in.size());
    pack(reinterpret_cast<const float*>(in.data()), residual.data(), gradient.size(), wire(),
         out.data());
    return {out.data(), out.data() + out.size()};
  }
};
INSTANTIATE_TEST_SUITE_P(EveryFormat, Narrow,
                         testing::Values(Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8),
                         [](const auto& instance) {
                           return instance.param == Dtype::kFloat16    ? "float16"
                                  : instance.param == Dtype::kBfloat16 ? "bfloat16"
                                                                       : "int8";
                         });

TEST_P(Narrow, PacksTheReferencesBytesOnEveryTargetAtEveryLength) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= kMaxLength; ++length)
      for (const bool hostile : {false, true}) {
        const Floats gradient = hostile ? awkward(length, length) : ordinary(length, length);
        const Floats residual = ordinary(length, 99 + length, 0.01f);
        Floats values(length);
        std::transform(gradient.begin(), gradient.end(), residual.begin(), values.begin(),
                       std::plus<>());
        ASSERT_EQ(packed(gradient, residual), pack_reference(values, wire()))
            << target << " length " << length << (hostile ? " awkward" : "");
      }
  });
}

// Whatever becomes of each step's packet, nothing is lost but what was not finite.
TEST_P(Narrow, WhatIsDeliveredAndTheResidualAreTheSumOfTheGradients) {
  on_every_target([&](std::string_view target) {
    constexpr std::size_t kLength = 37;
    Floats residual(kLength, 0), delivered(kLength, 0), sum(kLength, 0);
    Bytes late;
    for (std::uint64_t step = 0; step < 60; ++step) {
      const Floats gradient = ordinary(kLength, step);
      const Bytes payload = packed(gradient, residual);
      const Floats sent = read(payload, kLength, wire());
      const bool dropped = step % 5 == 1;
      update_residual(gradient.data(), residual.data(), kLength, wire(), !dropped);
      for (std::size_t i = 0; i < kLength; ++i) {
        sum[i] += gradient[i];
        if (!dropped) delivered[i] += sent[i];
      }
      if (step % 7 == 3 && !dropped) {  // late, and given up later
        late = payload;
        for (std::size_t i = 0; i < kLength; ++i) delivered[i] -= sent[i];
      } else if (!late.empty() && step % 7 == 6) {
        give_back(residual.data(), late.data(), kLength, wire());
        late.clear();
      }
    }
    if (!late.empty()) give_back(residual.data(), late.data(), kLength, wire());
    for (std::size_t i = 0; i < kLength; ++i)
      ASSERT_NEAR(delivered[i] + residual[i], sum[i], 1e-4) << target << " element " << i;
  });
}

TEST_P(Narrow, KeepsExactlyWhatRoundingLost) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= kMaxLength; ++length) {
      const Floats gradient = ordinary(length, length);
      const Floats before = ordinary(length, 99 + length, 0.01f);
      GuardedBytes memory(4 * length);
      auto* residual = reinterpret_cast<float*>(memory.data());
      std::memcpy(residual, before.data(), memory.size());
      const Floats sent = read(packed(gradient, before), length, wire());
      update_residual(gradient.data(), residual, length, wire(), true);
      for (std::size_t i = 0; i < length; ++i)
        ASSERT_EQ(residual[i], gradient[i] + before[i] - sent[i]) << target << " element " << i;
    }
  });
}

TEST_P(Narrow, ShowsWhatIsNotFiniteAndKeepsItOutOfTheResidual) {
  on_every_target([&](std::string_view target) {
    for (const float bad : {kInfinity, -kInfinity, kNan})
      for (const std::size_t at : {0, 5, 36})
        for (const bool delivered : {false, true}) {
          Floats gradient = ordinary(37, 1);
          gradient[at] = bad;
          Floats residual(37, 0.25f);
          const Floats sent = read(packed(gradient, residual), 37, wire());
          EXPECT_FALSE(std::isfinite(sent[at])) << target;
          update_residual(gradient.data(), residual.data(), 37, wire(), delivered);
          EXPECT_EQ(residual[at], 0.25f) << target;
          EXPECT_TRUE(std::ranges::all_of(residual, [](float r) { return std::isfinite(r); }));
          give_back(residual.data(), packed(gradient, residual).data(), 37, wire());
          EXPECT_TRUE(std::ranges::all_of(residual, [](float r) { return std::isfinite(r); }));
          Accumulator acc(37);
          std::memcpy(acc.data(), gradient.data(), 4 * 37);
          Bytes out(payload_bytes(wire(), 37));
          EXPECT_FALSE(finish_unbiased(acc.data(), 37, 1, wire(), 1, out.data()).finite) << target;
          EXPECT_FALSE(std::isfinite(read(out, 37, wire())[at])) << target;
        }
  });
}

TEST_P(Narrow, MeansHaveTheSameBytesOnEveryTargetAndInPlace) {
  for (std::size_t length = 1; length <= kMaxLength; ++length) {
    // From denormals of float16 to beyond its normal numbers.
    Floats sums = ordinary(length, length, length % 3 == 0 ? 1e-5f : 3.0f);
    Bytes first;
    on_every_target([&](std::string_view target) {
      Accumulator acc(length);
      std::memcpy(acc.data(), sums.data(), 4 * length);
      GuardedBytes apart(payload_bytes(wire(), length));
      ASSERT_TRUE(finish_unbiased(acc.data(), length, 3, wire(), 77, apart.data()).finite);
      const Bytes bytes(apart.data(), apart.data() + apart.size());
      if (first.empty()) first = bytes;
      ASSERT_EQ(bytes, first) << target << " length " << length;
      auto* in_place = reinterpret_cast<std::uint8_t*>(acc.data());
      ASSERT_TRUE(finish_unbiased(acc.data(), length, 3, wire(), 77, in_place).finite);
      ASSERT_EQ(std::memcmp(in_place, first.data(), first.size()), 0) << target;
    });
  }
}

// Over many seeds the mean of what is read is the mean, for values on and between the format's.
TEST_P(Narrow, RoundsMeansWithoutBias) {
  constexpr std::size_t kLength = 48;
  constexpr int kSeeds = 4000;
  Floats values = ordinary(kLength, 5);
  values[0] = 0;
  values[1] = 1;
  values[2] = 3e-6f;  // a denormal of float16
  values[3] = -4;     // the largest: int8's scale
  std::vector<double> sum(kLength), squares(kLength);
  Floats furthest(kLength);
  for (int seed = 0; seed < kSeeds; ++seed) {
    Accumulator acc(kLength);
    std::memcpy(acc.data(), values.data(), 4 * kLength);
    Bytes out(payload_bytes(wire(), kLength));
    const auto sums = static_cast<float>(seed);
    ASSERT_TRUE(
        finish_unbiased(acc.data(), kLength, 1, wire(), rounding_seed(&sums, 1, 3), out.data())
            .finite);
    const Floats got = read(out, kLength, wire());
    for (std::size_t i = 0; i < kLength; ++i) {
      sum[i] += got[i];
      furthest[i] = std::max(furthest[i], std::fabs(got[i] - values[i]));
    }
  }
  for (std::size_t i = 0; i < kLength; ++i) {
    const double error = sum[i] / kSeeds - static_cast<double>(values[i]);
    const float step = wire() == Dtype::kInt8      ? 4.0f / 64
                       : wire() == Dtype::kFloat16 ? std::fabs(values[i]) / 1024 + 6e-8f
                                                   : std::fabs(values[i]) / 128;
    EXPECT_LE(furthest[i], step * 1.001f) << values[i];
    EXPECT_LE(std::fabs(error), 5 * step / 2 / std::sqrt(kSeeds)) << values[i];
  }
}

// The dice are made of what they round: over many sums they favour neither side.
TEST_P(Narrow, RoundsManySumsByTheirOwnDiceWithoutBias) {
  constexpr std::size_t kLength = 48;
  constexpr int kSums = 4000;
  std::vector<double> errors(kLength), squares(kLength);
  for (int round = 0; round < kSums; ++round) {
    Floats values = ordinary(kLength, static_cast<std::uint64_t>(round));
    values[0] = 1.01f;  // as a parameter whose gradient stays: the others' change its dice
    Accumulator acc(kLength);
    std::memcpy(acc.data(), values.data(), 4 * kLength);
    Bytes out(payload_bytes(wire(), kLength));
    ASSERT_TRUE(finish_unbiased(acc.data(), kLength, 1, wire(),
                                rounding_seed(values.data(), kLength, 3), out.data())
                    .finite);
    const Floats got = read(out, kLength, wire());
    for (std::size_t i = 0; i < kLength; ++i) {
      const double error = static_cast<double>(got[i]) - static_cast<double>(values[i]);
      errors[i] += error;
      squares[i] += error * error;
    }
  }
  for (std::size_t i = 0; i < kLength; ++i)
    EXPECT_LE(std::fabs(errors[i]), 5 * std::sqrt(squares[i])) << i;
}

TEST_P(Narrow, WhatIsZeroOrTooSmallForTheFormatStaysInTheResidual) {
  for (const float tiny : {0.0f, 1e-45f, 1e-43f}) {
    const Floats gradient(20, tiny);
    Floats residual(20, 0);
    const Floats sent = read(packed(gradient, residual), 20, wire());
    update_residual(gradient.data(), residual.data(), 20, wire(), true);
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(residual[i] + sent[i], tiny);
  }
}

TEST(Int8, StoresAndAddsWhatTheScaleSays) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= kMaxLength; ++length) {
      const Floats zero(length, 0);
      Floats sums(length, 0);
      Accumulator acc(length, 9);
      Accumulator at_once(length, 9);
      for (std::uint64_t rank = 0; rank < 3; ++rank) {
        GuardedBytes payload(payload_bytes(Dtype::kInt8, length));
        pack(ordinary(length, 10 * length + rank).data(), zero.data(), length, Dtype::kInt8,
             payload.data());
        const Floats values =
            read({payload.data(), payload.data() + payload.size()}, length, Dtype::kInt8);
        const auto add = rank == 0 ? fold_store : fold_add;
        add(acc.data(), payload.data(), length, Dtype::kInt8);
        const std::uint8_t* const start = payload.data();
        fold_several(at_once.data(), rank != 0, {&start, 1}, length, Dtype::kInt8);
        double squares = 0;
        for (std::size_t i = 0; i < length; ++i) {
          sums[i] = rank == 0 ? values[i] : sums[i] + values[i];
          squares += static_cast<double>(values[i]) * values[i];
        }
        EXPECT_NEAR(squared_norm_int8(payload.data(), length), squares, 1e-6 * squares);
      }
      for (std::size_t i = 0; i < length; ++i) {
        ASSERT_EQ(acc.data()[i], sums[i]) << target;
        ASSERT_EQ(at_once.data()[i], sums[i]) << target;
      }
      ASSERT_EQ(acc.data()[length], 9) << target << ": wrote past the accumulator";
    }
  });
}

// After a restart a rank gives a result that it has, and another gets it. A greatest element that
// was rounded down to 63 quanta has 126 of half the size then.
TEST(Int8, AResultThatIsGivenAgainIsWorthTheSame) {
  constexpr std::size_t kLength = 5;
  const std::size_t bytes = payload_bytes(Dtype::kInt8, kLength);
  int others = 0;
  for (std::uint32_t i = 0; i < 64; ++i) {
    const std::uint32_t seed = i * 0x9E3779B9u;
    Accumulator acc(kLength);
    const float sums[kLength] = {19 * 63.6f, -19 * 20.2f, 19 * 1.5f, 0, 19 * 0.25f};
    std::copy_n(sums, kLength, acc.data());
    Bytes result(bytes), given(bytes);
    ASSERT_TRUE(finish_unbiased(acc.data(), kLength, 19, Dtype::kInt8, seed, result.data()).finite);
    store_int8(acc.data(), result.data(), kLength);
    ASSERT_TRUE(finish_unbiased(acc.data(), kLength, 1, Dtype::kInt8, ~seed, given.data()).finite);
    EXPECT_EQ(read(given, kLength, Dtype::kInt8), read(result, kLength, Dtype::kInt8)) << seed;
    others += given != result;
  }
  EXPECT_GT(others, 0);
  EXPECT_LT(others, 64);
}

TEST(RoundingSeed, DiffersBetweenSumsAndChunks) {
  std::vector<std::uint32_t> seeds;
  Floats sums = ordinary(40, 1);
  for (float& one : sums) {
    one = std::nextafter(one, 9.0f);
    for (ChunkIndex chunk = 0; chunk < 50; ++chunk)
      seeds.push_back(rounding_seed(sums.data(), sums.size(), chunk));
  }
  std::ranges::sort(seeds);
  EXPECT_EQ(std::ranges::adjacent_find(seeds), seeds.end());
}

TEST(RoundingSeed, IsOfWhatTheSumsAreWorthOnEveryTarget) {
  for (std::size_t length = 1; length <= kMaxLength; ++length) {
    Floats sums = ordinary(length, length);
    sums[length / 2] = 0.0f;
    Floats others = sums;
    others[length / 2] = -0.0f;
    std::vector<std::uint32_t> seeds{rounding_seed(sums.data(), length, 7)};
    on_every_target([&](std::string_view target) {
      ASSERT_EQ(rounding_seed(sums.data(), length, 7), seeds.front()) << target;
      ASSERT_EQ(rounding_seed(others.data(), length, 7), seeds.front()) << target;
    });
  }
}

}  // namespace
}  // namespace sluice::agg

#include <gtest/gtest.h>

#include "tests/unit/fold/fold_reference.h"

namespace sluice::agg {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kMaxLength = 70;  // four vectors of the widest target, and a remainder

const std::uint8_t* bytes_of(const void* data) { return static_cast<const std::uint8_t*>(data); }

// Payload bytes for `elem_count` elements from awkward patterns of the dtype's own width.
std::vector<std::uint8_t> awkward_payload(std::size_t elem_count, Dtype dtype, std::uint64_t seed) {
  const auto bits = awkward_bits(elem_count, seed);
  std::vector<std::uint8_t> payload(elem_count * dtype_bytes(dtype));
  for (std::size_t i = 0; i < elem_count; ++i) {
    if (dtype == Dtype::kFloat32) {
      std::memcpy(&payload[i * 4], &bits[i], 4);
    } else {
      const std::uint16_t narrow = encode_reference(float_of_bits(bits[i]), format_of(dtype));
      std::memcpy(&payload[i * 2], &narrow, 2);
    }
  }
  return payload;
}

float element(const std::vector<std::uint8_t>& payload, std::size_t index, Dtype dtype) {
  if (dtype == Dtype::kFloat32) {
    float value;
    std::memcpy(&value, &payload[index * 4], 4);
    return value;
  }
  std::uint16_t narrow;
  std::memcpy(&narrow, &payload[index * 2], 2);
  return decode_reference(narrow, format_of(dtype));
}

// What finish() must write for one accumulated value.
std::uint32_t result_reference(float sum, std::uint64_t weight, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return std::isnan(sum) ? 0x7fc00000u : bits_of(sum);
  return encode_reference(sum / static_cast<float>(weight), format_of(dtype));
}

bool is_finite_result(std::uint32_t bits, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return std::isfinite(float_of_bits(bits));
  return std::isfinite(decode_reference(static_cast<std::uint16_t>(bits), format_of(dtype)));
}

class Fold : public testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(EveryDtype, Fold,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16),
                         [](const auto& instance) {
                           return instance.param == Dtype::kFloat32   ? "float32"
                                  : instance.param == Dtype::kFloat16 ? "float16"
                                                                      : "bfloat16";
                         });

TEST_P(Fold, EveryTargetGivesTheReferencesBytesAtEveryLengthAndAlignment) {
  const Dtype dtype = GetParam();
  const std::uint64_t weight = 3;
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 0; length <= kMaxLength; ++length) {
      std::vector<float> sums(length);
      Accumulator acc(length, 12345.0f);  // fold_store must overwrite it
      // Four contributions, each at the end of readable memory and at its own misalignment.
      for (std::uint64_t rank = 0; rank < 4; ++rank) {
        const auto payload = awkward_payload(length, dtype, length * 10 + rank);
        GuardedBytes wire(payload.size() + rank);
        std::uint8_t* start = wire.data() + (rank % 2 == 0 ? rank : 0);
        if (!payload.empty()) std::memcpy(start, payload.data(), payload.size());
        if (rank == 0) {
          fold_store(acc.data(), start, length, dtype);
        } else {
          fold_add(acc.data(), start, length, dtype);
        }
        for (std::size_t i = 0; i < length; ++i) {
          const float value = element(payload, i, dtype);
          sums[i] = rank == 0 ? value : sums[i] + value;
        }
      }
      ASSERT_EQ(acc.data()[length], 12345.0f) << target << ": wrote past the accumulator";

      GuardedBytes out(length * dtype_bytes(dtype));
      const bool all_finite = finish(acc.data(), length, weight, dtype, out.data()).finite;
      bool expected_finite = true;
      for (std::size_t i = 0; i < length; ++i) {
        std::uint32_t written = 0;
        std::memcpy(&written, out.data() + i * dtype_bytes(dtype), dtype_bytes(dtype));
        const std::uint32_t expected = result_reference(sums[i], weight, dtype);
        ASSERT_EQ(written, expected) << target << " length " << length << " element " << i;
        expected_finite = expected_finite && is_finite_result(expected, dtype);
      }
      ASSERT_EQ(all_finite, expected_finite) << target << " length " << length;
    }
  });
}

TEST_P(Fold, SeveralAtOnceGiveTheBytesOfOneAfterTheOther) {
  const Dtype dtype = GetParam();
  const auto finished = [&](Accumulator& acc, std::size_t length) {
    std::vector<std::uint8_t> out(length * dtype_bytes(dtype));
    (void)finish(acc.data(), length, 3, dtype, out.data());
    return out;
  };
  on_every_target([&](std::string_view target) {
    for (const std::size_t length : {1u, 3u, 16u, 31u, 64u, 70u}) {
      std::vector<std::vector<std::uint8_t>> payloads;
      std::vector<const std::uint8_t*> starts;
      Accumulator one_by_one(length);
      for (std::uint64_t rank = 0; rank < kAddendsPerPass; ++rank) {
        payloads.push_back(awkward_payload(length, dtype, length * 100 + rank));
        starts.push_back(payloads.back().data());
        (rank == 0 ? fold_store : fold_add)(one_by_one.data(), starts[rank], length, dtype);
        Accumulator at_once(length, 12345.0f);
        fold_several(at_once.data(), false, starts, length, dtype);
        ASSERT_EQ(finished(at_once, length), finished(one_by_one, length)) << target << ' ' << rank;
        ASSERT_EQ(at_once.data()[length], 12345.0f) << target << ": wrote past the accumulator";
        // To what is there already.
        fold_store(at_once.data(), starts[0], length, dtype);
        fold_several(at_once.data(), true, std::span(starts).subspan(1), length, dtype);
        ASSERT_EQ(finished(at_once, length), finished(one_by_one, length)) << target << ' ' << rank;
      }
    }
  });
}

TEST_P(Fold, FinishInPlaceGivesTheSameBytesOnEveryTarget) {
  const Dtype dtype = GetParam();
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 0; length <= kMaxLength; ++length) {
      const auto bits = awkward_bits(length, 1000 + length);
      Accumulator apart(length);
      Accumulator in_place(length);
      for (std::size_t i = 0; i < length; ++i) apart.data()[i] = float_of_bits(bits[i]);
      std::memcpy(in_place.data(), apart.data(), length * sizeof(float));
      std::vector<std::uint8_t> out(length * dtype_bytes(dtype) + 1);
      const bool finite_apart = finish(apart.data(), length, 5, dtype, out.data()).finite;
      auto* result = reinterpret_cast<std::uint8_t*>(in_place.data());
      const bool finite_in_place = finish(in_place.data(), length, 5, dtype, result).finite;
      ASSERT_EQ(finite_apart, finite_in_place) << target << " length " << length;
      ASSERT_EQ(std::memcmp(out.data(), result, out.size() - 1), 0)
          << target << " length " << length;
    }
  });
}

TEST_P(Fold, SmallIntegersSumExactlyInAnyOrder) {
  const Dtype dtype = GetParam();
  const std::size_t elem_count = 256;
  std::vector<std::vector<std::uint8_t>> payloads;
  for (int rank = 0; rank < 8; ++rank) {
    std::vector<std::uint8_t> payload(elem_count * dtype_bytes(dtype));
    for (std::size_t i = 0; i < elem_count; ++i) {
      const float value = static_cast<float>(static_cast<int>(i % 11) - 5 + rank);
      const std::uint16_t narrow = encode_reference(value, format_of(dtype));
      if (dtype == Dtype::kFloat32) {
        std::memcpy(&payload[i * 4], &value, 4);
      } else {
        std::memcpy(&payload[i * 2], &narrow, 2);
      }
    }
    payloads.push_back(std::move(payload));
  }
  Accumulator forward(elem_count);
  Accumulator backward(elem_count);
  for (int rank = 0; rank < 8; ++rank) {
    (rank == 0 ? fold_store : fold_add)(forward.data(), payloads[rank].data(), elem_count, dtype);
    (rank == 0 ? fold_store : fold_add)(backward.data(), payloads[7 - rank].data(), elem_count,
                                        dtype);
  }
  for (std::size_t i = 0; i < elem_count; ++i) {
    const float expected = static_cast<float>(8 * (static_cast<int>(i % 11) - 5) + 28);
    ASSERT_EQ(forward.data()[i], expected);
    ASSERT_EQ(backward.data()[i], expected);
  }
}

TEST_P(Fold, OneNonFiniteValueIsSeenAtEveryPosition) {
  const Dtype dtype = GetParam();
  on_every_target([&](std::string_view target) {
    for (std::size_t position = 0; position < kMaxLength; ++position) {
      for (float bad : {kInfinity, -kInfinity, std::nanf("")}) {
        Accumulator acc(kMaxLength, 1.0f);
        std::vector<std::uint8_t> out(kMaxLength * 4);
        ASSERT_TRUE(finish(acc.data(), kMaxLength, 1, dtype, out.data()).finite) << target;
        acc.data()[position] = bad;
        ASSERT_FALSE(finish(acc.data(), kMaxLength, 1, dtype, out.data()).finite)
            << target << " position " << position;
        ASSERT_TRUE(finish(acc.data(), position, 1, dtype, out.data()).finite)
            << target << ": looked past the end";
      }
    }
  });
}

TEST(FoldFinish, Float16MeanOfSumsBeyondItsRangeIsExact) {
  // 8 workers at 65,504 sum to 524,032, which float16 does not hold; the mean does fit.
  Accumulator acc(16, 8 * 65504.0f);
  std::uint16_t out[16];
  EXPECT_TRUE(
      finish(acc.data(), 16, 8, Dtype::kFloat16, reinterpret_cast<std::uint8_t*>(out)).finite);
  EXPECT_EQ(out[0], 0x7bff);
  EXPECT_FALSE(
      finish(acc.data(), 16, 7, Dtype::kFloat16, reinterpret_cast<std::uint8_t*>(out)).finite);
  EXPECT_EQ(out[15], 0x7c00);
}

TEST(FoldFinish, WeightZeroIsReportedAsNotFinite) {
  Accumulator acc(16, 0.0f);
  std::uint16_t out[16];
  on_every_target([&](std::string_view) {
    EXPECT_FALSE(
        finish(acc.data(), 16, 0, Dtype::kFloat16, reinterpret_cast<std::uint8_t*>(out)).finite);
    EXPECT_EQ(out[3], 0x7e00);  // 0 / 0, whose sign bit differs between machines
  });
}

TEST(FoldFinish, WeightIsRoundedToFloat32OnceAsTheClientDoes) {
  const std::uint64_t weight = (1ull << 40) + 1;
  Accumulator acc(16, 3.0f * 0x1p40f);
  std::uint16_t out[16];
  EXPECT_TRUE(finish(acc.data(), 16, weight, Dtype::kBfloat16, reinterpret_cast<std::uint8_t*>(out))
                  .finite);
  EXPECT_EQ(out[0], encode_reference(3.0f, kBrain));
}

TEST(FoldBytes, BroadcastBytesComeBackAsTheyWere) {
  const std::string text = "opaque \xff\x00\x7f bytes, and an odd number of them";
  Accumulator acc(text.size());
  std::string out(text.size(), '\0');
  fold_store(acc.data(), bytes_of(text.data()), text.size(), Dtype::kBytes);
  EXPECT_TRUE(
      finish(acc.data(), text.size(), 1, Dtype::kBytes, reinterpret_cast<std::uint8_t*>(out.data()))
          .finite);
  EXPECT_EQ(out, text);
}

TEST(FoldBytesDeathTest, SummingOpaqueBytesIsABug) {
  Accumulator acc(16);
  const std::uint8_t payload[16] = {};
  EXPECT_DEATH(fold_add(acc.data(), payload, 16, Dtype::kBytes), "CHECK");
}

TEST(FoldMean, IsADivisionAndNotAMultiplicationByAReciprocal) {
  std::vector<float> sums;
  for (std::uint32_t bits : awkward_bits(4099, 11)) sums.push_back(float_of_bits(bits));
  bool a_reciprocal_would_differ = false;
  on_every_target([&](std::string_view target) {
    for (float divisor : {1.0f, 3.0f, 7.0f, 8.0f, 1000003.0f}) {
      std::vector<std::uint8_t> wire(sums.size() * 4 + 1);
      std::memcpy(wire.data() + 1, sums.data(), sums.size() * 4);
      std::vector<float> out(sums.size());
      mean(out.data(), wire.data() + 1, sums.size(), divisor);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const float expected = sums[i] / divisor;
        const std::uint32_t expected_bits = std::isnan(expected) ? 0x7fc00000u : bits_of(expected);
        ASSERT_EQ(bits_of(out[i]), expected_bits) << target << " " << sums[i] << " / " << divisor;
        const float by_reciprocal = sums[i] * (1.0f / divisor);
        if (!std::isnan(expected) && by_reciprocal != expected) a_reciprocal_would_differ = true;
      }
    }
  });
  EXPECT_TRUE(a_reciprocal_would_differ) << "the values do not tell the two apart";
}

TEST(FoldMean, StaysInsideItsBuffersAtEveryLength) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 0; length <= kMaxLength; ++length) {
      GuardedBytes wire(length * 4);
      GuardedBytes out(length * 4);
      for (std::size_t i = 0; i < length; ++i) {
        const float value = static_cast<float>(4 * i);
        std::memcpy(wire.data() + 4 * i, &value, 4);
      }
      mean(reinterpret_cast<float*>(out.data()), wire.data(), length, 4.0f);
      for (std::size_t i = 0; i < length; ++i) {
        ASSERT_EQ(reinterpret_cast<float*>(out.data())[i], static_cast<float>(i)) << target;
      }
    }
  });
}

TEST(FoldTarget, CanBeForcedByNameAndRefusesUnknownNames) {
  const std::string best(fold_target());
  const auto targets = fold_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.front(), best);
  for (std::string_view target : targets) {
    EXPECT_TRUE(force_fold_target(target));
    EXPECT_EQ(fold_target(), target);
  }
  EXPECT_FALSE(force_fold_target("AVX9"));
  EXPECT_EQ(fold_target(), targets.back());
  EXPECT_TRUE(force_fold_target(""));
  EXPECT_EQ(fold_target(), best);
}

TEST(FoldTarget, MoreThanOneTargetWasComparedOnThisKindOfMachine) {
#if defined(__x86_64__)
  EXPECT_GE(fold_targets().size(), 2u) << "the differential tests compared nothing";
#else
  GTEST_SKIP() << "only x86-64 is known to have several targets in one build";
#endif
}

}  // namespace
}  // namespace sluice::agg

#include "aggregator/core/signs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "tests/unit/fold/fold_reference.h"

namespace sluice::agg {
namespace {

constexpr std::uint64_t kPattern = 0xa5c3'0f1e'7788'2d4b;  // of bits that nobody may touch
constexpr std::size_t kMaxLength = 200;  // three words and a remainder of every vector's width

// What exchange_signs() must do, one bit at a time.
class SignReference {
 public:
  explicit SignReference(std::size_t words) : words_(words, kPattern) {}

  std::uint64_t exchange(const float* values, std::size_t elem_count, std::size_t stride) {
    std::uint64_t flipped = 0;
    for (std::size_t i = 0, sample = 0; i < elem_count; i += stride, ++sample) {
      std::uint64_t& word = words_[sample / 64];
      const std::uint64_t bit = std::uint64_t{1} << sample % 64;
      const bool negative = std::signbit(values[i]);
      flipped += ((word & bit) != 0) != negative;
      word = negative ? word | bit : word & ~bit;
    }
    return flipped;
  }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

// An accumulator whose last element is followed by an unreadable page, where that can be: it must
// start on a cache line, so only whole lines end there.
float* aligned_end(GuardedBytes& memory) { return reinterpret_cast<float*>(memory.data()); }

class Signs : public testing::TestWithParam<std::uint16_t> {};
INSTANTIATE_TEST_SUITE_P(AllAndOneIn32, Signs, testing::Values(1, 32), [](const auto& instance) {
  return instance.param == 1 ? "all" : "one_in_32";
});

TEST(Signs, CountsSamplesAndTheWordsThatHoldThem) {
  static_assert(sign_count(0, 1) == 0 && sign_words(0, 32) == 0);
  static_assert(sign_count(64, 1) == 64 && sign_words(64, 1) == 1 && sign_words(65, 1) == 2);
  static_assert(sign_count(1, 32) == 1 && sign_count(32, 32) == 1 && sign_count(33, 32) == 2);
  EXPECT_EQ(sign_words(336, 1), 6u);
  EXPECT_EQ(sign_words(64 * 32, 32), 1u);
  EXPECT_EQ(sign_words(64 * 32 + 1, 32), 2u);
}

TEST(Signs, OfAGivenVectorAreTheBitsWrittenHere) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {1, -1, 0.0f, -0.0f, nan, -nan, -1e-45f, 1e-45f, -2, 3};
  on_every_target([&](std::string_view target) {
    Accumulator acc(values.size());
    std::copy(values.begin(), values.end(), acc.data());
    std::uint64_t stored = 0;
    EXPECT_EQ(exchange_signs(acc.data(), values.size(), 1, &stored), 5u) << target;
    EXPECT_EQ(stored, 0b01'0110'1010u) << target;
    EXPECT_EQ(exchange_signs(acc.data(), values.size(), 1, &stored), 0u) << target;
    acc.data()[0] = -7;  // flips to negative
    acc.data()[3] = 0;   // flips to positive
    acc.data()[8] = -5;  // another value of the same sign
    EXPECT_EQ(exchange_signs(acc.data(), values.size(), 1, &stored), 2u) << target;
    EXPECT_EQ(stored, 0b01'0110'0011u) << target;
  });
}

TEST(Signs, OneIn32LooksAtElements0And32And64Only) {
  on_every_target([&](std::string_view target) {
    Accumulator acc(65, -1.0f);
    acc.data()[0] = acc.data()[32] = acc.data()[64] = 1.0f;
    std::uint64_t stored = 0;
    EXPECT_EQ(exchange_signs(acc.data(), 65, 32, &stored), 0u) << target;
    acc.data()[32] = -1.0f;
    EXPECT_EQ(exchange_signs(acc.data(), 65, 32, &stored), 1u) << target;
    EXPECT_EQ(stored, 0b010u) << target;
  });
}

TEST_P(Signs, MatchABitLevelReferenceAtEveryLengthOverSeveralRounds) {
  const std::uint16_t stride = GetParam();
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 0; length <= kMaxLength; ++length) {
      const std::size_t words = sign_words(length, stride);
      SignReference reference(words + 1);  // a word more, which must stay as it is
      std::vector<std::uint64_t> stored(words + 1, kPattern);
      for (std::uint64_t round = 0; round < 4; ++round) {
        const auto bits = awkward_bits(length, 31 * length + round);
        Accumulator acc(length, -1.0f);
        for (std::size_t i = 0; i < length; ++i) acc.data()[i] = float_of_bits(bits[i]);
        const std::uint64_t expected = reference.exchange(acc.data(), length, stride);
        ASSERT_EQ(exchange_signs(acc.data(), length, stride, stored.data()), expected)
            << target << " length " << length << " round " << round;
        ASSERT_EQ(stored, reference.words()) << target << " length " << length;
      }
    }
  });
}

TEST_P(Signs, OfABigChunkMatchTheReference) {
  const std::uint16_t stride = GetParam();
  constexpr std::size_t kLength = 64 * 32 * 2 + 16;  // whole lines, two words and one sample
  on_every_target([&](std::string_view target) {
    GuardedBytes memory(kLength * sizeof(float));
    float* acc = aligned_end(memory);
    SignReference reference(sign_words(kLength, stride));
    std::vector<std::uint64_t> stored(sign_words(kLength, stride), kPattern);
    for (std::uint64_t round = 0; round < 3; ++round) {
      const auto bits = awkward_bits(kLength, 77 + round);
      std::memcpy(acc, bits.data(), kLength * sizeof(float));
      ASSERT_EQ(exchange_signs(acc, kLength, stride, stored.data()),
                reference.exchange(acc, kLength, stride))
          << target;
      ASSERT_EQ(stored, reference.words()) << target;
    }
  });
}

TEST(SquaredNorm, OfSmallIntegersIsExactForEveryDtypeLengthAndAlignment) {
  on_every_target([&](std::string_view target) {
    for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
      for (std::size_t length = 0; length <= kMaxLength; ++length) {
        GuardedBytes payload(length * dtype_bytes(dtype) + length % 3);
        double expected = 0;
        for (std::size_t i = 0; i < length; ++i) {
          const float value = static_cast<float>(static_cast<int>(i * 7 % 13) - 6);
          expected += double{value} * value;
          if (dtype == Dtype::kFloat32) {
            std::memcpy(payload.data() + i * 4, &value, 4);
          } else {
            const std::uint16_t narrow = encode_reference(value, format_of(dtype));
            std::memcpy(payload.data() + i * 2, &narrow, 2);
          }
        }
        ASSERT_EQ(squared_norm(payload.data(), length, dtype), expected)
            << target << " length " << length;
      }
    }
  });
}

TEST(SquaredNorm, OfAChunkOfGaussiansIsWithin1e5OfTheSumInDouble) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> gaussian(0, 1e-3f);
  std::vector<float> values(2208);
  double expected = 0;
  for (float& value : values) {
    value = gaussian(random);
    expected += double{value} * value;
  }
  on_every_target([&](std::string_view target) {
    const double norm = squared_norm(reinterpret_cast<const std::uint8_t*>(values.data()),
                                     values.size(), Dtype::kFloat32);
    EXPECT_NEAR(norm / expected, 1, 1e-5) << target;
  });
}

TEST(SquaredNorm, TakenWithTheSumChangesNeither) {
  on_every_target([&](std::string_view target) {
    for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8}) {
      for (std::size_t length = 1; length <= kMaxLength; ++length) {
        Accumulator apart(length, 12345.0f), together(length, 12345.0f);
        for (std::size_t rank = 0; rank < 3; ++rank) {
          const std::size_t bytes = payload_bytes(dtype, length);
          GuardedBytes payload(bytes + rank);
          std::vector<float> values(length);
          for (std::size_t i = 0; i < length; ++i)
            values[i] = static_cast<float>((i * 7 + rank * 5) % 13) - 6;
          if (dtype == Dtype::kFloat32)
            std::memcpy(payload.data(), values.data(), bytes);
          else
            pack(values.data(), std::vector<float>(length).data(), length, dtype, payload.data());
          (rank == 0 ? fold_store : fold_add)(apart.data(), payload.data(), length, dtype);
          const double norm =
              fold_with_norm(together.data(), rank != 0, payload.data(), length, dtype);
          ASSERT_EQ(norm, squared_norm(payload.data(), length, dtype)) << target << ' ' << length;
          for (std::size_t i = 0; i <= length; ++i)
            ASSERT_EQ(together.data()[i], apart.data()[i])
                << target << " length " << length << " element " << i;
        }
      }
    }
  });
}

TEST(SquaredNorm, SaysThatAnElementIsNotFinite) {
  on_every_target([&](std::string_view target) {
    for (std::size_t at : {0, 17, 68}) {
      for (float bad :
           {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        std::vector<float> values(69, 1.0f);
        values[at] = bad;
        const double norm = squared_norm(reinterpret_cast<const std::uint8_t*>(values.data()),
                                         values.size(), Dtype::kFloat32);
        EXPECT_FALSE(std::isfinite(norm)) << target << " element " << at;
      }
    }
  });
}

}  // namespace
}  // namespace sluice::agg

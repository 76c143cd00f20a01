// The findings of the pass that makes a result of a sum, against separate passes.
#include <gtest/gtest.h>

#include <optional>

#include "aggregator/base/policy_options.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/signs.h"
#include "tests/unit/fold/fold_reference.h"

namespace sluice::agg {
namespace {

constexpr std::size_t kMaxLength = 200;  // three words of signs, and a remainder of every vector's
constexpr std::uint64_t kWeight = 3;
constexpr std::uint64_t kPattern = 0xa5c3'0f1e'7788'2d4b;  // of signs that nobody may touch

// How a result is written.
struct Way {
  const char* name;
  Dtype result;
  bool unbiased;
};
constexpr Way kWays[] = {
    {"float32", Dtype::kFloat32, false},           {"float16", Dtype::kFloat16, false},
    {"bfloat16", Dtype::kBfloat16, false},         {"float16_unbiased", Dtype::kFloat16, true},
    {"bfloat16_unbiased", Dtype::kBfloat16, true}, {"int8", Dtype::kInt8, true},
};

Finished finish(const Way& way, const float* acc, std::size_t length, std::uint8_t* out,
                const Wanted& wanted) {
  return way.unbiased ? finish_unbiased(acc, length, kWeight, way.result, 77, out, wanted)
                      : agg::finish(acc, length, kWeight, way.result, out, wanted);
}

std::uint16_t checksum(std::span<const std::uint8_t> bytes) {
  return wire::finish_checksum(wire::sum_bytes(bytes));
}

// Sums of one sign and the other, one of them `bad`.
Accumulator sums_of(std::size_t length, std::optional<float> bad = std::nullopt) {
  Accumulator acc(length, 12345.0f);
  for (std::size_t i = 0; i < length; ++i)
    acc.data()[i] = static_cast<float>(static_cast<int>(i * 29 % 101) - 50) / 7;
  if (bad) acc.data()[length * 3 / 5] = *bad;
  return acc;
}

class Finish : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(EveryWay, Finish, testing::ValuesIn(kWays),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(Finish, FindsTheChecksumAndTheSignsOfPassesOfTheirOwn) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= kMaxLength; ++length) {
      for (const std::optional<float> bad :
           {std::optional<float>(), std::optional(std::numeric_limits<float>::infinity()),
            std::optional(-std::nanf(""))}) {
        Accumulator acc = sums_of(length, bad);
        std::vector<std::uint64_t> expected(sign_words(length, kAllSigns) + 1, kPattern);
        std::vector<std::uint64_t> signs = expected;
        const std::uint64_t flipped =
            exchange_signs(acc.data(), length, kAllSigns, expected.data());

        const std::size_t bytes = payload_bytes(GetParam().result, length);
        std::vector<std::uint8_t> plain(bytes);
        (void)finish(GetParam(), acc.data(), length, plain.data(), {});
        GuardedBytes out(bytes);
        const Finished found =
            finish(GetParam(), acc.data(), length, out.data(), {.signs = signs.data()});
        ASSERT_EQ(std::memcmp(out.data(), plain.data(), bytes), 0) << target << ' ' << length;
        ASSERT_EQ(found.finite, !bad) << target << ' ' << length;
        ASSERT_EQ(wire::finish_checksum(found.sum), checksum(plain)) << target << ' ' << length;
        ASSERT_EQ(found.signs_flipped, flipped) << target << ' ' << length;
        ASSERT_EQ(signs, expected) << target << ' ' << length;
      }
    }
  });
}

TEST_P(Finish, InPlaceItFindsTheSame) {
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 2; length <= kMaxLength; ++length) {  // int8 has its scale besides
      Accumulator acc = sums_of(length);
      const std::size_t bytes = payload_bytes(GetParam().result, length);
      std::vector<std::uint8_t> apart(bytes);
      std::vector<std::uint64_t> expected(sign_words(length, kAllSigns));
      std::vector<std::uint64_t> signs = expected;
      const Finished first =
          finish(GetParam(), acc.data(), length, apart.data(), {.signs = expected.data()});
      auto* const in_place = reinterpret_cast<std::uint8_t*>(acc.data());
      const Finished second =
          finish(GetParam(), acc.data(), length, in_place, {.signs = signs.data()});
      ASSERT_EQ(std::memcmp(in_place, apart.data(), bytes), 0) << target << ' ' << length;
      ASSERT_EQ(second.sum.value, first.sum.value) << target << ' ' << length;
      ASSERT_EQ(second.signs_flipped, first.signs_flipped) << target << ' ' << length;
      ASSERT_EQ(signs, expected) << target << ' ' << length;
      ASSERT_EQ(acc.data()[length], 12345.0f) << target << ": wrote past the accumulator";
    }
  });
}

TEST_P(Finish, FindsTheSquaredNormOfWhatItWrites) {
  const double error = GetParam().result == Dtype::kInt8 ? 0.1 : 0.01;  // of rounding
  on_every_target([&](std::string_view target) {
    for (std::size_t length = 1; length <= kMaxLength; ++length) {
      Accumulator acc = sums_of(length);
      const float divisor = GetParam().result == Dtype::kFloat32 ? 1.0f : kWeight;
      double expected = 0;
      for (std::size_t i = 0; i < length; ++i) {
        const double value = acc.data()[i] / divisor;
        expected += value * value;
      }
      std::vector<std::uint8_t> out(payload_bytes(GetParam().result, length));
      const Finished found = finish(GetParam(), acc.data(), length, out.data(), {.norm = true});
      ASSERT_NEAR(found.squared_norm / expected, 1, error) << target << ' ' << length;
      ASSERT_NEAR(found.squared_norm / squared_norm(out.data(), length, GetParam().result), 1,
                  error)
          << target << ' ' << length;
      ASSERT_EQ(wire::finish_checksum(found.sum), checksum(out)) << target << ' ' << length;
    }
  });
}

TEST(Finish, BytesHaveAChecksumToo) {
  const std::string text = "opaque \xff\x00\x7f bytes, and an odd number of them";
  Accumulator acc(text.size());
  std::vector<std::uint8_t> out(text.size());
  fold_store(acc.data(), reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
             Dtype::kBytes);
  const Finished found = agg::finish(acc.data(), text.size(), 1, Dtype::kBytes, out.data());
  EXPECT_EQ(wire::finish_checksum(found.sum), checksum(out));
}

}  // namespace
}  // namespace sluice::agg

#include <gtest/gtest.h>

#include "tests/unit/fold/fold_reference.h"

namespace sluice::agg {
namespace {

class FoldConvert : public testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(NarrowDtypes, FoldConvert,
                         testing::Values(Dtype::kFloat16, Dtype::kBfloat16),
                         [](const auto& instance) {
                           return instance.param == Dtype::kFloat16 ? "float16" : "bfloat16";
                         });

std::vector<std::uint16_t> encode_all(const std::vector<float>& values, Dtype dtype) {
  Accumulator acc(values.size());
  std::copy(values.begin(), values.end(), acc.data());
  std::vector<std::uint16_t> out(values.size());
  constexpr std::size_t kPiece = 16 << 10;  // a result has 64 KiB at most
  for (std::size_t at = 0; at < values.size(); at += kPiece)
    (void)finish(acc.data() + at, std::min(kPiece, values.size() - at), 1, dtype,
                 reinterpret_cast<std::uint8_t*>(out.data() + at));
  return out;
}

void expect_encoded_as_reference(const std::vector<float>& values, Dtype dtype,
                                 std::string_view target) {
  const auto encoded = encode_all(values, dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(encoded[i], encode_reference(values[i], format_of(dtype)))
        << target << " bits " << std::hex << bits_of(values[i]);
  }
}

TEST(FoldReference, KnowsPublishedValues) {
  EXPECT_EQ(decode_reference(0x3c00, kHalf), 1.0f);
  EXPECT_EQ(decode_reference(0x7bff, kHalf), 65504.0f);
  EXPECT_EQ(decode_reference(0x0001, kHalf), 0x1p-24f);
  EXPECT_EQ(decode_reference(0x3f80, kBrain), 1.0f);
  EXPECT_EQ(decode_reference(0x0001, kBrain), 0x1p-133f);
  EXPECT_EQ(encode_reference(65519.0f, kHalf), 0x7bff);
  EXPECT_EQ(encode_reference(65520.0f, kHalf), 0x7c00);
  EXPECT_EQ(encode_reference(2049.0f, kHalf), 0x6800);  // a tie goes to the even neighbour
  EXPECT_EQ(encode_reference(-0.0f, kBrain), 0x8000);
  EXPECT_EQ(encode_reference(std::nanf(""), kHalf), 0x7e00);
  EXPECT_EQ(encode_reference(std::nanf(""), kBrain), 0x7fc0);
}

TEST_P(FoldConvert, EveryPatternWidensToItsValueOnEveryTarget) {
  std::vector<std::uint16_t> patterns(1 << 16);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  on_every_target([&](std::string_view target) {
    Accumulator acc(patterns.size());
    fold_store(acc.data(), reinterpret_cast<const std::uint8_t*>(patterns.data()), patterns.size(),
               GetParam());
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      const float expected = decode_reference(patterns[i], format_of(GetParam()));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(acc.data()[i])) << target << " pattern " << i;
      } else {
        ASSERT_EQ(bits_of(acc.data()[i]), bits_of(expected)) << target << " pattern " << i;
      }
    }
  });
}

TEST_P(FoldConvert, EveryPatternSurvivesARoundTripOfWeightOne) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    values.push_back(decode_reference(static_cast<std::uint16_t>(i), format_of(GetParam())));
  }
  on_every_target([&](std::string_view target) {
    const auto encoded = encode_all(values, GetParam());
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) continue;
      ASSERT_EQ(encoded[i], i) << target;
    }
  });
}

TEST_P(FoldConvert, RoundsToNearestEvenOnBothSidesOfEveryBoundary) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 0x7f80; ++i) {
    const float low = decode_reference(static_cast<std::uint16_t>(i), format_of(GetParam()));
    const float high = decode_reference(static_cast<std::uint16_t>(i + 1), format_of(GetParam()));
    if (!std::isfinite(low)) break;
    const float middle = std::isfinite(high) ? static_cast<float>((double{low} + high) / 2) : low;
    for (float value : {low, middle}) {
      values.push_back(std::nextafter(value, 0.0f));
      values.push_back(value);
      values.push_back(std::nextafter(value, std::numeric_limits<float>::infinity()));
      values.push_back(-value);
    }
  }
  for (float value : {65519.99f, 65520.0f, 65535.9f, 65536.0f, 3.3961776e38f}) {
    values.push_back(value);  // about each format's overflow
    values.push_back(-value);
  }
  on_every_target(
      [&](std::string_view target) { expect_encoded_as_reference(values, GetParam(), target); });
}

TEST_P(FoldConvert, AwkwardFloatsRoundAsTheReferenceDoes) {
  std::vector<float> values;
  for (std::uint32_t bits : awkward_bits(1 << 18, 7)) values.push_back(float_of_bits(bits));
  on_every_target(
      [&](std::string_view target) { expect_encoded_as_reference(values, GetParam(), target); });
}

}  // namespace
}  // namespace sluice::agg

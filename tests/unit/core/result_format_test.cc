// Sums whose results travel in another format than the contributions, as in a BCube.
#include <gmock/gmock.h>

#include <cstring>

#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using testing::ElementsAre;
using wire::PacketType;

using Bfloats = std::vector<std::uint16_t>;
constexpr std::uint16_t kOneAndAHalf = 0x3fc0, kTwo = 0x4000;

constexpr DataOptions kRounded{.dtype = Dtype::kBfloat16, .flags = wire::kFlagRounded};

DataOptions asking_for(DataOptions options, Dtype result, std::uint32_t weight = 1) {
  options.result = wire::result_code(options.dtype, result);
  options.weight = weight;
  return options;
}

struct Result {
  wire::ResultHeader header;
  std::vector<std::uint8_t> payload;

  std::uint64_t weight() const { return header.weight; }  // not a reference: the header is packed
  bool is_mean() const { return (header.feedback.flags & wire::kFlagMean) != 0; }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> values(payload.size() / sizeof(T));
    std::memcpy(values.data(), payload.data(), payload.size());
    return values;
  }
};

Result result_of(Harness& harness) {
  const std::vector<Sent> sent = harness.drain(PacketType::kResult);
  EXPECT_EQ(sent.size(), 2u);
  if (sent.empty()) return {};
  const wire::Packet& packet = sent.front().packet;
  return {packet.body<wire::ResultHeader>(), {packet.payload().begin(), packet.payload().end()}};
}

TEST(ResultFormats, OfRoundedElementsTheSumIsFloat32) {
  Harness harness;
  const DataOptions options = asking_for(kRounded, Dtype::kFloat32, 3);
  harness.contribute(0, 1, 0, Bfloats{kOneAndAHalf, kTwo}, options);
  harness.contribute(1, 1, 0, Bfloats{kTwo, kTwo}, options);
  const Result result = result_of(harness);
  EXPECT_EQ(result.header.dtype, Dtype::kFloat32);
  EXPECT_FALSE(result.is_mean());
  EXPECT_EQ(result.weight(), 6u);
  EXPECT_THAT(result.values<float>(), ElementsAre(3.5f, 4.0f));
}

TEST(ResultFormats, OfFloat32TheMeanIsRounded) {
  Harness harness;
  harness.contribute<float>(0, 1, 0, {5, 1}, asking_for({}, Dtype::kBfloat16, 3));
  harness.contribute<float>(1, 1, 0, {3, 5}, asking_for({}, Dtype::kBfloat16, 1));
  const Result result = result_of(harness);
  EXPECT_EQ(result.header.dtype, Dtype::kBfloat16);
  EXPECT_TRUE(result.is_mean());
  EXPECT_EQ(result.weight(), 4u);
  EXPECT_THAT(result.values<std::uint16_t>(), ElementsAre(kTwo, kOneAndAHalf));
}

TEST(ResultFormats, AnAverageIsPassedOnAsItIsWithItsWeight) {
  Harness harness;
  DataOptions options = kRounded;
  options.flags |= wire::kFlagMean;
  options.weight = 9;
  harness.contribute(0, 1, 0, Bfloats{kOneAndAHalf, kTwo}, options);
  harness.contribute<float>(1, 1, 0, {}, {.weight = 0, .nil = true});
  const Result result = result_of(harness);
  EXPECT_EQ(result.header.dtype, Dtype::kBfloat16);
  EXPECT_TRUE(result.is_mean());
  EXPECT_EQ(result.weight(), 9u);
  EXPECT_THAT(result.values<std::uint16_t>(), ElementsAre(kOneAndAHalf, kTwo));
}

TEST(ResultFormats, ThatOthersDidNotAskForOrNoPacketHoldsAreRefused) {
  Harness harness;
  const DataOptions wide = asking_for(kRounded, Dtype::kFloat32);
  EXPECT_EQ(harness.contribute(0, 1, 0, Bfloats(kTestChunkBytes / 2), wide),
            Verdict::kShapeMismatch);
  EXPECT_EQ(harness.contribute(0, 1, 0, Bfloats{kTwo}, wide), Verdict::kFolded);
  EXPECT_EQ(harness.contribute(1, 1, 0, Bfloats{kTwo}, kRounded), Verdict::kShapeMismatch);
  DataOptions mean = wide;
  mean.flags |= wire::kFlagMean;
  EXPECT_EQ(harness.contribute(1, 1, 0, Bfloats{kTwo}, mean), Verdict::kShapeMismatch);
  EXPECT_EQ(harness.contribute(1, 1, 0, Bfloats{kTwo}, wide), Verdict::kCompleted);
}

}  // namespace
}  // namespace sluice::agg

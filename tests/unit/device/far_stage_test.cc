// Far tensors between device and session: kernels and copies in turn, and the bytes that cross the
// bus.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "client/device/copy_stage.h"

namespace sluice::client {
namespace {

using testing::HasSubstr;
using Direction = CopyStage::Direction;

class FarStage : public testing::Test {
 protected:
  static constexpr std::size_t kRounded = 0, kPruned = 1, kElems = 1000;
  static PruneOptions pruning() { return {.rule = PruneRule::kStatic, .fraction = 0.1}; }
  static Layout layout() {
    std::vector<TensorSpec> tensors{{"rounded", kElems}, {"pruned", 2 * kElems}, {"exact", 10}};
    tensors[2].exact = true;
    const FarChoice choice = choose_far(tensors, Dtype::kBfloat16, pruning(), "");
    CHECK(choice.far_count == 2 && choice.near_count == 0);
    return Layout::create(tensors, 256, Dtype::kBfloat16).value();
  }
  FarStage() : staging_(CopyStage::staging_bytes(layout_, &buffers_)) {
    buffers_.place_on_device(reinterpret_cast<std::uint8_t*>(device_.data()));
  }
  void submit(std::uint32_t tensor, bool with_gradient = true) {
    stage_.accept({.tensor = tensor,
                   .input = with_gradient ? gradient_.data() : nullptr,
                   .output = gradient_.data()},
                  nullptr, true);
  }
  // The only thing that may begin now.
  CopyStage::Copy next(Direction direction) {
    CopyStage::Copy copy, other;
    EXPECT_TRUE(stage_.poll_copy(copy));
    EXPECT_EQ(copy.direction, direction);
    EXPECT_FALSE(stage_.poll_copy(other));
    return copy;
  }
  void step(Direction direction, std::size_t bytes) {
    const CopyStage::Copy copy = next(direction);
    if (CopyStage::is_copy(direction)) {
      EXPECT_EQ(copy.bytes, bytes);
    }
    stage_.copied(copy);
  }
  Submission ready() {
    Submission submission;
    EXPECT_TRUE(stage_.poll_ready(submission));
    return submission;
  }
  void pack(std::uint32_t tensor) {
    step(Direction::kPack, 0);
    const DeviceBuffers::Buffer& buffer = *buffers_.find(tensor);
    if (!buffer.prunes) return step(Direction::kIn, buffer.dense_bytes);
    reinterpret_cast<FarExtent*>(buffer.in)[buffer.chunk_count] = {
        buffer.chunk_count};  // a byte each
    step(Direction::kIn, buffer.extent_bytes);
    step(Direction::kIn, buffer.chunk_count);
  }
  std::vector<std::pair<std::uint32_t, StatusCode>> done() {
    std::vector<std::pair<std::uint32_t, StatusCode>> all;
    for (CopyStage::Done one; stage_.poll_done(one);) all.push_back({one.tensor, one.code});
    return all;
  }
  using DoneList = std::vector<std::pair<std::uint32_t, StatusCode>>;

  const Layout layout_ = layout();
  DeviceBuffers buffers_{layout_, pruning()};
  std::vector<std::uint8_t> staging_;
  std::vector<float> device_ = std::vector<float>(buffers_.device_bytes() / sizeof(float));
  std::vector<float> gradient_ = std::vector<float>(2 * kElems);
  CopyStage stage_{layout_, staging_, {1 << 20, 1 << 20}, &buffers_};
};

TEST_F(FarStage, CopiesWhatLeavesAndWhatCameAndNoMore) {
  EXPECT_FALSE(stage_.is_far(2));
  for (const std::uint32_t tensor : {kRounded, kPruned}) {
    DeviceBuffers::Buffer& buffer = *buffers_.find(tensor);
    submit(tensor);
    EXPECT_THAT(stage_.describe(layout_), HasSubstr("is packed on the device"));
    pack(tensor);
    const Submission given = ready();
    ASSERT_EQ(given.far, &buffer.tensor);
    EXPECT_EQ(given.far->extents != nullptr, buffer.prunes);
    const std::vector<std::uint8_t> bytes(7);
    given.far->keep_result(0, bytes, 1, 2);
    given.far->fates[1] = Fate::kMissed;
    EXPECT_TRUE(stage_.summed(tensor, StatusCode::kOk, false));
    step(Direction::kOut, buffer.head_bytes + 7);
    EXPECT_TRUE(done().empty());
    const CopyStage::Copy last = next(Direction::kFinish);
    EXPECT_EQ(last.input, gradient_.data());
    EXPECT_EQ(last.output, gradient_.data());
    stage_.copied(last);
    EXPECT_EQ(done(), (DoneList{{tensor, StatusCode::kOk}}));
    buffer.begin_anew();
    EXPECT_EQ(buffer.tensor.fates[1], Fate::kOpen);
    EXPECT_EQ(buffer.tensor.value_bytes, 0u);
  }
  EXPECT_TRUE(stage_.idle());
}

TEST_F(FarStage, NeedsNoKernelBeforeWhatHasNoGradient) {
  submit(kPruned, false);
  EXPECT_EQ(ready().input, nullptr);
  EXPECT_TRUE(stage_.summed(kPruned, StatusCode::kOk, true));
  const CopyStage::Copy last = next(Direction::kFinish);
  EXPECT_EQ(last.input, nullptr);
  EXPECT_EQ(last.output, nullptr) << "nobody had data";
  stage_.copied(last);
  EXPECT_EQ(done(), (DoneList{{kPruned, StatusCode::kOk}}));
}

TEST_F(FarStage, UpdatesResidualsOfWhatWasGivenUpWhileTheDeviceWorks) {
  const std::size_t fates = buffers_.find(kRounded)->fate_bytes;
  for (const bool works : {true, false}) {
    submit(kRounded);
    pack(kRounded);
    ready();
    EXPECT_TRUE(stage_.summed(kRounded, StatusCode::kBehind, false));
    if (!works) stage_.device_failed();
    stage_.give_up(StatusCode::kClosed, false);
    if (works) {
      step(Direction::kOut, fates);
      const CopyStage::Copy last = next(Direction::kFinish);
      EXPECT_NE(last.input, nullptr);
      EXPECT_EQ(last.output, nullptr);
      stage_.copied(last);
    }
    EXPECT_EQ(done(), (DoneList{{kRounded, works ? StatusCode::kBehind : StatusCode::kClosed}}));
    EXPECT_TRUE(stage_.idle());
  }
}

TEST_F(FarStage, GivesChunksBackOnceEachAndInOrder) {
  DeviceBuffers::Buffer& buffer = *buffers_.find(kRounded);
  for (const std::uint32_t chunk : {4u, 2u, 4u, 1u}) {
    buffer.tensor.given_chunks.push_back(chunk);
    buffer.tensor.given_payloads.resize(
        buffer.tensor.given_payloads.size() + buffer.tensor.dense_bytes,
        static_cast<std::uint8_t>(chunk));
  }
  const auto gives = [&](const std::vector<std::uint32_t>& chunks) {
    buffer.take_given();
    EXPECT_EQ(buffer.giving_chunks, chunks);
    ASSERT_EQ(buffer.giving_payloads.size(), chunks.size() * buffer.tensor.dense_bytes);
    for (std::size_t i = 0; i < chunks.size(); ++i)
      EXPECT_EQ(buffer.giving_payloads[i * buffer.tensor.dense_bytes], chunks[i]);
  };
  gives({4, 2});
  gives({4, 1});
  gives({});
}

TEST_F(FarStage, MovesAndScalesResidualsInOrderWithTheRest) {
  const std::span<std::uint8_t> buffer = stage_.residual_staging(kRounded);
  EXPECT_GE(buffer.size(), kElems * 2);
  stage_.copy_residual(kRounded, Direction::kIn, 400, 80);
  EXPECT_TRUE(stage_.holds(kRounded));
  const CopyStage::Copy copy = next(Direction::kIn);
  EXPECT_EQ(copy.host, buffer.data());
  EXPECT_EQ(copy.device, reinterpret_cast<std::uint8_t*>(buffers_.find(kRounded)->residual) + 400);
  EXPECT_EQ(copy.bytes, 80u);
  stage_.give_up(StatusCode::kClosed, false);  // jobs that have ended have residuals too
  stage_.copied(copy);
  EXPECT_FALSE(stage_.holds(kRounded));
  EXPECT_EQ(stage_.outcome(kRounded), StatusCode::kOk);
  EXPECT_TRUE(done().empty());
  stage_.scale(0.5f);
  submit(kRounded);
  CopyStage::Copy scale;
  ASSERT_TRUE(stage_.poll_copy(scale));
  EXPECT_EQ(scale.direction, Direction::kScale);
  EXPECT_EQ(scale.factor, 0.5f);
  pack(kRounded);  // behind it
  EXPECT_TRUE(stage_.scales());
  stage_.copied(scale);
  EXPECT_FALSE(stage_.scales());
}

// The whole of the choice, by what a job asks for.
TEST(FarChoice, TakesWhatTheKernelsKnowAndSaysWhyTheRestIsNot) {
  const auto choose = [](Dtype wire, const PruneOptions& pruning, const char* why_none = "") {
    std::vector<TensorSpec> tensors{
        {"big", 5000}, {"small", 10}, {"half", 5000, Dtype::kFloat16}, {"exact", 5000}};
    tensors[3].exact = true;
    return choose_far(tensors, wire, pruning, why_none);
  };
  EXPECT_EQ(choose(Dtype::kFloat32, {}).describe(), "");
  EXPECT_EQ(choose(Dtype::kInt8, {}).far_count, 2u);
  EXPECT_EQ(choose(Dtype::kFloat32, {.rule = PruneRule::kStatic}).far_count, 1u);
  const FarChoice mixed = choose(Dtype::kInt8, {.rule = PruneRule::kSampled});
  EXPECT_EQ(mixed.far_count, 1u) << "what is too small to be pruned";
  EXPECT_THAT(mixed.describe(), testing::AllOf(HasSubstr("1 tensors are pruned and rounded on"),
                                               HasSubstr("1 tensors, 'big' first, cross the bus"),
                                               HasSubstr("'sampled' is the host's")));
  EXPECT_EQ(choose(Dtype::kFloat32, {.rule = PruneRule::kStatic, .momentum = 0.9f}).near_count, 2u);
  EXPECT_THAT(choose(Dtype::kInt8, {}, "no kernels").describe(), HasSubstr("no kernels"));
  std::vector<TensorSpec> huge{{"huge", std::size_t{1} << 32}};
  EXPECT_THAT(choose_far(huge, Dtype::kInt8, {}, "").describe(), HasSubstr("fewer than 2^32"));
}

}  // namespace
}  // namespace sluice::client

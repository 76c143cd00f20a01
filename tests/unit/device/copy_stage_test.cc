// Gradients between device and session: the times of the copies, and their results.
#include "client/device/copy_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace sluice::client {
namespace {

using testing::HasSubstr;
using Direction = CopyStage::Direction;

constexpr std::size_t kPiece = 256;
constexpr std::size_t kFlight = 512;

// A stage with memory of a device for each tensor, and a clock-less device: copies run until the
// test ends them.
class Stage : public testing::Test {
 protected:
  static Layout layout() {
    return Layout::create({{"big", 1000}, {"small", 10}, {"mid", 100}}, 256).value();
  }
  Stage() : staging_(CopyStage::staging_bytes(layout_)) {
    for (std::uint32_t tensor = 0; tensor < layout_.tensor_count(); ++tensor)
      memory_.emplace_back(layout_.tensor(tensor).elem_count, static_cast<float>(tensor + 1));
  }

  void submit(std::uint32_t tensor, Priority priority = 0, bool on_device = true,
              sluice_device_mark* fence = nullptr) {
    float* const at = memory_[tensor].data();
    stage_.accept({.tensor = tensor, .input = at, .output = at, .priority = priority}, fence,
                  on_device);
  }
  std::vector<CopyStage::Copy> started() {
    std::vector<CopyStage::Copy> copies;
    for (CopyStage::Copy copy; stage_.poll_copy(copy);) copies.push_back(copy);
    return copies;
  }
  void end(const CopyStage::Copy& copy) {
    if (copy.direction == Direction::kIn)
      std::memcpy(copy.host, copy.device, copy.bytes);
    else
      std::memcpy(copy.device, copy.host, copy.bytes);
    stage_.copied(copy);
  }
  // All copies that there are, to the last.
  void copy_all() {
    for (auto copies = started(); !copies.empty(); copies = started())
      for (const CopyStage::Copy& copy : copies) end(copy);
  }
  std::vector<std::uint32_t> ready() {
    std::vector<std::uint32_t> tensors;
    for (Submission submission; stage_.poll_ready(submission);) {
      tensors.push_back(submission.tensor);
      last_ = submission;
    }
    return tensors;
  }
  std::vector<std::pair<std::uint32_t, StatusCode>> done() {
    std::vector<std::pair<std::uint32_t, StatusCode>> all;
    for (CopyStage::Done one; stage_.poll_done(one);) all.push_back({one.tensor, one.code});
    return all;
  }
  using List = std::vector<std::uint32_t>;
  using DoneList = std::vector<std::pair<std::uint32_t, StatusCode>>;

  const Layout layout_ = layout();
  std::vector<std::vector<float>> memory_;
  std::vector<std::uint8_t> staging_;
  CopyStage stage_{layout_, staging_, {kPiece, kFlight}};
  Submission last_;
};

TEST_F(Stage, CopiesPiecesBothWaysAndTellsTheEndOnce) {
  submit(0);
  EXPECT_TRUE(ready().empty());
  auto copies = started();
  ASSERT_EQ(copies.size(), kFlight / kPiece);
  EXPECT_TRUE(started().empty()) << "more bytes on their way than may be";
  end(copies[1]);
  end(copies[0]);
  EXPECT_TRUE(ready().empty()) << "submitted before all of it was in host memory";
  copy_all();
  EXPECT_EQ(ready(), List{0});
  EXPECT_EQ(last_.input, last_.output);
  EXPECT_NE(last_.input, memory_[0].data());
  auto* const sum = static_cast<float*>(last_.output);
  ASSERT_EQ(std::count(sum, sum + 1000, 1.0f), 1000);
  std::fill_n(sum, 1000, 7.0f);
  EXPECT_TRUE(stage_.summed(0, StatusCode::kOk, false));
  EXPECT_TRUE(stage_.holds(0));
  EXPECT_TRUE(done().empty());
  copy_all();
  EXPECT_EQ(done(), (DoneList{{0, StatusCode::kOk}}));
  EXPECT_EQ(std::count(memory_[0].begin(), memory_[0].end(), 7.0f), 1000);
  EXPECT_TRUE(stage_.idle());
  EXPECT_FALSE(stage_.summed(0, StatusCode::kOk, false)) << "told of a tensor that is not here";
}

TEST_F(Stage, LetsTheMoreUrgentPassAllThatHasNotStarted) {
  submit(0, 9);
  const auto first = started();
  submit(2, 5);
  submit(1, 1);
  EXPECT_TRUE(started().empty());
  end(first[0]);
  auto next = started();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].tensor, 1u);
  end(next[0]);
  next = started();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].tensor, 2u);
}

TEST_F(Stage, TouchesNothingBeforeTheStreamsEarlierWorkIsDone) {
  auto* const mark = reinterpret_cast<sluice_device_mark*>(&staging_);
  submit(1, 0, true, mark);
  submit(2, 9);
  std::vector<CopyStage::Fence> fences;
  stage_.fences(fences);
  ASSERT_EQ(fences.size(), 1u);
  EXPECT_EQ(fences[0].mark, mark);
  EXPECT_THAT(stage_.describe(layout_), HasSubstr("'small' waits for its stream"));
  for (const auto& copy : started()) EXPECT_EQ(copy.tensor, 2u);
  stage_.passed(1);
  const auto copies = started();
  ASSERT_EQ(copies.size(), 1u) << "one of two pieces of 'mid' leaves room";
  EXPECT_EQ(copies[0].tensor, 1u);
}

// Without a gradient of its own a rank gets the average all the same, and not before its stream's
// earlier readers of that memory are done.
TEST_F(Stage, WritesAnAverageBehindTheFenceWhereNoGradientWasGiven) {
  auto* const mark = reinterpret_cast<sluice_device_mark*>(&staging_);
  stage_.accept({.tensor = 1, .output = memory_[1].data()}, mark, true);
  EXPECT_EQ(ready(), List{1});
  EXPECT_EQ(last_.input, nullptr);
  EXPECT_TRUE(stage_.summed(1, StatusCode::kOk, false));
  EXPECT_TRUE(started().empty());
  stage_.passed(1);
  copy_all();
  EXPECT_EQ(done(), (DoneList{{1, StatusCode::kOk}}));
}

TEST_F(Stage, LeavesTheOutputAloneWhereNobodyHadData) {
  submit(1);
  copy_all();
  EXPECT_EQ(ready(), List{1});
  EXPECT_TRUE(stage_.summed(1, StatusCode::kOk, true));
  EXPECT_TRUE(started().empty());
  EXPECT_EQ(done(), (DoneList{{1, StatusCode::kOk}}));
}

// "End the step" between two submissions stays between them, whatever is copied first.
TEST_F(Stage, KeepsTheEndOfAStepInItsPlace) {
  EXPECT_FALSE(stage_.end_step()) << "nothing is held back";
  submit(0, 9);
  EXPECT_TRUE(stage_.end_step());
  submit(1, 0);
  submit(2, 0, false);
  for (const auto& copy : started()) end(copy);
  EXPECT_TRUE(ready().empty()) << "of the next step, before this one is ended";
  EXPECT_FALSE(stage_.poll_end());
  copy_all();
  EXPECT_EQ(ready(), List{0});
  EXPECT_TRUE(stage_.poll_end());
  EXPECT_FALSE(stage_.poll_end());
  EXPECT_EQ(ready(), (List{1, 2}));
  EXPECT_EQ(last_.input, memory_[2].data()) << "host memory is submitted where it lies";
  EXPECT_TRUE(stage_.summed(2, StatusCode::kOk, false));
  EXPECT_EQ(done(), (DoneList{{2, StatusCode::kOk}}));
}

TEST_F(Stage, GivesMemoryBackWhenItsLastCopyHasEnded) {
  submit(0);
  submit(1);
  const auto copies = started();
  stage_.give_up(StatusCode::kPeerLost, false);
  EXPECT_EQ(done(), (DoneList{{1, StatusCode::kPeerLost}})) << "of 'big' copies run";
  EXPECT_TRUE(started().empty());
  end(copies[0]);
  EXPECT_TRUE(stage_.holds(0));
  end(copies[1]);
  EXPECT_EQ(done(), (DoneList{{0, StatusCode::kPeerLost}}));
  EXPECT_EQ(stage_.outcome(0), StatusCode::kPeerLost);
  submit(0);
  EXPECT_EQ(stage_.outcome(0), StatusCode::kOk);
}

TEST_F(Stage, WaitsForTheSessionsWordUnlessThatIsGone) {
  submit(1);
  copy_all();
  EXPECT_EQ(ready(), List{1});
  stage_.give_up(StatusCode::kClosed, false);
  EXPECT_TRUE(stage_.holds(1));
  stage_.give_up(StatusCode::kClosed, true);
  EXPECT_EQ(done(), (DoneList{{1, StatusCode::kClosed}}));
}

TEST_F(Stage, BoundsWhatRunsByTime) {
  const auto fast = CopyStage::limits_for(40e9);
  EXPECT_EQ(fast.in_flight_bytes, 2'000'000u);
  EXPECT_LE(fast.piece_bytes * 2, fast.in_flight_bytes);
  const auto unknown = CopyStage::limits_for(0);
  EXPECT_GT(unknown.piece_bytes, 0u);
  EXPECT_EQ(unknown.piece_bytes, unknown.in_flight_bytes);
}

// Any order of everything: each submission is submitted once, over once, its bytes there and back,
// no more bytes run than may, and steps end in order.
TEST_F(Stage, SurvivesAnyOrderOfEverything) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    CopyStage stage(layout_, staging_, {kPiece, kFlight});
    std::vector<CopyStage::Copy> running;
    std::vector<std::uint32_t> summing;
    std::vector<int> steps(3, 0), given(3, 0), over(3, 0);
    std::vector<bool> host(3, false);
    const auto act = [&](bool may_submit) {
      const std::uint32_t tensor = random() % 3;
      if (may_submit && random() % 4 == 0 && !stage.holds(tensor)) {
        host[tensor] = random() % 4 == 0;
        const float value = static_cast<float>(++steps[tensor]);
        std::fill(memory_[tensor].begin(), memory_[tensor].end(), value);
        stage.accept({.tensor = tensor,
                      .input = memory_[tensor].data(),
                      .output = memory_[tensor].data(),
                      .priority = static_cast<Priority>(random() % 4)},
                     nullptr, !host[tensor]);
      }
      if (may_submit && random() % 16 == 0) stage.end_step();
      for (CopyStage::Copy copy; stage.poll_copy(copy);) running.push_back(copy);
      std::size_t flight[2] = {0, 0};
      for (const auto& copy : running) flight[static_cast<int>(copy.direction)] += copy.bytes;
      ASSERT_LE(std::max(flight[0], flight[1]), kFlight);
      if (!running.empty() && random() % 2 == 0) {
        std::swap(running[random() % running.size()], running.back());
        const CopyStage::Copy copy = running.back();
        running.pop_back();
        const bool in = copy.direction == Direction::kIn;
        std::memcpy(in ? copy.host : copy.device, in ? copy.device : copy.host, copy.bytes);
        stage.copied(copy);
      }
      Submission submission;
      while (stage.poll_ready(submission)) {
        ++given[submission.tensor];
        auto* const values = static_cast<float*>(submission.output);
        const std::size_t count = memory_[submission.tensor].size();
        const float value = static_cast<float>(steps[submission.tensor]);
        ASSERT_EQ(static_cast<std::size_t>(std::count(values, values + count, value)), count);
        std::fill_n(values, count, -value);
        summing.push_back(submission.tensor);
      }
      stage.poll_end();
      if (!summing.empty() && random() % 2 == 0) {
        ASSERT_TRUE(stage.summed(summing.back(), StatusCode::kOk, false));
        summing.pop_back();
      }
      for (CopyStage::Done one; stage.poll_done(one);) {
        ++over[one.tensor];
        const auto& values = memory_[one.tensor];
        const float value = -static_cast<float>(steps[one.tensor]);
        ASSERT_EQ(static_cast<std::size_t>(std::count(values.begin(), values.end(), value)),
                  values.size());
      }
    };
    for (int i = 0; i < 300; ++i) act(true);
    for (int i = 0; i < 400 && !stage.idle(); ++i) act(false);
    ASSERT_TRUE(stage.idle());
    EXPECT_EQ(given, steps);
    EXPECT_EQ(over, steps);
  }
}

// Operations: rows that come and go, with memory that the stage asks for.
TEST(OperationRows, WaitForMemoryOnceAndUseItAgain) {
  CopyStage stage({kPiece, kFlight});
  std::vector<std::uint8_t> device(1000, 7), locked(1024), result(1000);
  const CopyStage::Place place{.in_at = 250, .in_bytes = 250, .out_bytes = 1000, .bytes = 1000};
  for (int round = 0; round < 3; ++round) {
    const std::uint32_t row = stage.begin({.input = device.data(), .output = result.data()}, place,
                                          "group 'g', operation 5", nullptr);
    EXPECT_EQ(row, 0u);
    EXPECT_EQ(stage.title_of(row, Layout::create({{"unused", 1}}, 256).value()),
              "group 'g', operation 5");
    CopyStage::Copy copy;
    if (round == 0) {
      ASSERT_TRUE(stage.poll_copy(copy));
      EXPECT_EQ(copy.direction, Direction::kLock);
      EXPECT_EQ(copy.bytes, 1024u) << "a power of two serves others";
      EXPECT_FALSE(stage.poll_copy(copy)) << "nothing else has begun";
      copy.host = locked.data();
      stage.copied(copy);
    }
    Submission submission;
    EXPECT_FALSE(stage.poll_ready(submission));
    ASSERT_TRUE(stage.poll_copy(copy));
    EXPECT_EQ(copy.direction, Direction::kIn);
    EXPECT_EQ(copy.host, locked.data() + 250);
    EXPECT_EQ(copy.bytes, 250u);
    stage.copied(copy);
    ASSERT_TRUE(stage.poll_ready(submission));
    EXPECT_EQ(submission.input, locked.data() + 250);
    EXPECT_EQ(submission.output, locked.data());
    stage.ended(row, round == 1 ? StatusCode::kTimedOut : StatusCode::kOk);
    std::size_t copied = 0;
    while (stage.poll_copy(copy)) {
      EXPECT_EQ(copy.direction, Direction::kOut);
      copied += copy.bytes;
      stage.copied(copy);
    }
    EXPECT_EQ(copied, round == 1 ? 0u : 1000u);
    CopyStage::Done done;
    ASSERT_TRUE(stage.poll_done(done));
    EXPECT_EQ(done.code, round == 1 ? StatusCode::kTimedOut : StatusCode::kOk);
    EXPECT_TRUE(stage.idle());
  }
}

TEST(OperationRows, AreOverWithTheirCopiesWhereTheSessionEndsThemBefore) {
  CopyStage stage({kPiece, kFlight});
  std::vector<std::uint8_t> device(1000, 7), locked(1024);
  int mark = 0;
  auto* const fence = reinterpret_cast<sluice_device_mark*>(&mark);
  const CopyStage::Place place{.in_bytes = 1000, .out_bytes = 1000, .bytes = 1000};
  const std::uint32_t row = stage.begin({.input = device.data(), .output = device.data()}, place,
                                        "group 'g', operation 0", fence);
  CopyStage::Copy copy;
  EXPECT_FALSE(stage.poll_copy(copy)) << "the stream's work comes first";
  stage.passed(row);
  ASSERT_TRUE(stage.poll_copy(copy));
  copy.host = locked.data();
  stage.copied(copy);
  ASSERT_TRUE(stage.poll_copy(copy));
  stage.ended(row, StatusCode::kPeerLost);
  CopyStage::Copy more;
  EXPECT_FALSE(stage.poll_copy(more));
  CopyStage::Done done;
  EXPECT_FALSE(stage.poll_done(done)) << "a copy still reads the device's memory";
  stage.copied(copy);
  ASSERT_TRUE(stage.poll_done(done));
  EXPECT_EQ(done.code, StatusCode::kPeerLost);
}

}  // namespace
}  // namespace sluice::client

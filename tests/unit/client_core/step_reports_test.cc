// What a step's results say of the ranks in them.
#include "client/core/sums/step_reports.h"

#include <gtest/gtest.h>

#include <array>

#include "aggregator/base/block.h"

namespace sluice::client {
namespace {

// A result without data of one chunk, which the ranks of `mask` are in.
void add(StepReports& reports, Step step, ChunkIndex chunk, std::uint64_t mask, std::uint16_t k,
         std::uint64_t weight) {
  wire::ResultHeader body{.k = k, .step = step, .chunk = chunk, .weight = weight, .may_count = 4};
  body.mask_words = 1;
  body.feedback.flags = wire::kFlagNil;
  const std::uint64_t chunks = chunk_bit(chunk);
  std::array<std::uint8_t, 256> bytes{};
  const std::size_t size =
      wire::encode(bytes, {.job = 1}, body, {&mask, 1},
                   {reinterpret_cast<const std::uint8_t*>(&chunks), sizeof chunks});
  wire::Packet packet;
  ASSERT_TRUE(ok(wire::parse({bytes.data(), size}, packet)));
  reports.add(packet, chunk, static_cast<std::uint16_t>(count_of(mask)));
}

TEST(StepReports, KeepsTheLeastOfItsChunksAndTheRanksInEveryAndInAnyOfThem) {
  StepReports reports(4);
  EXPECT_EQ(reports.open().step, 0u);
  add(reports, 3, 5, 0b0111, 3, 30);
  add(reports, 3, 2, 0b1110, 2, 20);
  reports.close(3);
  const StepReport* const report = reports.of(3);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report, reports.last());
  EXPECT_EQ(report->k, 2);
  EXPECT_EQ(report->weight, 20u);
  EXPECT_EQ(report->first_chunk, 2u);
  EXPECT_EQ(report->first_members, 3);
  EXPECT_EQ(report->in_every[0], 0b0110u);
  EXPECT_EQ(report->in_any[0], 0b1111u);
}

TEST(StepReports, ForgetsAStepThatIsGivenUpAndThoseOfLongAgo) {
  StepReports reports(2);
  add(reports, 1, 0, 0b01, 1, 1);
  reports.abandon();
  EXPECT_EQ(reports.open().step, 0u);
  reports.close(1);  // of which no result was wanted
  EXPECT_EQ(reports.of(1), nullptr);
  for (Step step = 2; step <= 2 + kReportedSteps; ++step) {
    add(reports, step, 0, 0b11, 2, 2);
    reports.close(step);
  }
  EXPECT_EQ(reports.of(2), nullptr);
  ASSERT_NE(reports.of(3), nullptr);
  EXPECT_EQ(reports.last()->step, Step{2 + kReportedSteps});
}

}  // namespace
}  // namespace sluice::client

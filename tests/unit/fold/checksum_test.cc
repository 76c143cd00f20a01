// The checksum's kernel on every instruction set, against RFC 1071 word by word; and the sums of
// headers.
#include "aggregator/wire/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "aggregator/core/fold.h"
#include "aggregator/wire/header.h"

namespace sluice::wire {
namespace {

std::vector<std::uint8_t> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

std::uint16_t word_by_word(std::span<const std::uint8_t> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 2) {
    sum += bytes[at] + (at + 1 < bytes.size() ? bytes[at + 1] << 8 : 0);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(~sum);
}

TEST(Checksum, IsTheSameOnEveryInstructionSetForEveryLengthAndAlignment) {
  const std::vector<std::uint8_t> bytes = random_bytes(2000);
  for (const std::string_view target : agg::fold_targets()) {
    ASSERT_TRUE(agg::force_fold_target(target));
    for (std::size_t count = 0; count <= 1600; count += count < 300 ? 1 : 97) {
      for (const std::size_t start : {0, 1, 2, 7, 42}) {
        const auto part = std::span(bytes).subspan(start, count);
        ASSERT_EQ(finish_checksum(sum_bytes(part)), word_by_word(part))
            << target << ", " << count << " bytes from " << start;
      }
    }
  }
  agg::force_fold_target("");
}

// Words of all ones and of all zeros are the ends of what a lane adds up.
TEST(Checksum, LosesNoCarryHoweverManyBytes) {
  for (const std::string_view target : agg::fold_targets()) {
    ASSERT_TRUE(agg::force_fold_target(target));
    for (const std::size_t count : {65'535, 65'536, 65'537, 200'001, 5'000'000}) {
      for (const std::uint8_t byte : {0x00, 0x7f, 0x80, 0xff}) {
        const std::vector<std::uint8_t> bytes(count, byte);
        ASSERT_EQ(finish_checksum(sum_bytes(bytes)), word_by_word(bytes)) << target << " " << count;
      }
      const std::vector<std::uint8_t> bytes = random_bytes(count);
      ASSERT_EQ(finish_checksum(sum_bytes(bytes)), word_by_word(bytes)) << target << " " << count;
    }
  }
  agg::force_fold_target("");
}

// Every field, its upper bits too: a new field makes this test fail.
TEST(Checksum, OfAFlowsNumbersFollowsFromThem) {
  const std::vector<std::uint8_t> bytes = random_bytes(sizeof(FeedbackHeader));
  FeedbackHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  EXPECT_EQ(finish_checksum(sum_of(header)), word_by_word(bytes));
}

}  // namespace
}  // namespace sluice::wire

// The log's lines about links, and the limit of repeated lines.

#include "dataplane/core/log_rate.h"

#include <gtest/gtest.h>

namespace sluice::dataplane {
namespace {

using Line = std::optional<std::uint64_t>;
constexpr Line kNone = std::nullopt;
constexpr TimeNs kStart = 100 * kSecond;

TEST(LinkLog, ALinkThatStaysDownAfterTheStartIsToldOnce) {
  LinkLog log;
  for (TimeNs now = kStart; now < kStart + LinkLog::kSettle; now += kSecond / 5)
    ASSERT_EQ(log.line(false, now), kNone) << "it may negotiate";
  EXPECT_EQ(log.line(false, kStart + LinkLog::kSettle), Line(0));
  for (TimeNs now = kStart + LinkLog::kSettle; now < kStart + 60 * kSecond; now += kSecond / 5)
    ASSERT_EQ(log.line(false, now), kNone);
}

TEST(LinkLog, ALinkThatComesUpInTimeIsToldWhenItDoes) {
  LinkLog log;
  EXPECT_EQ(log.line(false, kStart), kNone);
  EXPECT_EQ(log.line(true, kStart + kSecond), Line(0));
  for (TimeNs now = kStart + kSecond; now < kStart + 60 * kSecond; now += kSecond / 5)
    ASSERT_EQ(log.line(false, now), kNone);
}

TEST(LinkLog, TheFirstChangesOfALinkThatFlapsAreToldAndTheOthersCounted) {
  LinkLog log;
  TimeNs now = kStart;
  std::uint64_t changes = 0, lines = 0, counted = 0;
  for (; now < kStart + 10 * LogRate::kWindow; now += kMillisecond) {
    ++changes;
    if (const Line line = log.line(true, now)) ++lines, counted += *line;
    if (changes == LinkLog::kMostLines) {
      EXPECT_EQ(lines, LinkLog::kMostLines);
    }
  }
  EXPECT_EQ(lines, LinkLog::kMostLines + 9) << "one a window";
  Line last;
  for (; !last && now < kStart + 20 * LogRate::kWindow; now += kMillisecond)
    last = log.line(false, now);
  ASSERT_TRUE(last) << "what it ended in is told";
  EXPECT_EQ(lines + counted + *last, changes);
  EXPECT_EQ(log.line(false, now + LogRate::kWindow), kNone);
  for (std::uint32_t line = 0; line < LinkLog::kMostLines; ++line)
    EXPECT_EQ(log.line(true, now + 2 * LogRate::kWindow), Line(0)) << "a window without a change";
}

}  // namespace
}  // namespace sluice::dataplane

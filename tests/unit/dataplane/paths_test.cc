#include "dataplane/host/paths.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

// Every byte that varies follows from one number, so a mixture of two writes is noticed.
MemberPath path_of(std::uint8_t number) {
  MemberPath path{.udp = wire::alice_to_bob(), .port = number, .bound = true};
  path.udp.dst = wire::ipv4_address(10, number, number, number);
  path.udp.dst_mac.bytes.fill(number);
  path.udp.dst_port = static_cast<std::uint16_t>(number * 257);
  return path;
}

TEST(PathTable, GivesBackWhatWasBoundLast) {
  PathTable table(4, 8);
  EXPECT_FALSE(table.read(JobId{1}, Rank{2}).bound);
  table.bind(JobId{1}, Rank{2}, path_of(3));
  table.bind(JobId{1}, Rank{2}, path_of(4));
  EXPECT_EQ(table.read(JobId{1}, Rank{2}), path_of(4));
  EXPECT_FALSE(table.read(JobId{2}, Rank{1}).bound);
}

TEST(PathTable, AnswersIdsOutsideItsLimitsWithNoPath) {
  PathTable table(4, 8);
  EXPECT_FALSE(table.read(JobId{4}, Rank{0}).bound);
  EXPECT_FALSE(table.read(JobId{0}, Rank{8}).bound);
}

TEST(PathTable, AReaderNeverSeesHalfOfAWrite) {
  PathTable table(1, 1);
  table.bind(JobId{0}, Rank{0}, path_of(1));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint32_t round = 0; !stop.load(); ++round)
      table.bind(JobId{0}, Rank{0}, path_of(static_cast<std::uint8_t>(1 + round % 200)));
  });
  int seen = 0;
  for (int round = 0; round < 200'000; ++round) {
    const MemberPath path = table.read(JobId{0}, Rank{0});
    if (!path.bound) {
      std::this_thread::yield();  // the writer may have been put to sleep in the middle of a write
      continue;
    }
    ++seen;
    ASSERT_EQ(path, path_of(path.port));
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace sluice::dataplane

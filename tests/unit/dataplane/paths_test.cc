#include "dataplane/host/paths.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

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

// The headers that a datagram gets on the way to a member; empty where there is no way.
std::vector<std::uint8_t> headers_to(Routes& routes, JobId job, Rank rank) {
  Routes::Route* route = routes.find(job, rank);
  if (route == nullptr) return {};
  std::vector<std::uint8_t> bytes(route->headers.size());
  EXPECT_TRUE(route->headers.encode(bytes, 100, {}));
  return bytes;
}

std::vector<std::uint8_t> headers_on(MemberPath path, std::uint16_t source_port) {
  path.udp.src_port = source_port;
  std::vector<std::uint8_t> bytes(wire::udp_header_bytes(path.udp));
  EXPECT_EQ(wire::encode_udp_headers(bytes, path.udp, 100, {}), bytes.size());
  return bytes;
}

TEST(Routes, FollowThePathThatWasBoundLast) {
  PathTable table(4, 1024);
  Routes routes(table, 7701);
  EXPECT_EQ(routes.find(JobId{1}, Rank{2}), nullptr);
  for (const std::uint8_t number : {3, 4}) {
    table.bind(JobId{1}, Rank{2}, path_of(number));
    EXPECT_EQ(headers_to(routes, JobId{1}, Rank{2}), headers_on(path_of(number), 7701));
    EXPECT_EQ(routes.find(JobId{1}, Rank{2})->port, number);
  }
  MemberPath unbound = path_of(5);
  unbound.bound = false;
  table.bind(JobId{1}, Rank{2}, unbound);
  EXPECT_EQ(routes.find(JobId{1}, Rank{2}), nullptr);
  EXPECT_EQ(routes.find(JobId{9}, Rank{0}), nullptr);
}

TEST(Routes, KeepMembersApartThatShareAPlace) {
  PathTable table(4, 1024);
  Routes routes(table, 7701);
  for (std::uint16_t job = 0; job < 4; ++job)
    for (std::uint16_t rank = 0; rank < 1024; ++rank)
      table.bind(JobId{job}, Rank{rank}, path_of(static_cast<std::uint8_t>(job * 50 + rank % 50)));
  for (int round = 0; round < 2; ++round)
    for (std::uint16_t rank = 0; rank < 1024; ++rank)
      for (std::uint16_t job = 0; job < 4; ++job)
        ASSERT_EQ(headers_to(routes, JobId{job}, Rank{rank}),
                  headers_on(path_of(static_cast<std::uint8_t>(job * 50 + rank % 50)), 7701));
}

}  // namespace
}  // namespace sluice::dataplane

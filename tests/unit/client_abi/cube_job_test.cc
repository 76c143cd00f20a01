// Whole jobs over a BCube of in-process appliances, through the C++ interface: only the address
// differs from any other job's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "tests/unit/client_abi/cube_support.h"

namespace {

using job_test::Cube;
using job_test::error_of;
using job_test::kLong;
using job_test::on_every_rank;
using sluice::Error;
using sluice::Job;
using sluice::Options;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kElems[] = {1, 700, 40'000, 333};

// Each thread at each level has sent and received; together they are all but the meetings.
void expect_parts(const Cube& cube, const Job& job) {
  const auto parts = job.part_counters();
  ASSERT_EQ(parts.size(), cube.k * cube.k);
  std::uint64_t sent = 0;
  for (std::uint32_t index = 0; index < parts.size(); ++index) {
    const auto& [part, counters] = parts[index];
    EXPECT_EQ(part.thread * cube.k + part.level, index);
    EXPECT_EQ(counters.steps_done, 3u);
    EXPECT_GT(counters.packets_sent, 0u) << "thread " << part.thread << " level " << part.level;
    EXPECT_GT(counters.bytes_received, 0u) << "thread " << part.thread << " level " << part.level;
    sent += counters.bytes_sent;
  }
  EXPECT_LT(sent, job.counters().bytes_sent);
  EXPECT_GT(sent, job.counters().bytes_sent / 2);
}

// In place, as DDP does; in the last step one tensor is left out by all.
void train(const Cube& cube, const Options& options) {
  Job job(options, {{"a", kElems[0]}, {"b", kElems[1]}, {"c", kElems[2]}, {"d", kElems[3]}});
  const std::uint32_t world = cube.servers();
  for (std::uint32_t root = 0; root < world; root += world - 1) {
    std::vector<std::uint8_t> bytes(20'000, static_cast<std::uint8_t>(options.rank));
    job.broadcast(root, bytes.data(), bytes.size(), kLong);
    ASSERT_EQ(bytes, std::vector<std::uint8_t>(20'000, static_cast<std::uint8_t>(root)));
  }
  std::vector<std::vector<float>> values;
  for (const std::size_t elems : kElems) values.emplace_back(elems);
  for (std::uint32_t step = 1; step <= 3; ++step) {
    const std::uint32_t count = step == 3 ? 3 : 4;
    for (std::uint32_t tensor = 0; tensor < count; ++tensor) {
      for (std::size_t i = 0; i < values[tensor].size(); ++i)
        values[tensor][i] = static_cast<float>(i % 100 + step + options.rank);
      job.submit({tensor, values[tensor].data(), values[tensor].data(), 2,
                  static_cast<std::uint8_t>(tensor)});
    }
    job.end_step();
    EXPECT_EQ(job.wait_step(kLong), step);
    float sum = 0;
    for (std::uint32_t rank = 0; rank < world; ++rank) sum += static_cast<float>(rank);
    for (std::uint32_t tensor = 0; tensor < count; ++tensor) {
      EXPECT_EQ(job.wait(tensor).weight, 2u * world);
      for (std::size_t i = 0; i < values[tensor].size(); ++i)
        ASSERT_EQ(values[tensor][i], (static_cast<float>((i % 100 + step) * world) + sum) /
                                         static_cast<float>(2 * world))
            << "tensor " << tensor << " element " << i << " of step " << step;
    }
    EXPECT_EQ(job.report(step).k, world);
  }
  EXPECT_EQ(job.counters().steps_done, 3u);
  expect_parts(cube, job);
  EXPECT_THAT(job.schedule_plan(), HasSubstr("level 1, switch "));
  job.barrier(kLong);
  job.leave();
}

TEST(CubeJobs, SumOverSwitchesThatAggregate) {
  for (const Cube& cube : {Cube{2, 2, "cube22"}, Cube{3, 2, "cube32"}, Cube{2, 3, "cube23"}})
    on_every_rank(cube.servers(), [&](std::uint32_t rank) { train(cube, cube.options(rank)); });
}

TEST(CubeJobs, SumOverServersWhoAdd) {
  for (const Cube& cube : {Cube{2, 2, "plain22"}, Cube{3, 2, "plain32"}}) {
    const std::string file = cube.write_plain_file();
    on_every_rank(cube.servers(), [&](std::uint32_t rank) {
      Options options = cube.options(rank);
      options.address = cube.shape() + "?file=" + file;
      train(cube, options);
    });
    std::remove(file.c_str());
  }
}

TEST(CubeJobs, SumOverServersWhoServeEachOther) {
  for (const Cube& cube : {Cube{2, 2, "udp22"}, Cube{3, 2, "udp32"}}) {
    const std::string file = cube.write_plain_file("udp://127.0.LEVEL.SERVER:17710");
    on_every_rank(cube.servers(), [&](std::uint32_t rank) {
      Options options = cube.options(rank);
      options.address = cube.shape() + "?mode=plain&file=" + file;
      train(cube, options);
    });
    std::remove(file.c_str());
  }
}

TEST(CubeJobs, EndWithTheSumOfWeightsThatNoSumOnItsWayCanHave) {
  const Cube cube{2, 2, "heavy22"};
  std::atomic<int> told{0};
  on_every_rank(cube.servers(), [&](std::uint32_t rank) {
    Job job(cube.options(rank), {{"t", 40'000}});
    std::vector<float> values(40'000, 1);
    const Error error = error_of([&] {
      job.barrier(kLong);  // all have joined
      job.submit({0, values.data(), values.data(), 1u << 31});
      job.wait(0, kLong);
    });
    const bool first = error.status() == SLUICE_INVALID_ARGUMENT;
    if (first) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("the weights of step 1 sum to 4294967296"),
                                      HasSubstr("4294967295 at most")));
    } else {  // another one's abort may come before
      EXPECT_EQ(error.status(), SLUICE_PEER_LOST) << error.what();
    }
    told += first;
  });
  EXPECT_GT(told, 0);
}

TEST(CubeJobs, TakeTheirRanksOfTheirDigitsAndTheWorldSizeOfTheirShape) {
  for (const Cube& cube : {Cube{2, 2, "digits22"}, Cube{2, 1, "digits21"}})
    on_every_rank(cube.servers(), [&](std::uint32_t rank) {
      Options options = cube.options(rank);
      options.address += "&digits=" + std::to_string(rank % 2);
      if (cube.k == 2) options.address += "," + std::to_string(rank / 2);
      options.rank = SLUICE_RANK_BY_DIGITS;
      options.world_size = 0;
      Job job(options, {{"t", 8}});
      std::uint8_t told = 0;
      for (std::uint32_t root = 0; root < cube.servers(); ++root) {
        told = static_cast<std::uint8_t>(rank);
        job.broadcast(root, &told, 1, kLong);
        EXPECT_EQ(told, root);
      }
    });
}

// Together with ranks that give the appliance's own address, and with all functions of an
// appliance.
TEST(CubeJobs, OfOneSwitchThatSumsAreOrdinaryJobs) {
  const Cube cube{3, 1, "onebox"};
  on_every_rank(3, [&](std::uint32_t rank) {
    Options options = cube.options(rank);
    if (rank != 0) options.address = cube.at(rank, 0);
    options.policy.kind = SLUICE_POLICY_FIXED;
    options.policy.k = 3;
    Job job(options, {{"narrow", 3, SLUICE_BFLOAT16}});
    std::vector<std::uint16_t> ones(3, 0x3f80);
    job.submit({0, ones.data(), ones.data()});
    EXPECT_EQ(job.wait(0).weight, 3u);
    EXPECT_EQ(ones, std::vector<std::uint16_t>(3, 0x3f80));
  });
  Options options = cube.options(0);
  options.world_size = 4;
  EXPECT_THAT(error_of([&] {
                Job job(options, {{"t", 8}});
              }).what(),
              AllOf(HasSubstr("world size 4"), HasSubstr("bcube(3,1) has 3 servers")));
}

// The others are late, and one of them goes on alone when all have left.
TEST(CubeJobs, WaitForServersThatStartLateAndDoNotMissThoseThatLeave) {
  const Cube cube{2, 2, "late22"};
  const std::string file = cube.write_plain_file("udp://127.0.LEVEL.SERVER:17720");
  on_every_rank(4, [&](std::uint32_t rank) {
    Options options = cube.options(rank);
    options.address = cube.shape() + "?file=" + file;
    const std::uint32_t patience_ms = std::max(2500, 1000 * job_test::kSlowdown);
    options.timeouts.silence_ms = options.timeouts.connect_ms = patience_ms;
    if (rank == 3) std::this_thread::sleep_for(milliseconds(2 * patience_ms));
    Job job(options, {{"t", 5'000}});
    std::vector<float> values(5'000, static_cast<float>(rank));
    job.submit({0, values.data(), values.data()});
    job.wait_step(kLong);
    EXPECT_EQ(values.back(), 1.5f);
    if (rank != 0) return;
    std::this_thread::sleep_for(milliseconds(2 * patience_ms + 500));
    const Error error = error_of([&] {
      job.submit({0, values.data(), values.data()});
      job.wait_step(kLong);
    });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("level "), HasSubstr("rank ")));
  });
  std::remove(file.c_str());
}

// A value that no number is rounded to is seen by all, and does not come again.
TEST(CubeJobs, CarryWhatIsNotFiniteInEveryWireFormat) {
  for (const sluice_wire wire : {SLUICE_WIRE_FLOAT16, SLUICE_WIRE_BFLOAT16, SLUICE_WIRE_INT8}) {
    const Cube cube{2, 2, "nan" + std::to_string(static_cast<int>(wire))};
    on_every_rank(cube.servers(), [&](std::uint32_t rank) {
      Options options = cube.options(rank);
      options.wire = wire;
      Job job(options, {{"g", 3'000}});
      std::vector<float> gradient(3'000, 1.5f), average(3'000);
      if (rank == 2) gradient[7] = std::numeric_limits<float>::infinity();
      if (rank == 2) gradient[2'500] = std::numeric_limits<float>::quiet_NaN();
      job.submit({0, gradient.data(), average.data()});
      EXPECT_NE(job.wait(0, kLong).non_finite, 0);
      EXPECT_FALSE(std::isfinite(average[7]) || std::isfinite(average[2'500]));
      for (const float value : job.residual(0, 3'000)) ASSERT_EQ(value, 0);
      std::fill(gradient.begin(), gradient.end(), 1.5f);
      job.set_residual(0, std::vector<float>(3'000, 0.25f));
      job.scale_residuals(2);
      job.submit({0, gradient.data(), average.data()});
      EXPECT_EQ(job.wait(0, kLong).non_finite, 0);
      EXPECT_EQ(average, std::vector<float>(3'000, 2.0f));
    });
  }
}

// Its neighbours name it, by its rank at the switch and in the BCube's numbers.
TEST(CubeJobs, NameAWorkerThatIsGone) {
  const Cube cube{2, 2, "gone"};
  std::vector<std::string> errors(4);
  on_every_rank(4, [&](std::uint32_t rank) {
    Job job(cube.options(rank), {{"t", 5'000}});
    job.barrier(kLong);
    if (rank == 3) {
      std::this_thread::sleep_for(milliseconds(200));
      return job.abort();
    }
    std::vector<float> values(5'000, 1);
    const Error error = error_of([&] {
      for (;;) {
        job.submit({0, values.data(), values.data()});
        job.wait_step(kLong);
      }
    });
    EXPECT_EQ(error.status(), SLUICE_PEER_LOST);
    errors[rank] = error.what();
  });
  for (const std::uint32_t rank : {1u, 2u})
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("rank 1 "), HasSubstr("level "), HasSubstr("switch "),
                                    HasSubstr("worker")));
}

}  // namespace

// Operations through the C++ layer: ranks as threads over an appliance in this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <sluice/sluice.hpp>
#include <thread>
#include <vector>

namespace sluice {
namespace {

constexpr std::uint32_t kWorld = 3;

Options options_of(const std::string& name, std::uint32_t rank) {
  Options options;
  options.address = "inproc://" + name;
  options.job_name = "session";
  options.run_id = 1;
  options.rank = rank;
  options.world_size = kWorld;
  return options;
}

// body(session) on a thread for each rank; what it throws is a failure.
template <class Body>
void on_all_ranks(const std::string& name, Body body) {
  std::vector<std::string> failures(kWorld);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Session session(options_of(name, rank));
        body(session);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<std::string>(kWorld));
}

TEST(Session, CarriesOutOperationsOfEveryKind) {
  on_all_ranks("session-kinds", [](Session& session) {
    const auto rank = static_cast<float>(session.rank());
    const Group group = session.group("all", {0, 1, 2});

    std::vector<float> sums(1000, rank + 1), means(1000);
    Operation averaged;
    averaged.reduction = SLUICE_MEAN;
    const Ticket mean = group.all_reduce(sums.data(), means.data(), means.size(), averaged);
    mean.wait();
    EXPECT_TRUE(mean.is_over());
    EXPECT_EQ(mean.number(), 0u);
    EXPECT_EQ(means, std::vector<float>(1000, 2));
    group.all_reduce(sums.data(), sums.data(), sums.size()).wait();
    EXPECT_EQ(sums, std::vector<float>(1000, 6));

    std::vector<float> whole(9), part(3);
    std::iota(whole.begin(), whole.end(), rank);
    group.reduce_scatter(whole.data(), part.data(), part.size()).wait();
    const float first = 9 * rank + 3;
    EXPECT_EQ(part, (std::vector<float>{first, first + 3, first + 6}));
    group.all_gather(part.data(), whole.data(), part.size() * sizeof(float)).wait();
    EXPECT_EQ(whole, (std::vector<float>{3, 6, 9, 12, 15, 18, 21, 24, 27}));

    float total = -1;
    group.reduce(1, &rank, rank == 1 ? &total : nullptr, 1).wait();
    EXPECT_EQ(total, rank == 1 ? 3 : -1);
    float word = rank;
    group.broadcast(2, &word, sizeof word).wait();
    EXPECT_EQ(word, 2);
    group.barrier().wait();
    group.leave();
    session.barrier();
  });
}

TEST(Session, ThrowsWhatAnOperationEndsWith) {
  on_all_ranks("session-errors", [](Session& session) {
    if (session.rank() != 2) {
      const Group pair = session.group("pair", {0, 1});
      float value = 1;
      if (session.rank() == 0) {
        const Ticket alone = pair.all_reduce(&value, &value, 1);
        EXPECT_FALSE(alone.is_over());
        try {
          alone.wait(std::chrono::milliseconds(50));
          ADD_FAILURE() << "rank 1 has not called it";
        } catch (const Error& error) {
          EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
          EXPECT_NE(std::string(error.what()).find("operation 0"), std::string::npos);
        }
        EXPECT_FALSE(alone.is_over());
        alone.cancel();
        EXPECT_THROW(alone.wait(), Error);
        EXPECT_TRUE(alone.is_over());
      }
      session.barrier();
    } else {
      EXPECT_THROW(session.group("pair", {0, 1}), Error);  // without this rank
      session.barrier();
    }
    Session moved = std::move(session);
    moved.barrier();
    session = std::move(moved);
    session.barrier();
  });
}

TEST(Session, ThrowsWhenItCannotJoin) {
  Options options = options_of("session-none", 0);
  options.address = "tcp://nowhere";
  EXPECT_THROW(Session{options}, Error);
}

}  // namespace
}  // namespace sluice

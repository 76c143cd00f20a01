// Whole jobs of kind store: layers pushed and pulled over an appliance inside this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/unit/client_abi/job_support.h"

namespace job_test {
namespace {

using sluice::Job;
using sluice::Options;
using testing::Each;
using testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;
constexpr std::size_t kElems = 40'000;
constexpr std::uint32_t kIterations = 20;
constexpr std::uint32_t kLayers = 2;

Options store_options(const std::string& name, std::uint32_t rank, std::uint32_t bound,
                      std::uint32_t world_size = kRanks) {
  Options options = options_for(name, rank, world_size);
  options.store.enabled = true;
  options.store.staleness_bound = bound;
  return options;
}

// Layer 0 has two tensors.
std::vector<sluice::Tensor> tensors() {
  std::vector<sluice::Tensor> all{{"weight", kElems}, {"bias", 3}, {"head", 500}};
  all[2].begins_layer = true;
  return all;
}

// A worker's memory, and its loop's parts.
struct Replica {
  explicit Replica(Job& worker) : job(worker) {
    for (const auto& tensor : tensors()) {
      copies.emplace_back(tensor.elem_count, -1.0f);
      deltas.emplace_back(tensor.elem_count);
    }
  }
  template <class Pointer>
  static std::vector<Pointer> of(std::vector<std::vector<float>>& memory, std::uint32_t layer) {
    if (layer == 1) return {memory[2].data()};
    return {memory[0].data(), memory[1].data()};
  }
  void initialise(float value) {
    for (auto& delta : deltas) std::fill(delta.begin(), delta.end(), value);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      job.initialise(layer, of<const float*>(deltas, layer));
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) job.wait_push(layer, kLong);
  }
  void pull() {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      job.pull(layer, of<float*>(copies, layer));
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) job.wait_pull(layer, kLong);
  }
  void push(float value, double rate = 0) {
    for (auto& delta : deltas) std::fill(delta.begin(), delta.end(), value);
    for (std::uint32_t layer = kLayers; layer-- > 0;)
      job.push(layer, of<const float*>(deltas, layer), rate);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) job.wait_push(layer, kLong);
  }

  Job& job;
  std::vector<std::vector<float>> copies, deltas;
};

class BoundedStore : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Bounds, BoundedStore, testing::Values(0, 1, 3, SLUICE_NO_BOUND));

// A push counts 1/n: n times a power of 32 of the rank's shows how many of whose are in an element.
TEST_P(BoundedStore, EveryReadHoldsItsOwnPushesAndTheOthersWithinTheBound) {
  const std::uint32_t bound = GetParam();
  on_every_rank(kRanks, [&](std::uint32_t rank) {
    Job job(store_options("store" + std::to_string(bound), rank, bound), tensors());
    Replica replica(job);
    if (rank == 0) replica.initialise(0);
    for (std::uint32_t iteration = 1; iteration <= kIterations; ++iteration) {
      replica.pull();
      const std::uint32_t own = iteration - 1;
      const std::uint32_t need = own > bound ? own - bound : 0;
      for (const auto& copy : replica.copies)
        for (const float value : copy) {
          auto digits = static_cast<std::uint32_t>(value);
          for (std::uint32_t other = 0; other < kRanks; ++other, digits /= 32) {
            ASSERT_GE(digits % 32, need) << "iteration " << iteration;
            if (other == rank || bound == 0) {
              ASSERT_EQ(digits % 32, own);
            }
          }
        }
      if (rank == 2) std::this_thread::sleep_for(milliseconds(1));
      replica.push(static_cast<float>(kRanks) * std::pow(32.0f, static_cast<float>(rank)));
    }
    const sluice_clocks clocks = job.clocks(1);
    EXPECT_EQ(clocks.pushed, kIterations);
    job.barrier(kLong);
  });
}

TEST(StoreJob, TheOptimizerAtTheStoreTakesTheMean) {
  on_every_rank(kRanks, [&](std::uint32_t rank) {
    Options options = store_options("store-sgd", rank, 0);
    options.store.update = SLUICE_UPDATE_SGD;
    options.store.momentum = 0.5;
    options.reproducible = true;
    Job job(options, tensors());
    Replica replica(job);
    if (rank == 1) replica.initialise(10);
    float value = 10, momentum = 0;
    for (std::uint32_t iteration = 1; iteration <= 5; ++iteration) {
      replica.pull();
      for (const auto& copy : replica.copies) ASSERT_THAT(copy, Each(value));
      replica.push(static_cast<float>(rank), 0.25);
      momentum = momentum * 0.5f + 1;  // the mean of 0, 1, 2
      value -= 0.25f * momentum;
    }
    job.barrier(kLong);
  });
}

TEST(StoreJob, WhoLeavesHoldsNobodyUp) {
  on_every_rank(kRanks, [&](std::uint32_t rank) {
    Job job(store_options("store-leave", rank, 0), tensors());
    Replica replica(job);
    if (rank == 0) replica.initialise(0);
    const std::uint32_t last = rank == 2 ? 3 : kIterations;
    for (std::uint32_t iteration = 1; iteration <= last; ++iteration) {
      replica.pull();
      replica.push(1);
    }
    if (rank == 2) return job.abort();
    replica.pull();
    for (const auto& copy : replica.copies) ASSERT_THAT(copy, Each(copy[0]));
    EXPECT_NEAR(replica.copies[0][0], kIterations, 1e-3);
  });
}

TEST(StoreJob, APullThatWaitsTimesOutAndSaysForWhom) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Job job(store_options("store-wait", rank, 0, 2), tensors());
    Replica replica(job);
    if (rank == 0) replica.initialise(0);
    replica.pull();
    if (rank == 0) {
      replica.push(2);
      job.pull(0, Replica::of<float*>(replica.copies, 0));
      const sluice::Error error = error_of([&] { job.wait_pull(0, milliseconds(200)); });
      EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
      EXPECT_THAT(error.what(), HasSubstr("layer 0 is needed with clock 1"));
      EXPECT_EQ(error_of([&] { job.pull(0, Replica::of<float*>(replica.copies, 0)); }).status(),
                SLUICE_BUSY);
    }
    job.barrier(kLong);
    if (rank == 1) replica.push(2);
    if (rank == 0) {
      job.wait_pull(0, kLong);
      EXPECT_THAT(replica.copies[0], Each(2.0f));
    }
    job.barrier(kLong);
  });
}

TEST(StoreJob, WhatCannotBeIsRefusedWithTheReason) {
  const auto refusal = [](auto change) {
    Options options = store_options("store-refused", 0, 0, 1);
    change(options);
    return std::string(error_of([&] { const Job job(options, tensors()); }).what());
  };
  EXPECT_THAT(refusal([](Options& o) { o.store.enabled = false; }),
              HasSubstr("the job is no store"));
  EXPECT_THAT(refusal([](Options& o) { o.wire = SLUICE_WIRE_INT8; }),
              HasSubstr("travel as float32"));
  EXPECT_THAT(refusal([](Options& o) { o.prune.rule = SLUICE_PRUNE_STATIC; }),
              HasSubstr("are sent whole"));
  EXPECT_THAT(refusal([](Options& o) { o.policy.kind = SLUICE_POLICY_FIXED; }), HasSubstr("polic"));
  EXPECT_THAT(refusal([](Options& o) {
                o.store.update = SLUICE_UPDATE_ADAM;
                o.store.staleness_bound = 1;
              }),
              HasSubstr("Adam's moments"));
  EXPECT_THAT(refusal([](Options& o) {
                o.store.update = SLUICE_UPDATE_SGD;
                o.store.weight_decay = -1;
              }),
              HasSubstr("weight_decay"));
  Options sums = options_for("store-sums", 0, 1);
  sums.store.staleness_bound = 3;
  EXPECT_THAT(error_of([&] {
                const Job job(sums, {{"a", 3}});
              }).what(),
              HasSubstr("options.store"));

  Job job(store_options("store-calls", 0, 0, 1), tensors());
  Replica replica(job);
  EXPECT_THAT(error_of([&] { replica.push(1); }).what(), HasSubstr("pull it first"));
  EXPECT_THAT(error_of([&] { job.push(0, {}); }).what(), HasSubstr("NULL or count is 0"));
  EXPECT_THAT(error_of([&] { job.pull(2, {replica.copies[0].data()}); }).what(),
              HasSubstr("no layer 2 of 2"));
  EXPECT_THAT(error_of([&] {
                job.submit({0, replica.copies[0].data()});
              }).what(),
              HasSubstr("has no steps"));
  Job plain(options_for("store-plain", 0, 1), {{"a", 3}});
  EXPECT_THAT(error_of([&] { plain.clocks(0); }).what(), HasSubstr("no parameter store"));
}

TEST(StoreJob, WhatIsNotFiniteIsRefusedByNameAndReachesNobody) {
  const float bad[] = {std::nanf(""), HUGE_VALF};
  on_every_rank(2, [&](std::uint32_t rank) {
    Job job(store_options("poisoned", rank, 1, 2), tensors());
    Replica replica(job);
    if (rank == 0) replica.initialise(1);
    job.barrier(kLong);
    replica.pull();
    for (const float value : bad) {
      replica.deltas[1][2] = value;
      const auto error =
          error_of([&] { job.push(0, Replica::of<const float*>(replica.deltas, 0)); });
      EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("tensor 'bias'"), HasSubstr("layer 0"),
                                               HasSubstr("rank " + std::to_string(rank))));
    }
    replica.push(2);
    job.barrier(kLong);
    replica.pull();
    for (const auto& copy : replica.copies) EXPECT_THAT(copy, Each(3.0f));
    job.barrier(kLong);
  });
}

TEST(StoreJob, RanksThatMeanAnotherStoreAreRefusedWithBothValues) {
  std::array<std::string, 2> texts;
  on_every_rank(2, [&](std::uint32_t rank) {
    Options options = store_options("store-differs", rank, rank, 2);
    options.timeouts.join_ms = 2000;  // of who is not refused
    texts[rank] = error_of([&] { const Job job(options, tensors()); }).what();
  });
  EXPECT_THAT(texts[0] + texts[1], testing::AllOf(HasSubstr("bound 0"), HasSubstr("bound 1")));
}

}  // namespace
}  // namespace job_test

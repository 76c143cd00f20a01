// Sessions of a parameter store against the real appliance, over a faulty network. Every push is a
// power of 64 that belongs to its rank, so the digits of a parameter say how many pushes of each
// rank are in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/unit/client_core/small_world.h"

namespace sluice::client {
namespace {

using Kind = Event::Kind;
using ::testing::HasSubstr;

constexpr float kDigit = 64;

WorldOptions store_world(Step bound, std::uint16_t workers = 3) {
  WorldOptions options{.workers = workers, .chunk_bytes = 64};
  // A layer of two tensors, one of more than a block, a small one.
  options.tensors = {{.name = "a", .elem_count = 100, .begins_block = true},
                     {.name = "b", .elem_count = 5},
                     {.name = "c", .elem_count = 16 * 70, .begins_block = true},
                     {.name = "d", .elem_count = 3, .begins_block = true}};
  options.store = StoreOptions{.bound = bound};
  return options;
}

// One worker's loop: reads all layers, checks them, pushes all, from the last to the first.
class Trainer {
 public:
  Trainer(SmallWorld& world, const WorldOptions& options, std::uint16_t rank, Step iterations)
      : world_(world), options_(options), rank_(rank), iterations_(iterations) {
    for (const TensorSpec& tensor : options.tensors) {
      values_.emplace_back(tensor.elem_count, -1.0f);
      deltas_.emplace_back(tensor.elem_count);
    }
    for (std::uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor)
      if (options.tensors[tensor].begins_block) first_tensors_.push_back(tensor);
    first_tensors_.push_back(static_cast<std::uint32_t>(options.tensors.size()));
  }
  std::uint32_t layers() const { return static_cast<std::uint32_t>(first_tensors_.size() - 1); }
  bool done() const { return iteration_ > iterations_ && pushed_ == iterations_; }
  Step iteration() const { return iteration_; }
  const std::vector<std::vector<float>>& values() const { return values_; }
  // How long its computing takes.
  DurationNs compute_ns = 0;
  // False: ranks die, and what a push counts is no whole digit any more.
  bool checks = true;
  // It took the rank of one that died, and begins where the appliance says.
  void inherit() {
    initialised_ = true;
    iteration_ = world_.session(rank_).store()->clocks(0).pushed + 1;
  }

  // What it can do now; when it wants to be called again.
  TimeNs go_on() {
    Store& store = *world_.session(rank_).store();
    if (!initialised_) {
      initialised_ = true;
      for (std::uint32_t layer = 0; layer < layers() && rank_ == 0; ++layer) {
        for (std::uint32_t t = first_tensors_[layer]; t < first_tensors_[layer + 1]; ++t)
          std::ranges::fill(deltas_[t], 0.0f);
        EXPECT_TRUE(store.initialise(layer, pointers<const float*>(deltas_, layer)).ok());
      }
    }
    take_events();
    if (iteration_ > iterations_) return kNever;
    if (waiting_ == 0 && !asked_) {
      asked_ = true;
      waiting_ = layers();
      for (std::uint32_t layer = 0; layer < layers(); ++layer) {
        const Status status = store.pull(layer, pointers<float*>(values_, layer));
        EXPECT_TRUE(status.ok()) << status.message();
      }
      read_at_ = kNever;
    }
    if (waiting_ != 0) return kNever;
    if (read_at_ == kNever) {
      if (checks) check();
      read_at_ = world_.now();
    }
    if (world_.now() < read_at_ + compute_ns) return read_at_ + compute_ns;
    for (std::uint32_t layer = layers(); layer-- > 0;) push(store, layer);
    ++iteration_;
    asked_ = false;
    return iteration_ > iterations_ ? kNever : world_.now();
  }

 private:
  template <class Pointer>
  std::vector<Pointer> pointers(std::vector<std::vector<float>>& memory, std::uint32_t layer) {
    std::vector<Pointer> all;
    for (std::uint32_t t = first_tensors_[layer]; t < first_tensors_[layer + 1]; ++t)
      all.push_back(memory[t].data());
    return all;
  }
  void push(Store& store, std::uint32_t layer) {
    const float value =
        static_cast<float>(options_.workers) * std::pow(kDigit, static_cast<float>(rank_));
    for (std::uint32_t t = first_tensors_[layer]; t < first_tensors_[layer + 1]; ++t)
      std::ranges::fill(deltas_[t], value);
    const Status status = store.push(layer, pointers<const float*>(deltas_, layer), 1);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void take_events() {
    std::vector<Event>& events = world_.events(rank_);
    for (; seen_ < events.size(); ++seen_) {
      const Event& event = events[seen_];
      if (event.kind == Kind::kPullDone) --waiting_;
      if (event.kind == Kind::kPushDone && event.step == iterations_ && ++last_ == layers())
        pushed_ = iterations_;
      EXPECT_NE(event.kind, Kind::kFailed) << event.status.message();
    }
  }
  // Every element holds whole pushes, the bound's at least, and all of its own.
  void check() const {
    const Step own = iteration_ - 1;
    const Step bound = options_.store->bound;
    const Step need = own > bound ? own - bound : 0;
    for (const auto& tensor : values_)
      for (const float value : tensor) {
        auto rest = static_cast<std::uint64_t>(value);
        ASSERT_EQ(static_cast<float>(rest), value);
        for (std::uint16_t rank = 0; rank < options_.workers; ++rank, rest /= 64) {
          const Step count = rest % 64;
          ASSERT_GE(count, need) << "rank " << rank << " in iteration " << iteration_;
          if (rank == rank_ || bound == 0) {
            ASSERT_EQ(count, own);
          }
        }
        ASSERT_EQ(rest, 0u);
      }
  }

  SmallWorld& world_;
  const WorldOptions options_;
  const std::uint16_t rank_;
  const Step iterations_;
  std::vector<std::vector<float>> values_, deltas_;
  std::vector<std::uint32_t> first_tensors_;
  bool initialised_ = false;
  bool asked_ = false;
  std::uint32_t waiting_ = 0;
  std::uint32_t last_ = 0;
  Step pushed_ = 0;
  Step iteration_ = 1;
  TimeNs read_at_ = kNever;
  std::size_t seen_ = 0;
};

// Runs all workers' loops; the time that they took.
DurationNs train(const WorldOptions& options, Step iterations, DurationNs limit_ns,
                 DurationNs slow_ns = 0, SmallWorld* given = nullptr) {
  std::optional<SmallWorld> own;
  SmallWorld& world = given != nullptr ? *given : own.emplace(options);
  EXPECT_TRUE(world.run_until(Kind::kStarted, 1, 10 * kSecond)) << world.first_failure();
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (std::uint16_t rank = 0; rank < options.workers; ++rank)
    trainers.push_back(std::make_unique<Trainer>(world, options, rank, iterations));
  trainers.back()->compute_ns = slow_ns;
  world.application = [&] {
    TimeNs next_ns = kNever;
    for (const auto& trainer : trainers) next_ns = std::min(next_ns, trainer->go_on());
    return next_ns;
  };
  const TimeNs begun_ns = world.now();
  const auto done = [&] {
    return std::ranges::all_of(trainers, [](const auto& trainer) { return trainer->done(); });
  };
  EXPECT_TRUE(world.run(done, limit_ns))
      << "iteration " << trainers[0]->iteration() << "; " << world.first_failure()
      << world.session(0).describe_stall(world.now());
  world.application = nullptr;
  return world.now() - begun_ns;
}

class StoreWorld : public testing::TestWithParam<Step> {};
INSTANTIATE_TEST_SUITE_P(Bounds, StoreWorld, testing::Values(0, 1, 3, 10, kNoBound));

TEST_P(StoreWorld, EveryReadHoldsWhatTheBoundAsksFor) {
  train(store_world(GetParam()), 20, kSecond);
}

TEST_P(StoreWorld, WhateverTheNetworkDoes) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    WorldOptions options = store_world(GetParam());
    options.shards = static_cast<std::uint16_t>(1 + seed % 3);
    options.loss = 0.02 * static_cast<double>(seed % 4);
    options.duplicates = 0.02 * static_cast<double>(seed % 3);
    options.jitter_ns = (seed % 2) * 300 * kMicrosecond;
    options.receive_credit_packets = seed % 5 == 0 ? 8 : 64;
    options.seed = seed;
    train(options, 12, 30 * kSecond, seed % 3 * kMillisecond);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST_P(StoreWorld, AWorkerThatDiesHoldsNobodyUpAndItsHeirGoesOn) {
  constexpr Step kIterations = 300;
  WorldOptions options = store_world(GetParam(), 2);
  options.shards = 2;
  options.loss = 0.01;
  options.member_timeout_ns = kSecond;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, 10 * kSecond)) << world.first_failure();
  std::array<std::unique_ptr<Trainer>, 2> trainers;
  const auto employ = [&](std::uint16_t rank) {
    trainers[rank] = std::make_unique<Trainer>(world, options, rank, kIterations);
    trainers[rank]->compute_ns = 10 * kMillisecond;
    trainers[rank]->checks = false;
  };
  employ(0);
  employ(1);
  world.application = [&] {
    TimeNs next_ns = kNever;
    for (const auto& trainer : trainers)
      if (trainer != nullptr) next_ns = std::min(next_ns, trainer->go_on());
    return next_ns;
  };
  const auto comes_to = [&](Step iteration) {
    return world.run([&] { return trainers[0]->iteration() >= iteration; }, 10 * kSecond);
  };
  ASSERT_TRUE(comes_to(5));
  world.stop(1);
  trainers[1].reset();
  ASSERT_TRUE(comes_to(20)) << world.session(0).describe_stall(world.now());
  world.restart(1);
  ASSERT_TRUE(world.run([&] { return world.count(1, Kind::kStarted) == 1; }, 10 * kSecond));
  employ(1);
  trainers[1]->inherit();
  EXPECT_GT(trainers[1]->iteration(), 10u);
  EXPECT_LT(trainers[1]->iteration(), kIterations);
  const auto done = [&] { return trainers[0]->done() && trainers[1]->done(); };
  ASSERT_TRUE(world.run(done, 30 * kSecond)) << world.session(0).describe_stall(world.now());
  world.application = nullptr;
  // Both read the same at last.
  std::array<std::vector<float>, 2> last;
  for (std::uint16_t rank : {0, 1}) {
    last[rank].assign(16 * 70, -1.0f);
    EXPECT_TRUE(world.session(rank).store()->pull(1, std::vector<float*>{last[rank].data()}).ok());
  }
  const auto read = [&] {
    return !world.session(0).store()->busy() && !world.session(1).store()->busy();
  };
  ASSERT_TRUE(world.run(read, 10 * kSecond));
  EXPECT_EQ(last[0], last[1]);
}

TEST(StoreTime, ABoundHidesASlowIterationAndNoneHidesASlowWorker) {
  // With bound 0 all wait for the slow one in each iteration; without a bound only it itself.
  const DurationNs together = train(store_world(0), 10, 10 * kSecond, 20 * kMillisecond);
  EXPECT_GT(together, 200 * kMillisecond);
  WorldOptions options = store_world(kNoBound);
  SmallWorld world(options);
  train(options, 10, 10 * kSecond, 20 * kMillisecond, &world);
  EXPECT_EQ(world.session(0).store()->clocks(0).pushed, 10u);
}

TEST(StoreWait, APullThatWaitsSaysForWhom) {
  WorldOptions options = store_world(0, 2);
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  std::vector<float> memory(2000);
  const auto pull = [&](std::size_t rank) {
    return world.session(rank).store()->pull(2, std::vector<float*>{memory.data()});
  };
  ASSERT_TRUE(pull(0).ok());
  EXPECT_EQ(pull(0).code(), StatusCode::kBusy);
  world.run([] { return false; }, 200 * kMillisecond);
  EXPECT_THAT(world.session(0).describe_stall(world.now()), HasSubstr("layer 2 is needed"));
  EXPECT_GT(world.session(0).stalled_ns(world.now()), 100 * kMillisecond);
}

TEST(StoreWait, ItsTimeCountsWhileItGoesOnAndEndsWithIt) {
  SmallWorld world(store_world(0, 1));
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  Store& store = *world.session(0).store();
  const auto pass = [&] { world.run([] { return false; }, kSecond); };
  const auto suspended_ns = [&] { return world.session(0).counters().suspended_ns; };
  pass();
  EXPECT_EQ(suspended_ns(), 0u);
  const TimeNs begun_ns = world.now();
  store.suspend(true, begun_ns);
  pass();
  // As of the last keepalive.
  EXPECT_GE(suspended_ns(), 700 * std::uint64_t{kMillisecond});
  EXPECT_LE(suspended_ns(), 1000 * std::uint64_t{kMillisecond});
  store.suspend(true, world.now());  // another thread waits too: it counts once
  pass();
  store.suspend(false, world.now());
  const auto waited_ns = static_cast<std::uint64_t>(world.now() - begun_ns);
  EXPECT_EQ(suspended_ns(), waited_ns);
  pass();
  EXPECT_EQ(suspended_ns(), waited_ns);
}

// Of what is ready together: layers as they leave.
std::vector<std::uint32_t> pushed_layers(RequestPolicy policy, std::vector<LayerIndex> calls) {
  WorldOptions options{.workers = 1, .chunk_bytes = 64};
  options.tensors.clear();
  for (const char* name : {"a", "b", "c"})
    options.tensors.push_back({.name = name, .elem_count = 16, .begins_block = true});
  options.store = StoreOptions{};
  options.requests = policy;
  SmallWorld world(options);
  EXPECT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  std::vector<std::uint32_t> layers;
  world.arrived = [&](std::uint16_t, const wire::Packet& packet) {
    if (packet.type() == wire::PacketType::kPush)
      layers.push_back(packet.body<wire::Push>().chunk / kChunksPerBlock);
  };
  Store& store = *world.session(0).store();
  const std::vector<float> values(16);
  for (const LayerIndex layer : calls)
    EXPECT_TRUE(store.initialise(layer, std::vector<const float*>{values.data()}).ok());
  EXPECT_TRUE(world.run([&] { return !store.busy(); }, kSecond));
  return layers;
}

TEST(StoreRequests, ThePolicyAskedForOrdersThem) {
  using Layers = std::vector<std::uint32_t>;
  EXPECT_EQ(pushed_layers(RequestPolicy::kStalest, {1, 2, 0}), (Layers{0, 1, 2}));
  EXPECT_EQ(pushed_layers(RequestPolicy::kFifo, {1, 2, 0}), (Layers{1, 2, 0}));
  EXPECT_EQ(pushed_layers(RequestPolicy::kFilo, {1, 2, 0}), (Layers{0, 2, 1}));
}

TEST(StoreRequests, TheAgeOfTheOldestIsTold) {
  SmallWorld world(store_world(0, 1));
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  Store& store = *world.session(0).store();
  std::vector<float> memory(2000);
  const std::vector<float*> outputs(2, memory.data());
  const std::vector<const float*> inputs(2, memory.data());
  const auto age = [&] { return world.session(0).counters().oldest_request_iterations; };
  const auto at_rest = [&] { return world.run([&] { return !store.busy(); }, kSecond); };
  ASSERT_TRUE(store.initialise(0, inputs).ok());
  ASSERT_TRUE(at_rest());
  ASSERT_TRUE(store.pull(0, outputs).ok());
  ASSERT_TRUE(at_rest());
  // One layer's initial values wait when another one's first push comes.
  ASSERT_TRUE(store.initialise(2, std::vector<const float*>{memory.data()}).ok());
  EXPECT_EQ(age(), 0u);
  ASSERT_TRUE(store.push(0, inputs, 1).ok());
  EXPECT_EQ(age(), 1u);
  ASSERT_TRUE(at_rest());
  EXPECT_EQ(age(), 0u);
}

TEST(StoreCalls, WhatCannotBeIsRefusedWithTheReason) {
  WorldOptions options = store_world(0, 1);
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  Store& store = *world.session(0).store();
  std::vector<float> memory(2000);
  const std::vector<const float*> one{memory.data()};
  EXPECT_THAT(store.push(2, one, 1).message(), HasSubstr("pull it first"));
  EXPECT_THAT(store.push(3, one, 1).message(), HasSubstr("no layer 3 of 3"));
  EXPECT_THAT(store.push(0, one, 1).message(), HasSubstr("has 2 tensors, not 1"));
  EXPECT_TRUE(store.initialise(2, one).ok());
  EXPECT_EQ(store.initialise(2, one).code(), StatusCode::kBusy);
}

}  // namespace
}  // namespace sluice::client

// The order of requests to a parameter store, by policy.
#include "client/sched/requests.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::client {
namespace {

RequestPool pool_of(RequestPolicy policy, std::uint32_t layers = 4) {
  RequestPool pool({.policy = policy, .layer_count = layers, .pushes_per_layer = 3});
  pool.begin_iteration(1);
  return pool;
}

// The layers of all units of one direction.
std::vector<LayerIndex> order(RequestPool& pool, Direction direction) {
  std::vector<LayerIndex> layers;
  for (RequestUnit unit; pool.next(direction, unit);) layers.push_back(unit.layer);
  return layers;
}

using Layers = std::vector<LayerIndex>;

TEST(Requests, FifoTakesTheOldestAndFiloTheNewest) {
  for (const auto& [policy, expected] :
       {std::pair{RequestPolicy::kFifo, Layers{3, 1, 2}}, {RequestPolicy::kFilo, {2, 1, 3}}}) {
    RequestPool pool = pool_of(policy);
    for (const LayerIndex layer : {3u, 1u, 2u}) {
      pool.push(layer, 1, 1);
      pool.pull(layer, 2, 1, 1);
    }
    EXPECT_EQ(order(pool, Direction::kPush), expected);
    EXPECT_EQ(order(pool, Direction::kPull), expected);
    EXPECT_TRUE(pool.empty(Direction::kPush) && pool.empty(Direction::kPull));
  }
}

TEST(Requests, AUnitIsChosenAnewEachTimeAndTheLastOneSaysSo) {
  RequestPool pool = pool_of(RequestPolicy::kFilo);
  pool.push(3, 1, 2);
  RequestUnit unit;
  ASSERT_TRUE(pool.next(Direction::kPush, unit));
  EXPECT_EQ(unit.unit, 0u);
  EXPECT_FALSE(unit.last);
  pool.push(0, 1, 1);
  ASSERT_TRUE(pool.next(Direction::kPush, unit));
  EXPECT_EQ(unit.layer, 0u);
  EXPECT_TRUE(unit.last);
  ASSERT_TRUE(pool.next(Direction::kPush, unit));
  EXPECT_EQ(unit.layer, 3u);
  EXPECT_EQ(unit.unit, 1u);
  EXPECT_TRUE(unit.last);
  EXPECT_FALSE(pool.next(Direction::kPush, unit));
}

TEST(Requests, ALayersPushesLeaveInTheOrderOfIterationsUnderEveryPolicy) {
  for (const auto policy : {RequestPolicy::kFifo, RequestPolicy::kFilo, RequestPolicy::kStalest}) {
    RequestPool pool = pool_of(policy);
    pool.push(1, 1, 2);
    pool.push(1, 2, 1);
    std::vector<Step> iterations;
    for (RequestUnit unit; pool.next(Direction::kPush, unit);) iterations.push_back(unit.iteration);
    EXPECT_EQ(iterations, (std::vector<Step>{1, 1, 2}));
  }
}

TEST(Requests, WhatIsOlderThanTwoIterationsGoesFirstSoThatNothingStarves) {
  for (const auto policy : {RequestPolicy::kFilo, RequestPolicy::kStalest}) {
    RequestPool pool = pool_of(policy);
    pool.push(3, 1, 1);
    pool.pull(3, 1, 0, 1);
    pool.begin_iteration(3);
    pool.push(0, 3, 1);
    pool.pull(0, 3, 5, 1);
    pool.told(0, {.clock = 5});
    RequestUnit unit;
    EXPECT_EQ(pool.oldest_age(), 2u);
    pool.begin_iteration(4);
    EXPECT_EQ(pool.oldest_age(), 3u);
    for (const Direction direction : {Direction::kPush, Direction::kPull}) {
      ASSERT_TRUE(pool.next(direction, unit));
      EXPECT_EQ(unit.layer, 3u);
    }
  }
}

TEST(Requests, StalestPullsTheStalestLayerThenTheFrontAndWhatWouldParkLast) {
  RequestPool pool = pool_of(RequestPolicy::kStalest);
  for (const LayerIndex layer : {3u, 2u, 1u, 0u}) pool.pull(layer, 5, 4, 1);
  pool.told(0, {.held = 3, .clock = 3});  // would be parked
  pool.told(1, {.held = 3, .clock = 4});
  pool.told(2, {.held = 1, .clock = 4});
  pool.told(3, {.held = 3, .clock = 9});
  EXPECT_EQ(order(pool, Direction::kPull), (Layers{2, 1, 3, 0}));
}

TEST(Requests, StalestPushesWhatMovesAClockThenTheOldest) {
  RequestPool pool = pool_of(RequestPolicy::kStalest, 6);
  pool.told(0, {.clock = 3, .pushed = 4});  // others hold it back
  pool.told(1, {.clock = 3, .pushed = 5});
  pool.told(2, {.clock = 4, .pushed = 4, .at_clock = 3});
  pool.told(3, {.clock = 4, .pushed = 4, .at_clock = 1});
  pool.told(4, {.clock = 4, .pushed = 4, .at_clock = 1, .parked = 2});
  pool.told(5, {.clock = 4, .pushed = 4, .at_clock = 1, .parked = 2});
  for (const LayerIndex layer : {5u, 4u, 3u, 2u, 0u}) pool.push(layer, 5, 1);
  pool.push(1, 6, 1);
  EXPECT_EQ(order(pool, Direction::kPush), (Layers{4, 5, 3, 2, 0, 1}));
}

TEST(Requests, TheFrontIsWhatForwardNeedsFirst) {
  RequestPool pool = pool_of(RequestPolicy::kStalest);
  pool.arrange(Layers{2, 0, 3, 1});
  EXPECT_EQ(pool.place(3), 2u);
  for (const LayerIndex layer : {0u, 1u, 2u, 3u}) pool.pull(layer, 2, 0, 1);
  EXPECT_EQ(order(pool, Direction::kPull), (Layers{2, 0, 3, 1}));
  for (const LayerIndex layer : {0u, 1u, 2u, 3u}) pool.push(layer, 1, 1);
  EXPECT_EQ(order(pool, Direction::kPush), (Layers{2, 0, 3, 1}));
}

TEST(Requests, StalestFinishesAPushThatHasBegunAndPullsLastWhatNobodyNeeds) {
  RequestPool pool = pool_of(RequestPolicy::kStalest);
  pool.push(3, 1, 2);
  RequestUnit unit;
  ASSERT_TRUE(pool.next(Direction::kPush, unit));
  pool.push(0, 1, 1);
  EXPECT_EQ(order(pool, Direction::kPush), (Layers{3, 0}));
  pool.told(0, {.held = 4, .clock = 6});
  pool.told(1, {.held = 3, .clock = 3});
  for (const LayerIndex layer : {0u, 1u}) pool.pull(layer, 5, 4, 1);
  ASSERT_TRUE(pool.next(Direction::kPull, unit));
  EXPECT_TRUE(unit.layer == 1 && unit.would_park);
  ASSERT_TRUE(pool.next(Direction::kPull, unit));
  EXPECT_TRUE(unit.layer == 0 && !unit.would_park);
}

TEST(Requests, APullThatWaitsBecomesTheNewerOneAndKeepsItsAge) {
  RequestPool pool = pool_of(RequestPolicy::kFifo);
  pool.pull(2, 1, 0, 2);
  pool.pull(1, 1, 0, 1);
  RequestUnit unit;
  ASSERT_TRUE(pool.next(Direction::kPull, unit));
  pool.pull(2, 2, 1, 2);
  std::vector<Step> needs;
  while (pool.next(Direction::kPull, unit)) needs.push_back(unit.need);
  EXPECT_EQ(needs, (std::vector<Step>{1, 1, 0}));
}

TEST(Requests, WhileTheWorkerIsSuspendedPullsGoFirstElseTheOlder) {
  for (const bool suspended : {true, false}) {
    RequestPool pool = pool_of(RequestPolicy::kStalest);
    pool.push(0, 1, 1);
    pool.pull(0, 2, 1, 1);
    RequestUnit unit;
    ASSERT_TRUE(pool.next(suspended, unit));
    EXPECT_EQ(unit.direction, suspended ? Direction::kPull : Direction::kPush);
    EXPECT_TRUE(pool.next(suspended, unit));
    EXPECT_FALSE(pool.next(suspended, unit));
  }
}

TEST(Requests, ClearForgetsAll) {
  RequestPool pool = pool_of(RequestPolicy::kStalest);
  pool.push(0, 1, 1);
  pool.pull(0, 2, 1, 1);
  pool.clear();
  RequestUnit unit;
  EXPECT_FALSE(pool.next(true, unit));
  EXPECT_EQ(pool.oldest_age(), 0u);
  pool.push(0, 7, 1);
  EXPECT_TRUE(pool.next(Direction::kPush, unit));
  EXPECT_NE(pool.describe_plan().find("stalest"), std::string::npos);
}

}  // namespace
}  // namespace sluice::client

// The published algorithm's mistakes in choosing k, each played to a model of the algorithm and to
// our policies.
//
// Our policy `saina` is the published rule, kept for comparison; the last test here holds it to
// that rule. The other tests ask `goodput`, the policy that we recommend, for the right k, through
// the production job: signs, norms, arrival times and all.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/unit/published/systems.h"

namespace sluice::published {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::Le;

constexpr std::size_t kElems = 15;  // odd: never exactly half of the signs flip

// Workers that compute, send, and go on with the round that is open then. What would come late
// stays at home, so that only the rule is on trial and not what becomes of late packets.
template <class System>
class Training {
 public:
  Training(std::uint16_t worker_count, PolicyOptions policy)
      : system_(worker_count, {policy}), workers_(worker_count) {}

  // `noise`: of the gradients, beside a signal of 1 in every element. The k of each round.
  std::vector<std::uint16_t> run(std::uint32_t rounds, const std::vector<double>& seconds,
                                 float signal, float noise) {
    std::vector<std::uint16_t> ks;
    const std::uint32_t end = round_ + rounds;
    begin_all(seconds);
    while (round_ < end) {
      const auto next = std::ranges::min_element(workers_, {}, &Worker::ready_ns);
      now_ = next->ready_ns;
      system_.set_time(now_);
      const auto rank = static_cast<std::uint16_t>(next - workers_.begin());
      system_.report(0, rank, next->round);
      const bool late = next->round < round_;
      if (!late) {
        const std::uint16_t k = system_.k(0);
        system_.deliver(system_.packet(0, rank, round_, gradient(signal, noise)));
        next->ready_ns = kNever;
        if (system_.leave().empty()) continue;
        ks.push_back(k);
        ++round_;
      }
      for (std::size_t i = 0; i < workers_.size(); ++i)
        if (workers_[i].ready_ns == kNever || &workers_[i] == &*next)
          begin(workers_[i], seconds[i]);
    }
    return ks;
  }

 private:
  struct Worker {
    std::uint32_t round = 0;
    TimeNs ready_ns = 0;
  };

  void begin(Worker& worker, double seconds) {
    worker = {.round = round_,
              .ready_ns = now_ + static_cast<TimeNs>(seconds * static_cast<double>(kSecond))};
  }
  void begin_all(const std::vector<double>& seconds) {
    for (std::size_t i = 0; i < workers_.size(); ++i) begin(workers_[i], seconds[i]);
  }
  Values gradient(float signal, float noise) {
    Values values(kElems);
    // Of many sizes: sums of few equal ones are often 0, whose sign is always the same.
    for (float& value : values)
      value = signal + noise * (static_cast<float>(random_() % 2001) - 1000);
    return values;
  }

  System system_;
  std::vector<Worker> workers_;
  std::mt19937 random_{1};
  std::uint32_t round_ = 0;
  TimeNs now_ = 0;
};

template <class System>
PolicyOptions adaptive();
template <>
PolicyOptions adaptive<Published>() {
  return {.kind = PolicyKind::kSaina, .k = 1, .round_steps = 1};
}
template <>
PolicyOptions adaptive<Ours>() {
  return {.kind = PolicyKind::kGoodput};
}

// Gradients that are all noise, from workers that are equally fast, make the sum of all worth its
// time. Then the noise ends and two workers become slow: nothing speaks for a large k any more.
struct Ks {
  std::uint16_t noisy = 0;
  std::uint16_t calm = 0;
};
template <class System>
Ks k_before_and_after_the_noise() {
  Training<System> training(8, adaptive<System>());
  const Ks noisy{.noisy = training.run(300, std::vector<double>(8, 1), 0, 1).back()};
  std::vector<double> seconds(8, 1);
  seconds[6] = seconds[7] = 10;
  return {.noisy = noisy.noisy, .calm = training.run(300, seconds, 1, 0).back()};
}

TEST(PublishedMistakes, KNeverFalls) {
  const Ks ours = k_before_and_after_the_noise<Ours>();
  EXPECT_EQ(ours.noisy, 8);
  EXPECT_LT(ours.calm, ours.noisy);
  const Ks theirs = k_before_and_after_the_noise<Published>();
  EXPECT_GT(theirs.noisy, 1);
  EXPECT_FALSE(theirs.calm < theirs.noisy);
}

// At s_th = 50 % the published count is a random walk on pure noise: up and down by one with equal
// chance, not below 0. It takes 30 rounds on average to reach 5 (2 + 4 + 6 + 8 + 10): a clock.
TEST(PublishedMistakes, PureNoiseRaisesKAboutEvery30Rounds) {
  constexpr std::uint32_t kRounds = 60'000;
  SignFlips rule({}, UINT16_MAX);
  std::mt19937 random(1);
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    std::uint64_t flipped = 0;
    for (std::size_t i = 0; i < kElems; ++i) flipped += random() % 2;
    rule.end_round(flipped, kElems);
  }
  const double rounds_a_raise = static_cast<double>(kRounds) / (rule.k() - 1);
  EXPECT_THAT(rounds_a_raise, AllOf(Ge(27), Le(33)));
}

// What that costs: four of 16 workers are fast, the others ten times slower. Noise alone is no
// news: while neither it nor the arrival times change, k has no reason to change. (It may well be
// large: were all equally fast, `goodput` would take all of them at once, since averaging were
// free.)
template <class System>
std::vector<std::uint16_t> ks_on_pure_noise() {
  std::vector<double> seconds(16, 10);
  std::fill_n(seconds.begin(), 4, 1);
  Training<System> training(16, adaptive<System>());
  training.run(100, seconds, 0, 1);
  return training.run(900, seconds, 0, 1);
}

TEST(PublishedMistakes, PureNoiseRaisesKWhateverItCosts) {
  EXPECT_THAT(ks_on_pure_noise<Ours>(), Each(4));
  const auto theirs = ks_on_pure_noise<Published>();
  EXPECT_THAT(theirs, testing::Not(Each(theirs.front())));
  EXPECT_EQ(theirs.back(), 16) << "it ends with all, and every round takes ten times as long";
}

// The published rule itself is offered as `saina`, exactly, its clock included.
TEST(PublishedMistakes, OurSainaIsThePublishedRuleRoundByRound) {
  constexpr std::uint16_t kWorkers = 64;
  SignFlips theirs({}, kWorkers);
  agg::Policy ours({.kind = PolicyKind::kSaina, .k = 1, .round_steps = 1}, kWorkers);
  const std::vector<double> unknown(kWorkers, agg::kUnknown);
  std::mt19937 random(2);
  for (std::uint32_t round = 1; round <= 3'000; ++round) {
    std::uint64_t flipped = 0;
    for (std::size_t i = 0; i < kElems; ++i) flipped += random() % 2;
    theirs.end_round(flipped, kElems);
    const std::uint16_t k = ours.next_k({.step = round,
                                         .durations_s = unknown,
                                         .signs_flipped = flipped,
                                         .signs_compared = kElems});
    ASSERT_EQ(k, theirs.k()) << "round " << round;
  }
  EXPECT_EQ(ours.k(), kWorkers) << "noise alone brings it to the end";
}

}  // namespace
}  // namespace sluice::published

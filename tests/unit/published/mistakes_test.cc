// The published algorithm's mistakes with packets and slots, each played to a model of the
// algorithm and to our aggregator. The comments state the rule; the expectations on `Published` are
// its wrong answers.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/published/systems.h"

namespace sluice::published {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr PolicyOptions fixed_k(std::uint16_t k) { return {.kind = PolicyKind::kFixed, .k = k}; }

auto sums_are(float sum) { return Each(Field(&Seen::sum, ElementsAre(sum))); }

// Everything that a system has sent so far about one round of a job.
template <class System>
struct Player {
  Player(std::uint16_t worker_count, const std::vector<PolicyOptions>& jobs)
      : system(worker_count, jobs) {}

  void send(std::uint16_t worker, std::uint32_t round, float value, std::size_t job = 0) {
    system.deliver(system.packet(job, worker, round, {value}));
    collect();
  }
  void collect() {
    for (Seen& seen : system.leave()) all.push_back(std::move(seen));
  }
  std::vector<Seen> of_round(std::uint32_t round, std::size_t job = 0) const {
    std::vector<Seen> matching;
    for (const Seen& seen : all)
      if (seen.round == round && seen.job == job) matching.push_back(seen);
    return matching;
  }

  System system;
  std::vector<Seen> all;
};

// A result that is out stays as it is: one copy a worker, the sum of the k that completed it.
template <class System>
std::vector<Seen> when_a_packet_is_late(std::uint16_t k) {
  Player<System> player(4, {fixed_k(k)});
  for (std::uint16_t worker = 0; worker < 4; ++worker) player.send(worker, 0, worker < k ? 1 : 100);
  return player.of_round(0);
}

TEST(PublishedMistakes, ALatePacketIsAddedToThePublishedSum) {
  EXPECT_THAT(when_a_packet_is_late<Ours>(1), AllOf(SizeIs(4), sums_are(1)));
  const auto theirs = when_a_packet_is_late<Published>(1);
  EXPECT_THAT(theirs, Not(AllOf(SizeIs(4), sums_are(1))));
  ASSERT_THAT(theirs, SizeIs(16)) << "each late packet publishes again";
  EXPECT_THAT(theirs.back().sum, ElementsAre(301));
}

TEST(PublishedMistakes, ALatePacketRearmsTheSlot) {
  EXPECT_THAT(when_a_packet_is_late<Ours>(2), AllOf(SizeIs(4), sums_are(2)));
  const auto theirs = when_a_packet_is_late<Published>(2);
  EXPECT_THAT(theirs, Not(AllOf(SizeIs(4), sums_are(2))));
  ASSERT_THAT(theirs, SizeIs(8)) << "two late packets are as good as two in time";
  EXPECT_THAT(theirs.back().sum, ElementsAre(202));
}

// A worker that lost its copy of a result gets another one when it asks, and so does a straggler.
template <class System>
std::vector<Seen> answers_to_a_worker_that_lost_the_result(std::uint16_t worker) {
  Player<System> player(4, {fixed_k(2)});
  player.send(0, 0, 1);
  player.send(1, 0, 1);
  player.all.clear();  // the network loses every copy
  for (int attempt = 0; attempt < 10; ++attempt) {
    player.system.ask(0, worker, 0, {1});
    player.collect();  // asked before its answer, it would have one answer to both
  }
  return player.of_round(0);
}

TEST(PublishedMistakes, AWorkerThatLostTheResultIsNeverAnsweredAgain) {
  for (const std::uint16_t worker : {0, 3}) {
    const auto ours = answers_to_a_worker_that_lost_the_result<Ours>(worker);
    EXPECT_THAT(ours, AllOf(SizeIs(10), sums_are(2), Each(Field(&Seen::worker, worker))));
    EXPECT_THAT(answers_to_a_worker_that_lost_the_result<Published>(worker), IsEmpty());
  }
}

// A packet belongs to the round that its worker sent it for, however late it comes.
template <class System>
std::vector<Seen> when_an_old_packet_meets_a_reused_slot() {
  Player<System> player(3, {fixed_k(2)});
  const auto old = player.system.packet(0, 2, 0, {100});
  for (const std::uint32_t round : {0, 1}) {
    player.send(0, round, 1);
    player.send(1, round, 1);
  }
  player.send(0, 2, 1);
  player.system.deliver(old);
  player.send(1, 2, 1);
  return player.of_round(2);
}

TEST(PublishedMistakes, AnOldPacketEntersTheNextChunkAfterSlotReuse) {
  EXPECT_THAT(when_an_old_packet_meets_a_reused_slot<Ours>(), AllOf(SizeIs(3), sums_are(2)));
  const auto theirs = when_an_old_packet_meets_a_reused_slot<Published>();
  EXPECT_THAT(theirs, Not(AllOf(SizeIs(3), sums_are(2))));
  EXPECT_THAT(theirs, AllOf(SizeIs(3), sums_are(101)));
}

// A result says with how many contributions it was summed, also when its own completion raises k
// before it leaves. Every worker sends 1, so the sum is their number.
template <class System>
std::vector<std::pair<float, std::uint16_t>> sum_and_k_while_k_rises() {
  Player<System> player(4, {{.kind = PolicyKind::kSaina,
                             .k = 1,
                             .sign_threshold_permille = 0,  // every compared round raises k
                             .count_threshold = 1,
                             .round_steps = 1}});
  std::vector<std::pair<float, std::uint16_t>> pairs;
  for (std::uint32_t round = 0; round < 4; ++round) {
    const std::uint16_t k = player.system.k(0);
    for (std::uint16_t worker = 0; worker < k; ++worker) player.send(worker, round, 1);
    const auto seen = player.of_round(round);
    EXPECT_THAT(seen, SizeIs(4));
    for (const Seen& each : seen) pairs.emplace_back(each.sum.at(0), each.k);
  }
  return pairs;
}

TEST(PublishedMistakes, TheResultCarriesTheKOfTheMomentItLeaves) {
  const auto consistent = [](const auto& pairs) {
    return std::ranges::all_of(pairs, [](const auto& pair) { return pair.first == pair.second; });
  };
  const auto ours = sum_and_k_while_k_rises<Ours>();
  EXPECT_TRUE(consistent(ours));
  EXPECT_LT(ours.front().second, ours.back().second) << "k has to change, or this shows nothing";
  const auto theirs = sum_and_k_while_k_rises<Published>();
  EXPECT_FALSE(consistent(theirs));
  EXPECT_THAT(theirs, testing::Contains(testing::Pair(1, 2))) << "summed with 1, says 2";
}

// Every copy of a result names the workers that are in it.
template <class System>
bool a_result_names_its_members() {
  Player<System> player(4, {fixed_k(2)});
  player.send(3, 0, 1);
  player.send(1, 0, 1);
  const auto seen = player.of_round(0);
  EXPECT_THAT(seen, AllOf(SizeIs(4), sums_are(2)));
  return std::ranges::all_of(
      seen, [](const Seen& each) { return each.members == std::uint64_t{0b1010}; });
}

TEST(PublishedMistakes, NobodyKnowsWhichWorkersAreInAResult) {
  EXPECT_TRUE(a_result_names_its_members<Ours>());
  EXPECT_FALSE(a_result_names_its_members<Published>());
}

// Each job completes with its own k, whatever jobs share the appliance.
template <class System>
std::vector<std::uint16_t> contributions_to_complete(const std::vector<PolicyOptions>& jobs) {
  std::vector<std::uint16_t> needed;
  Player<System> player(4, jobs);
  for (std::size_t job = 0; job < jobs.size(); ++job)
    for (std::uint16_t worker = 0; worker < 4; ++worker) {
      player.send(worker, 0, 1, job);
      if (player.of_round(0, job).empty()) continue;
      needed.push_back(static_cast<std::uint16_t>(worker + 1));
      break;
    }
  return needed;
}

TEST(PublishedMistakes, OneKServesAllJobs) {
  EXPECT_THAT(contributions_to_complete<Ours>({fixed_k(1), fixed_k(3)}), ElementsAre(1, 3));
  EXPECT_THAT(contributions_to_complete<Published>({fixed_k(1), fixed_k(3)}), ElementsAre(3, 3));
}

}  // namespace
}  // namespace sluice::published

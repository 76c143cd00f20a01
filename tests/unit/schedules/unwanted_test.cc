// Schedules of a contributor that wants no result. It is done once it knows that it was counted,
// despite losses and duplicates, and no result is ever sent to it.
#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

constexpr std::uint16_t kQuiet = 1;    // who wants none, in step 1
constexpr std::uint16_t kLast = 2;     // who completes the step
constexpr std::uint64_t kChunks = 40;  // a block: they leave before any feedback

bool is_to_quiet(const Passing& passing, PacketType type) {
  return passing.direction == Direction::kToWorker && passing.packet.type() == type &&
         rank_of(passing) == kQuiet;
}

void lose(Passing& passing, int& count) {
  passing.drop = true;
  ++count;
}

// Three ranks whose steps the tests submit, over tensors such as a BCube's lanes have.
class Unwanted : public Schedule {
 protected:
  static JobPlan lane(const std::vector<std::uint64_t>& elem_counts) {
    JobPlan plan = make_plan(3, 4, elem_counts);
    for (client::TensorSpec& tensor : plan.tensors) tensor.relayed = true;
    plan.averaging = AveragingChoice::kSum;
    plan.manual = true;
    return plan;
  }
  void start() { start_all(world().add_run(lane({64 * kChunks}))); }
  // `script` acts on what passes, after the results to the quiet rank have been counted.
  void watch(Filter script = {}) {
    world().set_filter([this, script](Passing& passing) {
      if (is_result(passing)) {
        const Step step = passing.packet.body<wire::ResultHeader>().step;
        ++(rank_of(passing) == kQuiet ? quiet_results_ : other_results_)[step];
      }
      if (script) script(passing);
    });
  }
  void submit(std::uint16_t rank, Step step, bool wanted, std::uint32_t tensor = 0) {
    Worker& worker = world().worker(0, rank);
    const JobPlan& plan = world().plan(0);
    const std::uint64_t elems = plan.tensors[tensor].elem_count;
    for (std::uint64_t i = 0; i < elems; ++i)
      store_element(Dtype::kFloat32, plan.gradient(Rank{rank}, step, tensor, i),
                    worker.input(tensor) + 4 * i);
    std::memset(worker.output(tensor), kUntouched, 4 * elems);
    ASSERT_TRUE(worker.session()
                    .submit({.tensor = tensor,
                             .input = worker.input(tensor),
                             .output = worker.output(tensor),
                             .wanted = wanted},
                            world().now())
                    .ok());
    worker.pump(world().now());
  }
  bool is_done(std::uint16_t rank, Step step) {
    return world().worker(0, rank).steps_done() >= step;
  }
  bool await_done(std::uint16_t rank, Step step, DurationNs patience) {
    return world().run_until([&] { return is_done(rank, step); }, world().now() + patience);
  }
  void rest(DurationNs duration) { world().run_until(world().now() + duration); }

  void expect_sum(std::uint16_t rank, Step step, std::uint32_t tensor = 0) {
    ASSERT_TRUE(is_done(rank, step)) << "rank " << rank;
    const JobPlan& plan = world().plan(0);
    for (std::uint64_t i = 0; i < plan.tensors[tensor].elem_count; ++i) {
      float actual;
      std::memcpy(&actual, world().worker(0, rank).output(tensor) + 4 * i, 4);
      ASSERT_EQ(actual, plan.sum(RankSet::below(3), step, tensor, i))
          << "rank " << rank << " element " << i << " of step " << step;
    }
  }
  // Both others have the sum of all three; the quiet one is done, and nothing has come to it.
  void expect_told_and_summed() {
    rest(100 * kMillisecond);  // for what comes late
    EXPECT_TRUE(is_done(kQuiet, 1))
        << world().worker(0, kQuiet).session().describe_stall(world().now());
    EXPECT_EQ(world().worker(0, kQuiet).count(Kind::kTensorDone), 1u);
    expect_sum(0, 1);
    expect_sum(kLast, 1);
    EXPECT_EQ(quiet_results_[1], 0);
    EXPECT_GE(other_results_[1], 2 * static_cast<int>(kChunks));
    const std::uint8_t* const output = world().worker(0, kQuiet).output(0);
    EXPECT_TRUE(
        std::all_of(output, output + 256 * kChunks, [](auto byte) { return byte == kUntouched; }));
    EXPECT_EQ(folded(), 3 * kChunks);
  }
  std::uint64_t folded() {
    return world().appliance().count(Verdict::kFolded) +
           world().appliance().count(Verdict::kCompleted);
  }

  std::map<Step, int> quiet_results_;
  std::map<Step, int> other_results_;
};

TEST_F(Unwanted, is_done_before_the_step_is_complete_and_gets_no_result) {
  start();
  watch();
  submit(0, 1, true);
  submit(kQuiet, 1, false);
  EXPECT_TRUE(await_done(kQuiet, 1, kMillisecond)) << "though the last rank has sent nothing";
  submit(kLast, 1, true);
  ASSERT_TRUE(await_done(0, 1, kSecond));
  expect_told_and_summed();
  EXPECT_EQ(world().worker(0, kQuiet).session().counters().retransmissions, 0u);
}

// Long before it would ask by itself.
TEST_F(Unwanted, learns_from_later_feedback_what_lost_feedback_would_have_told) {
  start_all(world().add_run(lane({64 * kChunks, 64})));
  int lost = 0;
  bool loses = true;
  watch([&](Passing& passing) {
    if (is_to_quiet(passing, PacketType::kFeedback) && loses) lose(passing, lost);
  });
  const auto done = [this] { return world().worker(0, kQuiet).count(Kind::kTensorDone); };
  submit(kQuiet, 1, false);
  rest(10 * kMillisecond);
  EXPECT_GT(lost, 0);
  EXPECT_EQ(done(), 0u);
  loses = false;
  submit(kQuiet, 1, false, 1);
  rest(kMillisecond);
  EXPECT_EQ(done(), 2u);
  for (const std::uint16_t rank : {std::uint16_t{0}, kLast})
    for (const std::uint32_t tensor : {0u, 1u}) submit(rank, 1, true, tensor);
  ASSERT_TRUE(await_done(0, 1, kSecond) && await_done(kLast, 1, kSecond));
  rest(10 * kMillisecond);
  expect_sum(0, 1, 0);
  expect_sum(kLast, 1, 1);
  EXPECT_EQ(quiet_results_[1], 0);
}

TEST_F(Unwanted, asks_when_all_feedback_is_lost) {
  start();
  int lost = 0;
  int answers = 0;
  watch([&](Passing& passing) {
    if (is_to_quiet(passing, PacketType::kFeedback)) lose(passing, lost);
    answers += is_to_quiet(passing, PacketType::kAnswer);
  });
  submit(0, 1, true);
  submit(kQuiet, 1, false);
  EXPECT_TRUE(await_done(kQuiet, 1, kSecond));
  EXPECT_GT(lost, 0);
  EXPECT_GE(answers, 1);
  submit(kLast, 1, true);
  ASSERT_TRUE(await_done(0, 1, kSecond));
  expect_told_and_summed();
}

TEST_F(Unwanted, learns_after_the_close_what_was_lost_before_it) {
  start();
  bool closed = false;
  int lost_feedback = 0;
  int lost_answers = 0;
  std::uint64_t complete = 0;
  watch([&](Passing& passing) {
    if (is_to_quiet(passing, PacketType::kFeedback) && !closed) lose(passing, lost_feedback);
    if (!is_to_quiet(passing, PacketType::kAnswer)) return;
    if (closed)
      complete |= passing.packet.body<wire::Answer>().complete;
    else
      lose(passing, lost_answers);
  });
  submit(0, 1, true);
  submit(kQuiet, 1, false);
  rest(60 * kMillisecond);  // no round trip was measured: it asks after 50
  submit(kLast, 1, true);
  ASSERT_TRUE(await_done(0, 1, kSecond) && await_done(kLast, 1, kSecond));
  EXPECT_FALSE(is_done(kQuiet, 1)) << "nobody has told it";
  EXPECT_GT(lost_feedback, 0);
  EXPECT_GT(lost_answers, 0);
  closed = true;
  EXPECT_TRUE(await_done(kQuiet, 1, kSecond));
  EXPECT_EQ(complete, (std::uint64_t{1} << kChunks) - 1);
  expect_told_and_summed();
}

TEST_F(Unwanted, asks_again_when_its_probes_are_lost) {
  start();
  int probes = 0;
  watch([&](Passing& passing) {
    if (is_probe(passing) && rank_of(passing) == kQuiet) passing.drop = ++probes <= 4;
  });
  submit(0, 1, true);
  submit(kQuiet, 1, false);
  EXPECT_TRUE(await_done(kQuiet, 1, kSecond));
  EXPECT_GT(probes, 4);
  submit(kLast, 1, true);
  ASSERT_TRUE(await_done(0, 1, kSecond));
  expect_told_and_summed();
}

TEST_F(Unwanted, asks_again_after_the_close_when_all_probes_before_it_are_lost) {
  start();
  bool closed = false;
  int lost = 0;
  watch([&](Passing& passing) {
    if (is_probe(passing) && rank_of(passing) == kQuiet && !closed) lose(passing, lost);
  });
  submit(0, 1, true);
  submit(kQuiet, 1, false);
  submit(kLast, 1, true);
  ASSERT_TRUE(await_done(0, 1, kSecond) && await_done(kLast, 1, kSecond));
  EXPECT_FALSE(is_done(kQuiet, 1));
  EXPECT_GT(lost, 0);
  closed = true;
  EXPECT_TRUE(await_done(kQuiet, 1, kSecond));
  expect_told_and_summed();
}

TEST_F(Unwanted, counts_once_what_the_network_sends_twice_before_and_after_the_close) {
  start();
  watch([](Passing& passing) {
    if (!is_contribution(passing) || rank_of(passing) != kQuiet) return;
    passing.copies = 2;
    passing.late_copies = {5 * kMillisecond, 60 * kMillisecond};
  });
  const auto duplicates = [this] { return world().appliance().count(Verdict::kDuplicate); };
  submit(0, 1, true);
  submit(kQuiet, 1, false);
  rest(20 * kMillisecond);
  EXPECT_EQ(duplicates(), 2 * kChunks) << "while the chunks are open";
  submit(kLast, 1, true);
  ASSERT_TRUE(await_done(0, 1, 30 * kMillisecond) && await_done(kLast, 1, 30 * kMillisecond));
  EXPECT_EQ(duplicates(), 2 * kChunks);
  rest(60 * kMillisecond);
  EXPECT_EQ(duplicates(), 3 * kChunks) << "after they are closed";
  expect_told_and_summed();
}

// The slots of step 1 are those of step 3, in which another rank wants none.
TEST_F(Unwanted, is_of_one_step_and_one_rank) {
  start();
  watch();
  const std::vector<std::vector<bool>> wanted = {
      {true, false, true}, {false, true, true}, {false, true, true}, {true, false, false}};
  for (Step step = 1; step <= 4; ++step) {
    const std::vector<bool>& now = wanted[step - 1];
    for (std::uint16_t rank = 0; rank < 3; ++rank) submit(rank, step, now[rank]);
    for (std::uint16_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(await_done(rank, step, kSecond));
    rest(10 * kMillisecond);
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      if (now[rank]) expect_sum(rank, step);
    constexpr auto kAll = static_cast<int>(kChunks);
    EXPECT_EQ(quiet_results_[step], now[kQuiet] ? kAll : 0) << "step " << step;
    EXPECT_EQ(other_results_[step], kAll * (now[0] + now[kLast])) << "step " << step;
  }
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(world().worker(0, rank).session().counters().results_pulled, 0u);
}

// A duplicate hides a loss from feedback, so that the rank does not know yet what was counted; and
// a small credit holds results back, which it pulls.
TEST_F(Unwanted, is_not_pulled_beside_what_is_wanted_and_withheld) {
  JobPlan plan = lane({64 * 30, 64 * 30});  // one block
  plan.session.receive_credit_packets = 8;
  start_all(world().add_run(plan));
  int wanted = 0;
  int unwanted = 0;
  watch([&](Passing& passing) {
    if (is_contribution(passing) && rank_of(passing) == kQuiet) passing.copies = 2;
    if (is_to_quiet(passing, PacketType::kResult))
      ++(passing.packet.body<wire::ResultHeader>().chunk < 30 ? unwanted : wanted);
  });
  for (const std::uint16_t rank : {std::uint16_t{0}, kQuiet}) {
    submit(rank, 1, rank != kQuiet, 0);
    submit(rank, 1, true, 1);
  }
  rest(kMillisecond);
  submit(kLast, 1, true, 0);
  submit(kLast, 1, true, 1);
  for (std::uint16_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(await_done(rank, 1, kSecond));
  rest(10 * kMillisecond);
  expect_sum(kQuiet, 1, 1);
  EXPECT_GE(world().worker(0, kQuiet).session().counters().results_pulled, 1u);
  EXPECT_GE(wanted, 30);
  EXPECT_EQ(unwanted, 0);
}

}  // namespace
}  // namespace sluice::sim

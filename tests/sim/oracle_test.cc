// The oracle in jobs of the fastest k: it accepts right results and finds the errors that it claims
// to find.
#include "tests/sim/oracle.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace sluice::sim {
namespace {

// A job of three ranks, k = 2, late gradients requeued. One chunk of four elements.
class FastestOracleTest : public testing::Test {
 protected:
  FastestOracleTest() {
    plan.session.has_policy = true;
    plan.session.policy.kind = PolicyKind::kFixed;
    plan.session.policy.k = 2;
    plan.session.policy.late = LateMode::kRequeue;
    run = oracle.add_run(plan, layout);
  }
  Party party(std::uint16_t rank) { return {run, Rank{rank}, rank}; }
  void submit(std::uint16_t rank, Step step) { oracle.on_submitted(party(rank), step, 0, true); }
  wire::Contribution contribution(std::uint16_t rank, Step step, Step base) {
    wire::Contribution body;
    body.flow.number = ++numbers[rank];
    body.flow.credit = 1000;
    body.step = step;
    body.base_step = base;
    body.weight = plan.weight(Rank{rank}, base);
    body.elem_count = 4;
    return body;
  }
  void send(std::uint16_t rank, const wire::Contribution& body, int error = 0) {
    float values[4];
    for (std::uint64_t i = 0; i < 4; ++i)
      values[i] = static_cast<float>(plan.gradient(Rank{rank}, body.base_step, 0, i) + error);
    deliver(body, {}, values, [&](const wire::Packet& packet) {
      oracle.on_worker_packet(party(rank), 0, 1, packet);
    });
  }
  // The result of `step` over the contributions of (rank, base).
  void answer(Step step, const std::vector<std::pair<std::uint16_t, Step>>& parts,
              std::uint16_t k = 2) {
    wire::ResultHeader body;
    body.feedback.number = ++results;
    body.step = step;
    body.elem_count = 4;
    body.k = k;
    body.may_count = 3;
    body.mask_words = 1;
    std::uint64_t mask = 0;
    float values[4] = {};
    for (const auto& [rank, base] : parts) {
      mask |= std::uint64_t{1} << rank;
      body.weight += plan.weight(Rank{rank}, base);
      for (std::uint64_t i = 0; i < 4; ++i)
        values[i] += static_cast<float>(plan.gradient(Rank{rank}, base, 0, i));
    }
    deliver(body, mask, values,
            [&](const wire::Packet& packet) { oracle.on_appliance_packet(party(0), 0, packet); });
  }
  // Everybody contributes to steps 1 and 2; ranks 0 and 1 to step 3, which leaves rank 2 late.
  void begin() {
    for (Step step = 1; step <= 3; ++step) {
      for (std::uint16_t rank = 0; rank < 3; ++rank) {
        submit(rank, step);
        if (step < 3 || rank < 2) send(rank, contribution(rank, step, step));
      }
      if (step < 3) answer(step, {{0, step}, {1, step}, {2, step}}, 3);
    }
    answer(3, {{0, 3}, {1, 3}});
  }
  bool clean() const { return oracle.violations().empty(); }
  std::string first() const { return clean() ? "none" : oracle.violations().front(); }

  JobPlan plan = make_plan(3, 9, {4});
  client::Layout layout = client::Layout::create(plan.tensors, plan.chunk_bytes).value();
  Oracle oracle;
  RunIndex run = 0;
  std::uint32_t numbers[3] = {};
  std::uint32_t results = 0;

 private:
  template <class Body, class Handle>
  void deliver(const Body& body, std::optional<std::uint64_t> mask, const float (&values)[4],
               const Handle& handle) {
    std::vector<std::uint8_t> bytes(500);
    const std::uint64_t word = mask.value_or(0);
    bytes.resize(wire::encode(bytes, wire::Sender{}, body, {&word, mask ? 1u : 0u},
                              {reinterpret_cast<const std::uint8_t*>(values), sizeof(values)}));
    wire::Packet packet;
    ASSERT_EQ(wire::parse(bytes, packet), Verdict::kAccepted);
    handle(packet);
  }
};

TEST_F(FastestOracleTest, accepts_a_late_gradient_in_the_next_step) {
  begin();
  send(2, contribution(2, 4, 3));
  submit(0, 4);
  send(0, contribution(0, 4, 4));
  answer(4, {{0, 4}, {2, 3}});
  EXPECT_TRUE(clean()) << first();
  EXPECT_EQ(oracle.account(party(2)).delivered, 2u);
  EXPECT_EQ(oracle.account(party(2)).requeued, 1u);
  EXPECT_EQ(oracle.account(party(2)).submitted, 3u);
}
TEST_F(FastestOracleTest, refuses_a_late_gradient_that_counts_twice) {
  begin();
  submit(0, 4);
  for (const Step step : {4, 5}) {
    send(2, contribution(2, step, 3));
    submit(0, step + 1);
    send(0, contribution(0, step, step));
    answer(step, {{0, step}, {2, 3}});
    EXPECT_EQ(clean(), step == 4) << first();
  }
}
TEST_F(FastestOracleTest, refuses_a_gradient_again_that_its_own_step_has) {
  begin();
  send(1, contribution(1, 4, 3));
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_a_late_gradient_with_other_bytes) {
  begin();
  send(2, contribution(2, 4, 3), 1);
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_a_late_gradient_under_another_weight) {
  begin();
  wire::Contribution body = contribution(2, 4, 3);
  ++body.weight;
  send(2, body);
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_a_gradient_that_nobody_computed) {
  begin();
  send(2, contribution(2, 4, 4));
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_a_late_gradient_in_a_job_that_drops_them) {
  plan.session.policy.late = LateMode::kDrop;
  begin();
  send(2, contribution(2, 4, 3));
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_a_gradient_staler_than_the_bound) {
  plan.session.policy.max_staleness = 1;
  begin();
  send(2, contribution(2, 5, 3));
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_a_step_of_fewer_than_k) {
  begin();
  submit(0, 4);
  send(0, contribution(0, 4, 4));
  answer(4, {{0, 4}}, 1);
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, lets_death_lower_k) {
  begin();
  oracle.note_unreliable(run, Rank{1});
  oracle.note_unreliable(run, Rank{2});
  submit(0, 4);
  send(0, contribution(0, 4, 4));
  answer(4, {{0, 4}}, 1);
  EXPECT_TRUE(clean()) << first();
}
TEST_F(FastestOracleTest, refuses_a_step_that_waited_for_more_than_k) {
  begin();
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    submit(rank, 4);
    send(rank, contribution(rank, 4, 4));
  }
  answer(4, {{0, 4}, {1, 4}, {2, 4}});
  EXPECT_FALSE(clean());
}
TEST_F(FastestOracleTest, refuses_replicas_that_differ) {
  oracle.on_applied(party(0), 1, 77);
  oracle.on_applied(party(1), 1, 77);
  EXPECT_TRUE(clean());
  oracle.on_applied(party(2), 1, 78);
  EXPECT_FALSE(clean());
}

}  // namespace
}  // namespace sluice::sim

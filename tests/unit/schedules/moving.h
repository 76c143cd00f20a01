// A job with two appliances, what happens to these, and where its ranks are expected then.
#pragma once

#include <optional>

#include "tests/unit/schedules/restarting.h"

namespace sluice::sim {

inline constexpr std::size_t kA = 0, kB = 1;

inline JobPlan plan_of_many_steps(Step steps = 40) {
  JobPlan plan = make_plan(3, steps, {16 * 5, 16 * 3});
  plan.chunk_bytes = 64;
  plan.in_place = true;
  for (RankPlan& rank : plan.ranks) {
    rank.ending = Ending::kTogether;
    rank.step_delay_ns = 50 * kMillisecond;
  }
  plan.session.restart_timeout_ns = 20 * kSecond;
  return plan;
}

// With k < n: rank 2 is late.
inline JobPlan plan_of_late_steps(Step steps, LateMode late = LateMode::kRequeue) {
  JobPlan plan = plan_of_many_steps(steps);
  plan.nil_output = true;
  plan.session.has_policy = true;
  plan.session.policy = {.kind = PolicyKind::kFixed, .late = late, .k = 2};
  plan.ranks[2].step_delay_ns = 80 * kMillisecond;
  return plan;
}

// Of operations.
inline JobPlan plan_of_rounds(Step rounds, DurationNs pause_ns = 50 * kMillisecond) {
  JobPlan plan = make_plan(3, rounds, {});
  plan.chunk_bytes = 64;
  plan.session.operations = true;
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) {
    rank.ending = Ending::kTogether;
    rank.step_delay_ns = pause_ns;
  }
  return plan;
}

class Moving : public Schedule {
 protected:
  Moving() { options.standby = true; }

  // Whether the job goes on to its end in a world of its own, which `disturb` changes.
  template <class Disturb>
  void expect_survives(const JobPlan& plan, Disturb disturb) {
    World own(options);
    const RunIndex run = own.add_run(plan);
    disturb(own, run);
    expect_done(own, run);
    handed_over += own.oracle().totals().handed_over;
  }
  void expect_survives(const JobPlan& plan, const Deaths& deaths) {
    std::optional<Killer> killer;
    expect_survives(plan, [&](World& own, RunIndex run) {
      killer.emplace(Killer{.world = own, .run = run, .deaths = deaths});
      killer->watch();
    });
  }
  // The first appliance dies after `first` datagrams and is back when members move; the second
  // after `second` of members that have a place there.
  void expect_survives_two(const JobPlan& plan, std::uint32_t first, std::uint32_t second) {
    expect_survives(plan, [&](World& own, RunIndex run) {
      auto passed = std::make_shared<std::array<std::uint32_t, 2>>();
      own.set_filter([&own, run, passed, first, second](Passing& passing) {
        for (std::uint16_t rank = 0; rank < own.plan(run).world_size(); ++rank)
          if (!own.worker(run, rank).started()) return;
        // Questions are sent all the time, with or without a move.
        const bool counts = passing.box == kA || passing.packet.common().cookie != 0;
        if (!counts) return;
        auto& count = (*passed)[passing.box];
        if (++count != (passing.box == kA ? first : second) + 1) return;
        own.at(passing.now, [&own, box = passing.box] { own.stop_appliance(box); });
        if (passing.box == kA)
          own.at(passing.now + 850 * kMillisecond, [&own] { own.start_appliance(5, kA); });
      });
    });
  }
  // All ranks go on with that epoch.
  bool all_at(RunIndex run, std::uint32_t epoch) {
    for (std::uint16_t rank = 0; rank < world().plan(run).world_size(); ++rank) {
      const client::Session& session = world().worker(run, rank).session();
      if (session.epoch() != epoch || session.state() != client::SessionState::kRunning)
        return false;
    }
    return true;
  }
  void expect_moved(RunIndex run, std::uint32_t epoch, TimeNs deadline) {
    EXPECT_TRUE(world().run_until([&] { return all_at(run, epoch); }, deadline))
        << "at " << world().now() / kMillisecond
        << " ms: " << world().worker(run, 0).session().describe_stall(world().now());
  }
  // A running job of some steps, which has been running for half a second.
  RunIndex begin(JobPlan plan) {
    const RunIndex run = world().add_run(std::move(plan));
    start_all(run);
    world().run_until(world().now() + 500 * kMillisecond);
    EXPECT_TRUE(all_at(run, 0)) << "nothing has happened yet";
    return run;
  }
  void cut(RunIndex run, std::uint16_t rank, std::size_t box, bool on) {
    world().cut(world().worker(run, rank).identity.host, box, on);
  }
  // Each rank reaches the second appliance alone where its bit is set, else the first alone.
  void keep_apart(RunIndex run, std::uint32_t at_second, bool on) {
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      cut(run, rank, (at_second >> rank & 1) != 0 ? kA : kB, on);
  }
  void stop(std::size_t box, DurationNs duration) { stop(world(), box, duration); }
  static void stop(World& own, std::size_t box, DurationNs duration) {
    const TimeNs until = own.now() + duration;
    own.appliance(box).pause_control(until);
    for (std::uint16_t shard = 0; shard < own.appliance(box).shard_count(); ++shard)
      own.appliance(box).pause_shard(shard, until);
  }

  std::uint64_t handed_over = 0;
};

}  // namespace sluice::sim

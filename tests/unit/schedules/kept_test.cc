// What members keep for an appliance that may be lost, in bytes: `plan` and docs/sizing.md say it.
#include <optional>

#include "tests/sim/alloc_guard.h"
#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kEntryBytes = 32;  // of a chunk, see ReceiveArena
constexpr std::uint64_t kWordBytes = 8;    // of a mask

struct Member {
  std::uint16_t workers = 0;
  std::uint64_t chunks = 0;
  std::uint64_t chunk_bytes = 0;
  std::optional<LateMode> late;  // none: synchronous
};

class Kept : public Schedule {
 protected:
  // All that the job takes, its appliance too, once its members have joined.
  std::uint64_t taken_bytes(const Member& member, DurationNs restart_timeout_ns) {
    JobPlan plan = make_plan(member.workers, 1, {member.chunks * member.chunk_bytes / 4});
    plan.chunk_bytes = member.chunk_bytes;
    plan.session.restart_timeout_ns = restart_timeout_ns;
    plan.session.has_policy = member.late.has_value();
    if (member.late)
      plan.session.policy = {.kind = PolicyKind::kFixed, .late = *member.late, .k = 2};
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = kSecond;
    const std::uint64_t before = bytes_in_use();
    World own(options);
    const RunIndex run = own.add_run(plan);
    const auto all_started = [&] {
      for (std::uint16_t rank = 0; rank < member.workers; ++rank)
        if (!own.worker(run, rank).started()) return false;
      return true;
    };
    EXPECT_TRUE(own.run_until(all_started, 5 * kSecond));
    return bytes_in_use() - before;
  }
  // Of each member, within a hundredth: there are some bytes more than those of chunks.
  void expect_kept(const Member& member, std::uint64_t of_chunk_bytes) {
    const std::uint64_t with = taken_bytes(member, 20 * kSecond);
    const std::uint64_t without = taken_bytes(member, 0);
    ASSERT_GT(with, without);
    const auto expected = static_cast<double>(member.chunks * of_chunk_bytes);
    EXPECT_NEAR(static_cast<double>(with - without) / member.workers, expected, 0.01 * expected)
        << member.workers << " workers";
  }
};

TEST_F(Kept, by_a_member_of_a_synchronous_job_is_the_newest_result_of_each_chunk) {
  expect_kept({.workers = 3, .chunks = 5'000, .chunk_bytes = 1'024}, 1'024 + kEntryBytes);
}

TEST_F(Kept, with_k_below_n_are_its_mask_and_that_of_a_result_that_came_early) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
    expect_kept({.workers = 3, .chunks = 2'000, .chunk_bytes = 256, .late = late},
                256 + kEntryBytes + 2 * kWordBytes);
    expect_kept({.workers = 65, .chunks = 2'000, .chunk_bytes = 256, .late = late},
                256 + kEntryBytes + 4 * kWordBytes);
  }
}

}  // namespace
}  // namespace sluice::sim

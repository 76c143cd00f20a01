// The bookkeeping of blocks, where a session's packets cannot show it directly.
#include "client/core/recovery.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

TEST(Recovery, KeepsProbingOneBlockWhenAResultReachesAnotherThatWasClosed) {
  constexpr ChunkIndex kOtherBlock = kChunksPerBlock;
  Recovery recovery(2 * kChunksPerBlock, 1);
  Flow flow(64);
  TimeNs now = kSecond;
  const auto send = [&](ChunkIndex chunk) {
    recovery.expect(chunk);
    ASSERT_TRUE(recovery.take(chunk));
    recovery.sent(chunk, flow.next_header(now).number, now, flow);
  };
  send(0);
  // The answer says that it was lost: the block has nothing on the wire and is closed.
  const wire::Answer answer{.step = 1, .block = 0, .probe_number = 1};
  EXPECT_EQ(recovery.answer(answer, now, flow), 1u);
  send(kOtherBlock);
  // A copy of the contribution had arrived after all.
  EXPECT_TRUE(recovery.result(0, now, flow));

  now += kSecond;
  recovery.work(0, now, flow);
  Recovery::ProbePlan plan;
  ASSERT_TRUE(recovery.plan_probe(0, flow, plan));
  EXPECT_EQ(plan.block, 1u);
}

}  // namespace
}  // namespace sluice::client

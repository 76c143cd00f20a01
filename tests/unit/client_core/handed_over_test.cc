// The step that an appliance was lost in: what a worker gives, takes or has.
#include "client/core/sums/handed_over.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

TEST(HandedOver, HoldsNothingBeforeAnApplianceIsLost) {
  const HandedOver none;
  EXPECT_FALSE(none.any());
  EXPECT_FALSE(none.holds(70) || none.is_here(70) || none.gives(70));
  EXPECT_TRUE(none.is_over());
}

TEST(HandedOver, IsOverWhenEveryChunkThatWasHereIsClosed) {
  HandedOver handed(7, 130);
  handed.add(0, true, true);
  handed.add(64, true, false);
  handed.add(129, false, false);  // this worker takes it, as its own step's
  EXPECT_EQ(handed.step(), 7u);
  EXPECT_TRUE(handed.gives(0) && handed.is_here(0));
  EXPECT_TRUE(handed.is_here(64) && !handed.gives(64));
  EXPECT_TRUE(handed.holds(129) && !handed.is_here(129));
  EXPECT_FALSE(handed.holds(1));
  handed.close_one();
  EXPECT_FALSE(handed.is_over());
  handed.close_one();
  EXPECT_TRUE(handed.is_over());
}

}  // namespace
}  // namespace sluice::client

// A worker's view of a store's clocks, from values that come in any order.
#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

SessionOptions store_options() {
  SessionOptions options = Scripted::default_options();
  options.store = StoreOptions{.bound = 3};
  return options;
}

// A layer of two blocks, 64 chunks and one, in a job that runs.
class StoreClocks : public testing::Test {
 protected:
  StoreClocks()
      : appliance(store_options(), {{.name = "w", .elem_count = 16 * 65, .begins_block = true}}) {
    appliance.start();
  }
  Verdict values(ChunkIndex chunk, Step clock, std::uint16_t at_clock, std::uint16_t waiting = 0) {
    const std::vector<float> elems(16);
    return appliance.answer(
        wire::Values{.feedback = appliance.feedback(),
                     .chunk = chunk,
                     .clock = clock,
                     .at_clock = at_clock,
                     .waiting = waiting,
                     .elem_count = 16},
        {}, {reinterpret_cast<const std::uint8_t*>(elems.data()), elems.size() * sizeof(float)});
  }
  LayerClocks clocks() { return appliance.session.store()->clocks(0); }

  Scripted appliance;
};

TEST_F(StoreClocks, ALayersClockIsTheLeastOfItsBlocksAndSoIsHowManyHoldItBack) {
  values(0, 5, 2, 3);
  EXPECT_EQ(clocks().clock, 0u);
  values(64, 5, 1, 1);
  EXPECT_EQ(clocks().clock, 5u);
  EXPECT_EQ(clocks().at_clock, 1);
  EXPECT_EQ(clocks().parked, 3);
  values(64, 6, 2);
  EXPECT_EQ(clocks().clock, 5u);
  EXPECT_EQ(clocks().at_clock, 2);
}

TEST_F(StoreClocks, ValuesThatComeLateTakeNoClockBack) {
  values(64, 5, 2);
  values(0, 5, 2);
  values(1, 4, 1, 7);
  EXPECT_EQ(clocks().clock, 5u);
  EXPECT_EQ(clocks().at_clock, 2);
  EXPECT_EQ(clocks().parked, 0);
}

TEST_F(StoreClocks, AStoreHasNoStreamsOfSums) {
  for (const StreamId stream : {StreamId::kGradients, StreamId::kState})
    EXPECT_EQ(appliance.answer(wire::Answer{.feedback = appliance.feedback(), .stream = stream}),
              Verdict::kBadStream);
  const std::vector<std::uint8_t> elems(64);
  const std::uint64_t mask = 1;
  EXPECT_EQ(appliance.answer(wire::ResultHeader{.feedback = appliance.feedback(),
                                                .k = 1,
                                                .step = 1,
                                                .weight = 1,
                                                .may_count = 1,
                                                .elem_count = 16,
                                                .mask_words = 1},
                             {&mask, 1}, elems),
            Verdict::kBadType);
  EXPECT_EQ(appliance.session.behind(), 0u);
  EXPECT_TRUE(appliance.session.behind_status().ok());
  EXPECT_EQ(appliance.session.resync(appliance.now).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::client

// How many chunks of each thread of a BCube are under way at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

class BcubePipeline : public testing::TestWithParam<BcubeShape> {};
INSTANTIATE_TEST_SUITE_P(All, BcubePipeline, testing::ValuesIn(bcube_shapes()), name_of);

struct UnderWay {
  TimeNs from = 0, until = 0;
};

// The fewest that were at one time, but for the first tenth of all of it and the last two.
std::size_t fewest(const std::vector<UnderWay>& chunks) {
  const TimeNs begin = std::ranges::min(chunks, {}, &UnderWay::from).from;
  const TimeNs end = std::ranges::max(chunks, {}, &UnderWay::until).until;
  std::size_t least = chunks.size();
  for (int percent = 10; percent <= 80; ++percent) {
    const TimeNs at = begin + (end - begin) * percent / 100;
    least = std::min(
        least, static_cast<std::size_t>(std::ranges::count_if(chunks, [at](const UnderWay& chunk) {
          return chunk.from <= at && at < chunk.until;
        })));
  }
  return least;
}

// A thread has 2k hops, half of them on the way down. From the first packet that a server sends of
// a chunk until it has the average, at least so many are: sums of later chunks go up while averages
// of earlier ones come down.
TEST_P(BcubePipeline, EachThreadHasAChunkForEachHop) {
  BcubeOptions options = options_of(GetParam());
  const std::uint32_t threads = options.levels;
  const auto bcube = client::Bcube::create(options.switch_ports, options.levels).value();
  options.elem_counts.assign(std::size_t{8} * threads * bcube.servers(), 336);  // a chunk each
  options.steps = 2;
  options.trace = true;
  options.check_values = false;
  options.link.bytes_per_second = 12'500'000;
  options.link.queue_frames = 8192;
  BcubeWorld world(options);
  expect_clean(world);
  for (std::uint32_t server = 0; server < bcube.servers(); ++server) {
    const std::span<const client::TracePart> parts = world.relay(server).trace_parts();
    std::map<std::pair<std::uint32_t, std::uint32_t>, UnderWay> chunks;  // by thread, tensor
    for (const client::TensorTimes& times : world.traces(server)) {
      if (times.part == 0 || times.step != options.steps) continue;
      const client::TracePart& part = parts[times.part - 1];
      UnderWay& chunk = chunks[{part.thread, part.tensor}];
      if (part.stage == 0 && times.first_sent_ns != 0)
        chunk.from =
            chunk.from == 0 ? times.first_sent_ns : std::min(chunk.from, times.first_sent_ns);
      chunk.until = std::max(chunk.until, times.result_ns);
    }
    for (std::uint32_t thread = 0; thread < threads; ++thread) {
      std::vector<UnderWay> sent;
      for (const auto& [place, chunk] : chunks)
        if (place.first == thread && chunk.from != 0) sent.push_back(chunk);
      ASSERT_FALSE(sent.empty());
      EXPECT_GE(fewest(sent), 2 * options.levels) << "server " << server << " thread " << thread;
    }
  }
}

}  // namespace
}  // namespace sluice::sim

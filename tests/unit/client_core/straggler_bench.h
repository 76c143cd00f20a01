// A session of a job of two ranks that does not wait for both, with one tensor of three chunks. The
// session is rank 1.
#pragma once

#include <bit>

#include "tests/unit/client_core/scripted.h"

namespace sluice::client {

inline constexpr std::uint64_t kWithoutMe = 1;  // without this rank
inline constexpr std::uint64_t kBoth = 3;

inline PolicyOptions fixed(LateMode late, std::uint32_t max_staleness = 0) {
  return {.kind = PolicyKind::kFixed, .late = late, .k = 1, .max_staleness = max_staleness};
}

struct Bench : Scripted {
  explicit Bench(LateMode late = LateMode::kRequeue, std::uint32_t max_staleness = 0,
                 const PruneOptions& prune = {})
      : Scripted(pruned(prune)) {
    policy = fixed(late, max_staleness);
    start();
    open_step = 1;
  }
  static SessionOptions pruned(const PruneOptions& prune) {
    SessionOptions options = default_options();
    options.prune = prune;
    return options;
  }
  // The results of a step, by chunk: the mask, with a k that is the number of ranks in it.
  void results(Step step, std::vector<std::uint64_t> masks, float value = 100) {
    const std::size_t sizes[] = {16, 16, 8};
    for (ChunkIndex chunk = 0; chunk < masks.size(); ++chunk) {
      const int members = std::popcount(masks[chunk]);
      result(step, chunk, std::vector<float>(sizes[chunk], value),
             static_cast<std::uint64_t>(members), 0, masks[chunk],
             static_cast<std::uint16_t>(members));
    }
  }
  Status catch_up(Tensor& tensor) {
    return session.submit({.output = tensor.values.data(), .contribute = false}, now);
  }
  Verdict gone(Step step, Step open) {
    open_step = open;
    return answer(wire::Answer{.feedback = feedback(),
                               .step = step,
                               .open_step = open,
                               .first_incomplete = wire::kNoChunk,
                               .status = wire::AnswerStatus::kGone});
  }
  // Makes the session late with all of step 1: the results are in, and nothing was sent.
  void miss_step_1(Tensor& tensor) {
    open_step = 2;
    results(1, {kWithoutMe, kWithoutMe, kWithoutMe});
    ASSERT_TRUE(session.submit(of(tensor), now).ok());
    ASSERT_TRUE(saw(Event::Kind::kStepDone));
  }
  Counters counters() { return session.counters(); }
};

}  // namespace sluice::client

// The base of the named schedules: a world without faults, and words for scripting its network.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/sim/world.h"

namespace sluice::sim {

using wire::PacketType;
using Kind = client::Event::Kind;

class Schedule : public testing::Test {
 protected:
  Schedule() {
    options.appliance.jobs.member_timeout_ns = 3 * kSecond;
    options.appliance.jobs.max_total_memory_bytes = std::size_t{64} << 20;
    options.appliance.jobs.max_job_memory_bytes = std::size_t{32} << 20;
  }
  ~Schedule() override { end_world(); }

  // Made on first use, so that a test can change the options before.
  World& world() {
    if (!world_) world_ = std::make_unique<World>(options);
    return *world_;
  }
  // The next use makes another one.
  void end_world() {
    if (!world_) return;
    world_->check_at_end();
    EXPECT_TRUE(world_->healthy()) << world_->report();
    world_.reset();
  }

  // Every rank has taken all its steps with the right sums and has left.
  void expect_completed(RunIndex run, TimeNs deadline) {
    const bool done = world().run_until_done(run, deadline);
    for (std::uint16_t rank = 0; rank < world().plan(run).world_size(); ++rank) {
      Worker& worker = world().worker(run, rank);
      EXPECT_FALSE(worker.failed()) << worker.failure().message();
      EXPECT_EQ(worker.steps_done(), world().plan(run).ranks[rank].last_step)
          << "rank " << rank << ": " << worker.session().describe_stall(world().now());
    }
    EXPECT_TRUE(done) << world().report();
  }
  // Every rank but `dead` has failed with a message that holds all of `words`.
  void expect_failed(RunIndex run, Rank dead, TimeNs deadline,
                     const std::vector<std::string>& words) {
    const auto all_failed = [&] {
      for (std::uint16_t rank = 0; rank < world().plan(run).world_size(); ++rank)
        if (Rank{rank} != dead && !world().worker(run, rank).failed()) return false;
      return true;
    };
    EXPECT_TRUE(world().run_until(all_failed, deadline)) << "survivors are not told in time";
    for (std::uint16_t rank = 0; rank < world().plan(run).world_size(); ++rank) {
      const Worker& worker = world().worker(run, rank);
      if (Rank{rank} == dead || !worker.failed()) continue;
      expect_words(worker.failure().message(), words);
    }
  }
  static void expect_words(const std::string& message, const std::vector<std::string>& words) {
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
  }

  bool all_started(RunIndex run) {
    for (std::uint16_t rank = 0; rank < world().plan(run).world_size(); ++rank)
      if (!world().worker(run, rank).started()) return false;
    return true;
  }
  void start_all(RunIndex run) {
    ASSERT_TRUE(world().run_until([&] { return all_started(run); }, world().now() + 5 * kSecond));
  }

  WorldOptions options;

 private:
  std::unique_ptr<World> world_;
};

inline bool is_contribution(const Passing& passing) {
  return passing.direction == Direction::kToAppliance &&
         passing.packet.type() == PacketType::kContribution;
}
inline bool is_result(const Passing& passing) {
  return passing.direction == Direction::kToWorker && passing.packet.type() == PacketType::kResult;
}
inline bool is_piece(const Passing& passing, StreamId stream) {
  return passing.direction == Direction::kToAppliance &&
         passing.packet.type() == PacketType::kPiece &&
         wire::stream_of(passing.packet.body<wire::Piece>().operation.kind) == stream;
}
inline bool is_piece_result(const Passing& passing, StreamId stream) {
  return passing.direction == Direction::kToWorker &&
         passing.packet.type() == PacketType::kPieceResult &&
         wire::stream_of(passing.packet.body<wire::PieceResult>().operation.kind) == stream;
}
inline bool is_probe(const Passing& passing) {
  return passing.direction == Direction::kToAppliance &&
         passing.packet.type() == PacketType::kProbe;
}
inline std::uint16_t rank_of(const Passing& passing) { return passing.worker->identity.rank.value; }

}  // namespace sluice::sim

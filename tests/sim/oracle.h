// The invariants, checked on every packet as it leaves a session or a shard, against the plan.
//
// I1: a result is the sum of exactly the workers in its mask, all who must be in are in. I2: the
// same bytes, weight and mask for everybody. I3: nothing of another step (gradients depend on the
// step, so the sum would show it). I5: results keep to the credit, numbers do not jump. It knows
// the plan and the packets, never the inside of either end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "aggregator/wire/packet.h"
#include "client/core/layout.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

using RunIndex = std::uint32_t;  // of a job's run: a plan and the workers that carry it out

class Oracle {
 public:
  RunIndex add_run(const JobPlan& plan, const client::Layout& layout);

  // A session sent `packet` to data port `shard`. `pump`: which wake-up of the session it was.
  void on_worker_packet(RunIndex run, Rank rank, std::uint16_t shard, std::uint64_t pump,
                        const wire::Packet& packet);
  // A shard sent `packet` to a member.
  void on_appliance_packet(RunIndex run, Rank rank, std::uint16_t shard,
                           const wire::Packet& packet);

  // Of the result that everybody got; nothing while there is none.
  std::optional<std::uint64_t> result_weight(RunIndex run, StreamId stream, Step step,
                                             ChunkIndex chunk) const;

  void violation(std::string text);
  const std::vector<std::string>& violations() const { return violations_; }
  std::uint64_t results_checked() const { return results_checked_; }
  std::uint64_t results_sent() const { return results_sent_; }  // copies for members
  std::uint64_t results_due() const { return results_due_; }    // one a result and member
  std::uint64_t contributions_seen() const { return contributions_seen_; }
  std::uint64_t first_contributions() const { return first_contributions_; }

 private:
  struct Sent {  // a worker's contribution, as first sent
    std::uint64_t content_hash = 0;
    std::uint64_t payload_hash = 0;
    std::uint32_t weight = 0;
    bool nil = false;
  };
  struct Summed {
    std::uint64_t content_hash = 0;
    std::uint64_t weight = 0;
  };
  struct Flow {
    std::uint32_t credit = 0;
    std::uint32_t worker_number = 0;
    std::uint32_t appliance_number = 0;
    std::uint64_t pump = 0;
    Priority last_fresh_priority = 0;
  };
  struct Run {
    const JobPlan* plan = nullptr;
    const client::Layout* layout = nullptr;
    std::unordered_map<std::uint64_t, Sent> sent;
    std::unordered_map<std::uint64_t, Summed> summed;
    std::map<std::tuple<std::uint16_t, Cookie, std::uint16_t>, Flow> flows;  // rank, cookie, shard
  };

  void on_contribution(Run& run, Rank rank, Flow& flow, std::uint64_t pump,
                       const wire::Packet& packet);
  void on_result(Run& run, Rank rank, const wire::Packet& packet);
  void check_members(const Run& run, std::uint64_t mask, const wire::ResultHeader& body);
  void check_gradient(const Run& run, std::uint64_t mask, const wire::Packet& packet);
  void check_collective(const Run& run, std::uint64_t mask, const wire::Packet& packet);
  void check_weight(const Run& run, std::uint64_t mask, const wire::ResultHeader& body);
  std::string name(const Run& run, StreamId stream, Step step, ChunkIndex chunk) const;

  std::vector<std::unique_ptr<Run>> runs_;
  std::vector<std::string> violations_;
  std::uint64_t results_checked_ = 0;
  std::uint64_t results_sent_ = 0;
  std::uint64_t results_due_ = 0;
  std::uint64_t contributions_seen_ = 0;
  std::uint64_t first_contributions_ = 0;
};

// A fast hash of bytes for comparisons and for the trace; not for anything hostile.
std::uint64_t hash_bytes(std::span<const std::uint8_t> bytes, std::uint64_t seed = 0);

}  // namespace sluice::sim

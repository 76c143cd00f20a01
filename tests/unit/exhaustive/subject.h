// A production job of two chunks and its shards, put into any state, for one event.
//
// The state is written into agg::Job, whose slots, records and windows are public. A shard's own
// queues are empty between events because every event ends by draining them. So an event needs no
// replay. Mutations are wrong rules laid over the real ones: they show that the checks can fail.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "tests/unit/exhaustive/state.h"

namespace sluice::exhaustive {

enum class Mutation : std::uint8_t {
  kNone,
  kFoldLate,     // a late packet is added to a result that has left
  kFoldTwice,    // a duplicate is added to the sum
  kMixSteps,     // a packet of the step before is added to the open one
  kOpenEarly,    // the first chunk to complete opens the next step
  kShortOfK,     // the open step's k is one too small
  kForgetSweep,  // slots that waited for a dead member are not looked at again
};

struct Config {
  std::uint16_t worker_count = 2;
  std::uint16_t k = 1;       // of step 3; worker_count + 1: policy sync
  std::uint16_t next_k = 1;  // of step 4, as if a policy had chosen it
  LateMode late = LateMode::kDrop;
  std::uint16_t shard_count = 1;
  bool death = false;  // of one worker at any moment; another one lives
  Mutation mutation = Mutation::kNone;

  bool sync() const noexcept { return k > worker_count; }
  std::uint16_t least(Step step) const noexcept {
    return sync() ? worker_count : step == kFirstStep ? k : next_k;
  }
};

// The content of a contribution. Values and weights are distinct bits, so a sum names its parts.
struct Part {
  std::uint16_t rank = 0;
  Step step = kFirstStep;  // that it is for
  std::size_t chunk = 0;   // 0 or 1
  Step base = kFirstStep;  // that it was computed on
  bool nil = false;        // a pass: the worker waits for the step with other chunks

  std::uint32_t value() const noexcept {
    return nil ? 0 : 1u << (4 * rank + 2 * (base - kFirstStep) + chunk);
  }
  std::uint32_t weight() const noexcept { return nil ? 0 : 1u << (2 * rank + (base - kFirstStep)); }
};

// The content of a slot or of a result.
struct Content {
  std::uint64_t mask = 0;
  std::uint64_t abstained = 0;  // ranks that passed; no result shows them
  std::uint64_t sum = 0;        // undefined without data
  std::uint64_t weight = 0;
  std::uint16_t k = 0;  // of a complete one
  bool complete = false;
  bool has_data = false;

  friend bool operator==(const Content&, const Content&) = default;
};

struct Emitted {  // a result that has left
  std::uint16_t rank = 0;
  Step step = 0;
  std::size_t chunk = 0;
  Step open_step = 0;  // the open step in its header
  Content content;
};

struct ProbeAnswer {
  wire::AnswerStatus status{};
  std::uint8_t counted = 0;   // bits of chunks, as in State
  std::uint8_t complete = 0;  // bits of chunks, as in State
};

class Subject {
 public:
  explicit Subject(const Config& config);

  void load(const State& state);
  // Reads the part of the state that only the shards know.
  void read_back(State& state) const;
  // The content of the slot of (step, chunk); mask 0 when it holds nothing of that step.
  Content content(Step step, std::size_t chunk) const;
  Step open_step() const;

  Verdict arrive(const Part& part);
  void tell(std::size_t shard);   // the command that the dead member is gone
  void sweep(std::size_t shard);  // poll_work()
  void kill(std::uint16_t rank);  // acts as the control side before tell()
  // All results that the last event made, in the order in which they left.
  const std::vector<Emitted>& emitted() const { return emitted_; }
  // A probe for all chunks of a step that a shard has. The results come by emitted().
  ProbeAnswer probe(std::uint16_t rank, Step step, std::size_t shard);

 private:
  struct Encoded {
    std::array<std::uint8_t, 128> bytes{};
    wire::Packet packet;
  };

  // Every event is a single step of a shard, never a whole round.
  agg::Shard& shard_at(std::size_t index) {
    return shards_.shard(static_cast<std::uint16_t>(index));
  }
  std::size_t shard_of_chunk(std::size_t chunk) const {
    return config_.shard_count == 1 ? 0 : chunk;
  }
  ChunkIndex chunk_index(std::size_t chunk) const {
    return static_cast<ChunkIndex>(config_.shard_count == 1 ? chunk : chunk * kChunksPerBlock);
  }
  agg::GradientSlice& slice(std::size_t shard) const { return job_->slices[shard].gradients; }
  std::size_t slot_index(Step step, std::size_t chunk) const;
  // The record of a step near the open one, with all workers or without the dead one.
  const agg::StepRecord& record(Step step, bool without_dead) const {
    return records_[step - (kFirstStep - 1)][without_dead && dead_ ? *dead_ : kMostWorkers];
  }
  void make_records();
  void load_slot(const State& state, std::size_t step_index, std::size_t chunk);
  const wire::Packet& packet_of(const Part& part);
  void drain(std::size_t shard, ProbeAnswer* answer = nullptr);
  void mutate(const Part& part, Verdict verdict);

  const Config config_;
  std::unique_ptr<agg::Job> job_;
  agg::Shards shards_;
  TimeNs sending_at_ = kSecond;
  // Steps 2 to 5: the record without each worker and, last, the record with all.
  std::array<std::array<agg::StepRecord, kMostWorkers + 1>, kSteps + 2> records_;
  std::vector<std::unique_ptr<Encoded>> packets_;  // made at their first use
  std::vector<std::unique_ptr<Encoded>> probes_;
  std::vector<Emitted> emitted_;
  std::optional<std::uint16_t> dead_;
};

// The least number of contributions that a slot must have. A pass stands for one contribution,
// unless there is no other.
int least_k(const State& state, const Config& config, Step step, std::uint64_t abstained,
            bool without_dead) noexcept;

// The parts that are in a slot in this state, and the slot's content then.
Part part_of(const State& state, std::uint16_t rank, Step step, std::size_t chunk) noexcept;
Content expected_content(const State& state, const Config& config, Step step,
                         std::size_t chunk) noexcept;

}  // namespace sluice::exhaustive

// Replicas that train: one parameter vector for each rank, changed only by the averages of the
// steps, in the loop that sluice.h describes. Ranks that applied the same steps must have the same
// parameters.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/client_core/small_world.h"

namespace sluice::client {

class Replicas {
 public:
  Replicas(SmallWorld& world, const WorldOptions& options)
      : compute_ns(options.workers, kMillisecond),
        world_(world),
        options_(options),
        workers_(options.workers) {
    for (Worker& worker : workers_) reset(worker);
    world_.application = [this] { return run(); };
  }

  std::vector<DurationNs> compute_ns;  // of each rank, for one gradient
  Step last_step = 20;                 // no rank computes a gradient for a later one
  bool gives_state = true;

  Step step(std::size_t rank) const { return workers_[rank].step; }
  std::uint32_t caught_up(std::size_t rank) const { return workers_[rank].caught_up; }
  std::uint32_t resyncs(std::size_t rank) const { return workers_[rank].resyncs; }
  std::uint32_t most_behind(std::size_t rank) const { return workers_[rank].most_behind; }
  std::uint64_t submitted_chunks(std::size_t rank) const { return workers_[rank].chunks; }
  bool all_at(Step step) const {
    for (const Worker& worker : workers_)
      if (worker.step < step) return false;
    return true;
  }
  // Another process takes the rank.
  void forget(std::size_t rank) { reset(workers_[rank]); }
  // Empty if all ranks that applied a step had the same parameters after it.
  const std::string& difference() const { return difference_; }
  const std::map<Step, std::vector<float>>& history() const { return history_; }

 private:
  struct Worker {
    std::vector<std::vector<float>> buffers;  // one a tensor
    std::vector<float> parameters;
    std::vector<std::uint8_t> given;
    Step step = 0;  // last one applied
    bool in_flight = false;
    bool resyncing = false;
    bool wanted = false;
    TimeNs computed_ns = -1;
    std::size_t seen = 0;  // events
    std::uint32_t caught_up = 0, resyncs = 0, most_behind = 0;
    std::uint64_t chunks = 0;
  };

  void reset(Worker& worker) {
    worker = {};
    for (const TensorSpec& tensor : options_.tensors) {
      worker.buffers.emplace_back(tensor.elem_count);
      worker.parameters.resize(worker.parameters.size() + tensor.elem_count);
    }
  }

  TimeNs run() {
    TimeNs next_ns = kNever;
    for (std::uint16_t rank = 0; rank < workers_.size(); ++rank)
      next_ns = std::min(next_ns, run(rank));
    return next_ns;
  }

  TimeNs run(std::uint16_t rank) {
    Worker& worker = workers_[rank];
    Session& session = world_.session(rank);
    if (world_.stopped(rank)) return kNever;
    take_events(rank);
    if (session.state() != SessionState::kRunning) return kNever;
    give_state(rank);
    if (worker.in_flight) return kNever;
    if (!session.behind_status().ok()) {
      EXPECT_TRUE(worker.resyncing || session.resync(world_.now()).ok());
      worker.resyncing = true;
      return kNever;
    }
    if (const std::uint32_t behind = session.behind(); behind != 0 && worker.computed_ns < 0) {
      worker.most_behind = std::max(worker.most_behind, behind);
      ++worker.caught_up;
      submit(rank, false);
      return kNever;
    }
    if (worker.step >= last_step) return kNever;
    if (worker.computed_ns < 0) worker.computed_ns = world_.now() + compute_ns[rank];
    if (world_.now() < worker.computed_ns) return worker.computed_ns;
    worker.computed_ns = -1;
    submit(rank, true);
    return kNever;
  }

  // Gives the state even while the rank waits for results. They change nothing before the step is
  // done, and the step may need the state to be done.
  void give_state(std::uint16_t rank) {
    Worker& worker = workers_[rank];
    if (!worker.wanted || !gives_state || worker.resyncing) return;
    worker.wanted = false;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(worker.parameters.data());
    std::vector<std::uint8_t> state(bytes, bytes + 4 * worker.parameters.size());
    if (world_.session(rank).send_state(state, worker.step, world_.now()))
      worker.given = std::move(state);
  }

  void submit(std::uint16_t rank, bool contribute) {
    Worker& worker = workers_[rank];
    worker.in_flight = true;
    for (std::uint32_t tensor = 0; tensor < worker.buffers.size(); ++tensor) {
      std::vector<float>& values = worker.buffers[tensor];
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((rank + 1) * 16 + (worker.step + i) % 7);
      const Status status =
          world_.session(rank).submit({.tensor = tensor,
                                       .input = contribute ? values.data() : nullptr,
                                       .output = values.data(),
                                       .priority = static_cast<Priority>(tensor),
                                       .contribute = contribute},
                                      world_.now());
      EXPECT_TRUE(status.ok()) << status.message();
      const std::size_t per_chunk = options_.chunk_bytes / 4;
      if (contribute) worker.chunks += (values.size() + per_chunk - 1) / per_chunk;
    }
  }

  void take_events(std::uint16_t rank) {
    Worker& worker = workers_[rank];
    const std::vector<Event>& events = world_.events(rank);
    for (; worker.seen < events.size(); ++worker.seen) {
      const Event& event = events[worker.seen];
      switch (event.kind) {
        case Event::Kind::kStepDone: apply(rank, event.step); break;
        case Event::Kind::kFellBehind: worker.in_flight = false; break;
        case Event::Kind::kStateWanted: worker.wanted = true; break;
        case Event::Kind::kStateUnwanted: worker.wanted = false; break;
        case Event::Kind::kStateReceived: load(rank, event); break;
        default: break;
      }
    }
  }

  void apply(std::uint16_t rank, Step step) {
    Worker& worker = workers_[rank];
    worker.in_flight = false;
    if (step != worker.step + 1)
      difference_ += "rank " + std::to_string(rank) + " applied " + std::to_string(step) +
                     " after " + std::to_string(worker.step) + "\n";
    worker.step = step;
    std::size_t at = 0;
    for (const auto& values : worker.buffers)
      for (const float value : values) worker.parameters[at++] += value;
    const auto [known, fresh] = history_.try_emplace(step, worker.parameters);
    if (!fresh && known->second != worker.parameters)
      difference_ +=
          "rank " + std::to_string(rank) + " differs after " + std::to_string(step) + "\n";
  }

  void load(std::uint16_t rank, const Event& event) {
    Worker& worker = workers_[rank];
    const ReceivedState state = world_.session(rank).take_state(world_.now());
    ASSERT_EQ(state.bytes, 4 * worker.parameters.size());
    std::memcpy(worker.parameters.data(), state.data.get(), state.bytes);
    worker.step = event.step;
    worker.resyncing = false;
    worker.computed_ns = -1;
    ++worker.resyncs;
  }

  SmallWorld& world_;
  const WorldOptions& options_;
  std::vector<Worker> workers_;
  std::map<Step, std::vector<float>> history_;
  std::string difference_;
};

}  // namespace sluice::client

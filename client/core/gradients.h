// Stream 0: the tensors of the step under way, their chunks on the way out and their averages on
// the way back.
//
// A tensor's n-th submission belongs to step n. Step s + 1 begins here when every result of s is
// in; what was submitted for it before waits. A worker thus has at most one step on the wire, and a
// tensor at most one submission under way and (when nobody submitted it before) one that waits.
// Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/average.h"
#include "client/core/layout.h"
#include "client/core/link.h"
#include "client/core/recovery.h"
#include "client/core/session.h"
#include "client/sched/scheduler.h"

namespace sluice::client {

class GradientStream {
 public:
  // `first_step`: 1, but in tests of the last steps.
  GradientStream(const SessionOptions& options, Layout layout, Averaging averaging,
                 Step first_step = 1);

  // The shards are known: schedulers and recovery are built.
  void join(std::uint16_t shard_count);
  // All ranks have joined: what was submitted so far is handed to the schedulers.
  void start(TimeNs now) noexcept;

  Status submit(const Submission& submission, TimeNs now) noexcept;
  Status end_step(TimeNs now) noexcept;

  // ---- sending ----
  bool waiting(std::uint16_t shard) const noexcept { return !schedulers_[shard].empty(); }
  Priority top(std::uint16_t shard) const noexcept { return schedulers_[shard].top(); }
  // Writes the most urgent contribution of the shard, 0 bytes when none needs to be sent after all.
  std::size_t write_next(std::uint16_t shard, Link& link, std::span<std::uint8_t> out, TimeNs now,
                         Priority& priority) noexcept;

  // The least urgent priority among the block's chunks: a probe that overtook them would find them
  // missing.
  Priority block_priority(std::uint32_t block) const noexcept;

  // ---- receiving ----
  Outcome handle_result(const wire::Packet& packet, Link& link, TimeNs now) noexcept;
  Outcome handle_answer(const wire::Packet& packet, Link& link, TimeNs now) noexcept;

  Recovery& recovery() noexcept { return *recovery_; }
  const Recovery& recovery() const noexcept { return *recovery_; }
  const Layout& layout() const noexcept { return layout_; }
  Step current_step() const noexcept { return current_; }
  // Something was submitted in the step under way and is not done.
  bool in_progress() const noexcept { return started_ && submitted_count_ != 0; }
  TimeNs last_progress_ns() const noexcept { return last_progress_ns_; }
  // The tensors that the step waits for: "'fc1.weight', 'fc1.bias' and 3 more", and which of them
  // this rank has not submitted.
  std::string describe_open_tensors() const;

 private:
  struct Tensor {
    Submission submission;   // of the step under way, when submitted
    Submission held;         // of the next one
    Step asked = 0;          // last step submitted, or declared to be without data
    bool submitted = false;  // the submission is under way
    bool nil = false;        // the step under way gets no data from this worker
    bool held_nil = false;
    bool held_valid = false;
    bool any_data = false;  // some result carried data
    bool non_finite = false;
    std::uint64_t weight = 0;
    std::uint32_t chunks_left = 0;
  };

  void activate(std::uint32_t index, TimeNs now) noexcept;
  void advance_asked() noexcept;
  void schedule(std::uint32_t index) noexcept;
  static Priority priority_of(const Tensor& tensor) noexcept;
  std::uint16_t shard_count() const noexcept {
    return static_cast<std::uint16_t>(schedulers_.size());
  }
  Status fail_submit(std::uint32_t tensor, std::string why) const;
  void finish_tensor(std::uint32_t index, Link& link) noexcept;
  Status finish_step(Link& link, TimeNs now) noexcept;
  // Counts this rank among those that sent what is not finite, if it did.
  void blame(const Tensor& tensor, const ChunkSpan& span, Link& link) noexcept;
  void apply(const wire::Packet& packet, const ChunkSpan& span, Link& link) noexcept;

  const SessionOptions& options_;
  const Layout layout_;
  const AveragePlan plan_;
  std::vector<Tensor> tensors_;
  std::vector<ChunkIndex> links_;  // of the schedulers' queues
  std::vector<Scheduler> schedulers_;
  std::optional<Recovery> recovery_;
  bool started_ = false;
  Step current_;                       // under way
  Step asked_step_;                    // that the application is submitting
  std::uint32_t asked_count_ = 0;      // tensors already submitted or declared in asked_step_
  bool ended_by_itself_ = false;       // the last asked step ended with its last tensor
  std::uint32_t done_count_ = 0;       // tensors done in the step under way
  std::uint32_t submitted_count_ = 0;  // tensors submitted or declared in it
  std::uint32_t nil_weight_ = 1;       // of contributions without data: as the last submission's
  TimeNs last_progress_ns_ = 0;
  alignas(64) float scratch_[kMaxChunkBytes / 2];
};

}  // namespace sluice::client

// Stream 0: the tensors of the step under way, their chunks on the way out and their averages on
// the way back.
//
// A tensor's n-th submission belongs to step n. Step s + 1 begins here when every result of s is
// in; what was submitted for it before waits. A worker thus has at most one step on the wire, and a
// tensor at most one submission under way and (when nobody submitted it before) one that waits.
// In a job that tolerates stragglers, results may come before the tensor is submitted (they wait in
// the arena and cancel the sending), the appliance may be further than this worker (results are
// pulled), a tensor may take part without a gradient (catching up), and chunks that missed their
// step may go into the open one (late.h). Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/arena.h"
#include "client/core/average.h"
#include "client/core/late.h"
#include "client/core/layout.h"
#include "client/core/link.h"
#include "client/core/recovery.h"
#include "client/core/session.h"
#include "client/sched/scheduler.h"

namespace sluice::client {

class GradientStream {
 public:
  // `first_step`: 1, but in tests of the last steps.
  GradientStream(const SessionOptions& options, Layout layout, Link& link, Step first_step = 1);

  // The shards and the policy are known: schedulers, recovery, arena and late buffer are built.
  // `rejoined`: the job runs already, so another rank's state is needed first.
  void join(const wire::Accept& accept);
  // All ranks have joined: what was submitted so far is handed to the schedulers.
  void start(TimeNs now) noexcept;

  Status submit(const Submission& submission, TimeNs now) noexcept;
  Status end_step(TimeNs now) noexcept;

  // ---- stragglers ----
  bool tolerant() const noexcept { return arena_.has_value(); }
  // A packet said which step is open.
  void learn_open_step(Step open_step, TimeNs now) noexcept;
  // See Session. Never below what this worker may contribute to.
  Step open_step() const noexcept { return std::max(known_open_, first_step_); }
  // Everything that is finished is applied here, and nothing waits to be requeued.
  bool up_to_date() const noexcept { return current_ >= known_open_ && !late_.waiting(); }
  std::uint32_t waiting_late_chunks() const noexcept { return late_.waiting_count(); }
  // Nothing can be submitted before resume().
  bool stranded() const noexcept { return stranded_; }
  // Gives the step under way up, and all that waits.
  void strand() noexcept;
  // Nothing is contributed any more: what waits to be requeued is given up.
  void leave() noexcept { late_.discard_all(); }
  // Another rank's state after step - 1 is here.
  void resume(Step step, TimeNs now) noexcept;
  // Step whose gradient is finished and has not been reported; 0: none.
  Step finished_step() const noexcept { return finished_; }
  std::size_t write_finished(std::span<std::uint8_t> out, TimeNs now) noexcept;
  // It has come to a step, and the appliance, which counts on two ranks inside the window, would
  // hear of that only when the next gradient is finished.
  bool tells_reached() const noexcept { return tell_reached_; }
  std::size_t write_reached(std::span<std::uint8_t> out, TimeNs now) noexcept;
  const StepReport* report(Step step) const noexcept;

  // ---- sending ----
  // The chunk that leaves next. False: nothing may be sent now.
  bool choose(const Opportunity& opportunity, Choice& choice) noexcept {
    return scheduler_.has_value() && scheduler_->next(opportunity, choice);
  }
  // Something waits for packets in flight to arrive, and feedback on the shard's was not asked for.
  bool wants_feedback(std::uint16_t shard) const noexcept {
    return scheduler_.has_value() && scheduler_->waits_for_arrival() && in_flight(shard) != 0 &&
           link_.flows[shard].unreported() != 0;
  }
  // A request for feedback that overtook what it asks about would report it as arrived.
  Priority feedback_priority(std::uint16_t shard) const noexcept {
    return last_sent_[shard].unreported_priority;
  }
  // Contributions sent and not known to have arrived. Other packets do not count: nothing tells of
  // them while nothing else is sent, and a chunk that is settled has nothing to wait for.
  std::uint32_t in_flight(std::uint16_t shard) const noexcept {
    if (recovery_->nothing_unsettled(shard)) return 0;
    return static_cast<std::uint32_t>(
        std::max(0, ahead(last_sent_[shard].number, link_.flows[shard].highest_arrived())));
  }
  // Members changed, or this worker was away.
  void relearn() noexcept {
    if (scheduler_) scheduler_->relearn();
  }
  std::string describe_plan() const {
    return scheduler_ ? scheduler_->describe_plan() : std::string();
  }
  // Writes the contribution of the chosen chunk; 0 bytes when it need not be sent after all.
  std::size_t write(const Choice& choice, std::span<std::uint8_t> out, TimeNs now,
                    Priority& priority) noexcept;

  // The least urgent priority among the block's chunks: a probe that overtook them would find them
  // missing.
  Priority block_priority(std::uint32_t block) const noexcept;

  // ---- receiving ----
  Outcome handle_result(const wire::Packet& packet, TimeNs now) noexcept;
  Outcome handle_answer(const wire::Packet& packet, TimeNs now) noexcept;

  TensorTrace& trace() noexcept { return trace_; }
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
  struct LastSent {
    std::uint32_t number = 0;          // of the last contribution
    Priority unreported_priority = 0;  // the least urgent one since feedback was asked for
  };
  struct Tensor {
    Submission submission;   // of the step under way, when submitted
    Submission held;         // of the next one
    Step asked = 0;          // last step submitted, or declared to be without data
    bool submitted = false;  // the submission is under way
    bool nil = false;        // the step under way gets no data from this worker
    bool held_nil = false;
    bool held_valid = false;
    bool any_data = false;     // some result carried data
    bool some_absent = false;  // some result carried none
    bool non_finite = false;
    std::uint64_t weight = 0;
    std::uint32_t chunks_left = 0;
    Priority priority = 0;  // of its last gradient
  };

  // gradients.cc
  Status activate(std::uint32_t index, TimeNs now) noexcept;
  void advance_asked() noexcept;
  Status schedule(std::uint32_t index, TimeNs now) noexcept;
  void schedule_chunk(ChunkIndex chunk, const Tensor& tensor, TimeNs now) noexcept;
  Status fail_submit(std::uint32_t tensor, std::string why) const;
  std::span<const std::uint8_t> fill_body(ChunkIndex chunk, wire::Contribution& body) noexcept;
  static Priority priority_of(const Tensor& tensor) noexcept;
  // This worker has a gradient for the step under way, with data or without.
  bool contributes(const Tensor& tensor) const noexcept {
    return tensor.nil ? !catching_up_ : tensor.submission.contribute;
  }
  bool has_data(const Tensor& tensor) const noexcept {
    return tensor.submitted && tensor.submission.contribute && tensor.submission.input != nullptr;
  }
  std::span<const std::uint8_t> input_of(const Tensor& tensor,
                                         const ChunkSpan& span) const noexcept;
  // What waits to be requeued, or at least this worker's presence, goes into the step under way.
  bool requeues_now() const noexcept {
    return late_.requeues() && !closed_ && current_ >= first_step_;
  }
  std::uint16_t shard_count() const noexcept {
    return static_cast<std::uint16_t>(link_.flows.size());
  }

  // gradients_receive.cc
  void finish_tensor(std::uint32_t index) noexcept;
  void clear_absent_parts(std::uint32_t index) noexcept;
  Status finish_step(TimeNs now) noexcept;
  // After a chunk of the tensor was applied.
  Status chunk_done(std::uint32_t index, TimeNs now, Verdict& verdict) noexcept;
  // Counts this rank among those that sent what is not finite, if it did.
  void blame(const Tensor& tensor, const ChunkSpan& span) noexcept;
  void account(ChunkIndex chunk, const Tensor& tensor, const ChunkSpan& span,
               bool counted) noexcept;
  void apply(ChunkIndex chunk, const ChunkSpan& span, const ChunkResult& result) noexcept;
  void add_to_report(const wire::Packet& packet) noexcept;

  const SessionOptions& options_;
  const Layout layout_;
  AveragePlan plan_;
  Link& link_;
  std::vector<Tensor> tensors_;
  std::optional<Scheduler> scheduler_;
  std::vector<LastSent> last_sent_;  // per shard
  std::optional<Recovery> recovery_;
  TensorTrace trace_;
  bool started_ = false;
  Step current_;                       // under way
  Step asked_step_;                    // that the application is submitting
  std::uint32_t asked_count_ = 0;      // tensors already submitted or declared in asked_step_
  bool ended_by_itself_ = false;       // the last asked step ended with its last tensor
  std::uint32_t done_count_ = 0;       // tensors done in the step under way
  std::uint32_t submitted_count_ = 0;  // tensors submitted or declared in it
  std::uint32_t nil_weight_ = 1;       // of contributions without data: as the last submission's
  TimeNs last_progress_ns_ = 0;
  // Jobs that tolerate stragglers.
  std::optional<ReceiveArena> arena_;
  LateChunks late_;
  Step known_open_ = 0;  // newest step that a packet said is open
  Step first_step_ = 1;  // that this worker may contribute to
  Step passed_ = 0;      // newest step of which a result came too early to be kept
  Step finished_ = 0;
  bool tell_reached_ = false;
  bool closed_ = false;       // the appliance has closed the step under way
  bool catching_up_ = false;  // this worker has no gradient for the step under way
  bool stranded_ = false;
  StepReport open_report_;  // of the step under way
  std::array<StepReport, kReportedSteps> reports_;
  alignas(64) float scratch_[kMaxChunkBytes / 2];
};

}  // namespace sluice::client

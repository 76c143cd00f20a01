// An application's calls on its membership of a job, checked and carried out in one place, whether
// a Session or a Relay over many (client/bcube) is the membership.
//
// Every refusal of a call is written here, in Tensors, or in whoever waits for the call (Job). A
// call notes what is wanted; the thread that drives the membership acts on it (driven.h). A few
// calls a tensor: packets never pass here. Under the owner's lock but for take_ended_step().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "aggregator/base/status.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/counters.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/residuals.h"
#include "client/core/calls/tensors.h"
#include "client/core/calls/types.h"

namespace sluice::client {

class Calls {
 public:
  virtual ~Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // ---- steps ----
  // Whether submit() may follow, as far as the tensor and the kind of the job tell.
  Status check_submission(const Submission& submission) const;
  // The tensor's next step, see tensors.h. kBusy while its last submission is in flight.
  Status submit(const Submission& submission, TimeNs now);
  // Declares the step that is being submitted complete: tensors left out are contributed as NIL
  // (refused when !allow_nil). Without it a step ends when all tensors have been submitted.
  Status end_step();
  // It would have nothing to do. Any thread, without the owner's lock: see Tensors::take_ended().
  bool take_ended_step() noexcept { return tensors_.take_ended(); }
  // What the outputs of `tensor`, which exists, hold from now on; kDefault: what the options say.
  // After kJoined. kBusy while it is in flight.
  Status set_averaging(std::uint32_t tensor, AveragingChoice choice);

  // ---- tensors that travel at a loss (Residuals::covers) ----
  // What of this worker's gradients is not delivered yet: to be read, saved and set between steps.
  // kBusy while the tensor, which exists, is in flight; kInvalidArgument for one that has none.
  Status residual(std::uint32_t tensor, Kept& kept);
  // Before the last step's submissions of a rank that will leave: all that was left behind goes
  // with them, nothing is pruned any more. (What rounding loses then stays.)
  Status flush_residuals();
  // Gradients will be larger by this factor: a changed scale of the loss. kBusy in mid-step.
  Status scale_residuals(float factor);
  // As Residuals has it.
  bool leaves_behind(std::uint32_t tensor) const noexcept {
    return residuals_.leaves_behind(tensor);
  }

  // ---- collectives ----
  // All ranks call the same collectives in the same order; one at a time (kBusy). `buffer` stays
  // the membership's until kCollectiveDone. Any size.
  Status broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now);
  Status barrier(TimeNs now);

  // In the middle of a step or of a collective it is kAbnormal, whatever the caller says but
  // kAborted.
  virtual void leave(wire::LeaveReason reason, TimeNs now) = 0;
  // Ends the job for all ranks, which are told why.
  void abort(std::string why, TimeNs now);

  // ---- what it is and does ----
  const Tensors& tensors() const noexcept { return tensors_; }
  const Layout& layout() const noexcept { return layout_; }
  SessionState state() const noexcept { return state_; }
  // Ok while the application may call; else the failure, or that this rank has left.
  Status status() const;
  // Why this rank needs another one's state before it can go on; ok while it does not.
  const Status& behind_status() const noexcept { return tensors_.behind_status(); }
  const JobFacts& facts() const noexcept { return facts_; }  // known once kJoined came
  virtual Counters counters() const = 0;
  // None beyond the last.
  virtual std::optional<PartCounters> part_counters(std::uint32_t index) const {
    if (index != 0) return {};
    return PartCounters{.counters = counters()};
  }
  // What the results of a finished step said; null: not among the last ones.
  virtual const StepReport* report(Step step) const noexcept = 0;
  virtual const StepReport* last_report() const noexcept = 0;
  virtual Stall stall(TimeNs now) const = 0;      // after the end what it was then
  virtual std::string describe_plan() const = 0;  // what the schedule does and knows

 protected:
  Calls(SessionOptions options, Layout layout);

  SessionOptions options_;  // constant but for Session::rejoin()
  const Layout layout_;
  Tensors tensors_;
  Residuals residuals_;
  JobFacts facts_;
  SessionState state_ = SessionState::kJoining;
  Status failure_;  // why it is closed; ok: it left
  std::string abort_reason_;

 private:
  // The submission has been accepted.
  virtual void submitted(const Submission& submission, TimeNs now) noexcept = 0;
  // Of a job that tolerates stragglers: the step does not wait for a gradient of every rank.
  virtual bool may_catch_up(Step) const noexcept { return false; }
  // The collective under way, in words; empty: none.
  virtual std::string describe_collective() const = 0;
  // The call has been checked. No root: a barrier.
  virtual Status begin_collective(std::optional<Rank> root, void* buffer, std::size_t bytes,
                                  TimeNs now) = 0;

  bool tolerant() const noexcept { return facts_.policy.tolerates_stragglers(); }
  Status check_steps() const;
  Status start_collective(std::optional<Rank> root, void* buffer, std::size_t bytes, TimeNs now);
  Status refuse(StatusCode code, const std::string& why) const;
  Status refuse(StatusCode code, const char* call, std::uint32_t tensor, const char* why) const;
};

}  // namespace sluice::client

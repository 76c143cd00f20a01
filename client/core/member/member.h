// What a rank's membership is to the application and to the thread that drives it: one Session, or
// a Relay over many (client/bcube).
//
// Calls of an application and events, a few a tensor; packets never pass here: they go straight
// from and to a Session. Session's header says what each function does. Under the owner's lock but
// for take_ended_step().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "aggregator/base/status.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/counters.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/tensors.h"
#include "client/core/calls/trace.h"
#include "client/core/calls/types.h"

namespace sluice::client {

struct Kept;  // residuals.h

class Member {
 public:
  virtual ~Member() = default;

  // ---- application ----
  virtual Status submit(const Submission& submission, TimeNs now) = 0;
  virtual Status end_step() = 0;
  virtual bool take_ended_step() noexcept = 0;
  virtual Status set_averaging(std::uint32_t tensor, AveragingChoice choice) = 0;
  virtual Status residual(std::uint32_t tensor, Kept& kept) = 0;
  virtual Status flush_residuals() = 0;
  virtual Status scale_residuals(float factor) = 0;
  virtual bool leaves_behind(std::uint32_t tensor) const noexcept = 0;
  virtual Status broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) = 0;
  virtual Status barrier(TimeNs now) = 0;
  virtual void leave(wire::LeaveReason reason, TimeNs now) = 0;

  // ---- its driver, beside the sessions' packets and timeouts ----
  // Does a part of what calls and sessions have left to do. False: there was nothing.
  virtual bool act_on_call(TimeNs now) = 0;
  virtual bool has_call() const noexcept = 0;
  virtual bool poll_event(Event& event) noexcept = 0;
  virtual bool poll_trace(TensorTimes& times) noexcept = 0;
  // Those that its records may be of, in the order of tensors.
  virtual std::span<const TracePart> trace_parts() const noexcept { return {}; }
  virtual void handle_broken(Status why, TimeNs now) = 0;

  // ---- what it is and does ----
  virtual const Tensors& tensors() const noexcept = 0;
  virtual const Layout& layout() const noexcept = 0;
  virtual SessionState state() const noexcept = 0;
  virtual Status status() const = 0;
  virtual JobFacts facts() const = 0;
  virtual Counters counters() const = 0;
  // None beyond the last.
  virtual std::optional<PartCounters> part_counters(std::uint32_t index) const {
    if (index != 0) return {};
    return PartCounters{.counters = counters()};
  }
  virtual const StepReport* report(Step step) const noexcept = 0;
  virtual const StepReport* last_report() const noexcept = 0;
  virtual Stall stall(TimeNs now) const = 0;  // after the end what it was then
  virtual std::string describe_plan() const = 0;
};

}  // namespace sluice::client

// What an application may ask of its membership of a job: one Session, or a Relay over many
// (client/bcube).
//
// A few calls a tensor; packets never pass here. Session's header says what each function does.
// Under the owner's lock but for take_ended_step().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "aggregator/base/status.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/counters.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/tensors.h"
#include "client/core/calls/types.h"

namespace sluice::client {

struct Kept;  // residuals.h

class Calls {
 public:
  virtual ~Calls() = default;

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

// What the thread that drives a membership asks of it, beside its sessions' packets and timeouts:
// one Session, or a Relay over many (client/bcube). Under the owner's lock.
#pragma once

#include <span>

#include "aggregator/base/status.h"
#include "client/core/calls/trace.h"
#include "client/core/calls/types.h"

namespace sluice::client {

class Driven {
 public:
  virtual ~Driven() = default;

  // Does a part of what calls and sessions have left to do. False: there was nothing.
  virtual bool act_on_call(TimeNs now) = 0;
  virtual bool has_call() const noexcept = 0;
  virtual bool poll_event(Event& event) noexcept = 0;
  virtual bool poll_trace(TensorTimes& times) noexcept = 0;
  // Those that its records may be of, in the order of tensors.
  virtual std::span<const TracePart> trace_parts() const noexcept { return {}; }
  virtual void handle_broken(Status why, TimeNs now) = 0;
};

}  // namespace sluice::client

// The legs of one worker of a BCube job: which there are, where each one's appliance is, which
// slices pass through it, and in which order they send.
//
// A leg is an ordinary session in the job that a switch's n servers have for one thread, stage and
// way. One more leg a level is the rendezvous. With several levels each level has standbys: legs at
// another switch, which its legs move into when theirs is lost (failover.h).
//
// Pure: a planner makes them, the relay drives them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/bcube/failover.h"
#include "client/bcube/slices.h"
#include "client/bcube/topology.h"
#include "client/core/calls/residuals.h"
#include "client/core/session.h"

namespace sluice::client {

enum class BcubeMode : std::uint8_t { kAggregated, kPlain };

// Where a leg's appliance is, and what for.
struct LegAddress {
  std::uint32_t thread = 0;
  std::uint32_t stage = 0;
  Role role{};
  std::uint32_t level = 0;         // of the switch, and but for a standby the port that leads there
  std::uint32_t switch_index = 0;  // in its level
  std::uint32_t host = 0;          // plain: the digit of the server that runs the appliance
  bool starts_late = false;        // who sums there, or forwards to it, may start after this worker
};

// Fills in what an appliance's place decides: its printable address, credit, the path's datagrams.
// A standby that is refused is done without.
using PrepareLeg = std::function<Status(const LegAddress& address, SessionOptions& options)>;

struct Leg {
  Leg(LegAddress where, SessionOptions options, Layout layout, TimeNs now)
      : address(where), session(std::move(options), std::move(layout), now) {}
  bool is_standby() const noexcept { return address.role >= Role::kStates; }
  bool runs() const noexcept { return session.state() == SessionState::kRunning; }

  const LegAddress address;
  std::vector<std::uint32_t> slices;  // of its tensors, in order
  std::uint32_t first_row = 0;        // of its tensors in the level's failover
  std::vector<std::uint32_t> parts;   // of the trace that its tensors are in; none: no trace
  Session session;
  bool over = false;  // it has said how it ended
};

// A leg's tensor that a slice is.
struct LegTensor {
  std::uint32_t leg = 0;
  std::uint32_t tensor = 0;
};

// A slice's way through a worker's legs, and how far it is in the step under way.
struct SliceState {
  Slice slice;
  std::uint32_t stages = 0;         // for which this worker is half-way owner
  std::uint64_t first_partial = 0;  // among the partial sums, if it is at all
  std::vector<LegTensor> up;        // by stage; the last one may be the turn
  std::vector<LegTensor> down;
  // ---- of the step ----
  const float* value = nullptr;  // what this worker has of it; null: no data
  float* output = nullptr;
  std::uint64_t weight = 0;
  std::uint32_t in_flight = 0;  // submissions to legs
  Priority priority = 0;
  TimeNs ready_ns = 0;  // `now` is the loop's: the application may have submitted since
  bool whole = false;   // the sum of all is in `output`, or nobody had data
  bool non_finite = false;
  // ---- of the last whole sum ----
  std::uint64_t kept_weight = 0;
  bool kept_absent = true;
};

struct Legs {
  std::deque<Leg> all;            // the rendezvous by level, those of slices, the standbys
  std::size_t first_standby = 0;  // in `all`
  // In which they are asked what to transmit: what is nearer to its end first, so that no port
  // waits for the last slices alone.
  std::vector<std::uint32_t> send_order;
  std::vector<SliceState> slices;           // by slice
  std::vector<std::uint32_t> first_slices;  // of each tensor, and their number
  std::uint64_t partial_elems = 0;          // that this worker is half-way owner of
  std::vector<Failover> failovers;          // by level; none: nothing can move
  std::vector<Status> why_none;             // by level: why it has no standbys
};

// Fails for what cannot travel in parts.
Status check_legs(const SessionOptions& options, const Bcube& bcube, const Layout& layout);

class LegPlanner {
 public:
  // All outlive it; `options` and `layout` are those of the whole job.
  LegPlanner(const SessionOptions& options, const Bcube& bcube, BcubeMode mode,
             const Layout& layout, const Residuals& residuals) noexcept
      : options_(options), bcube_(bcube), mode_(mode), layout_(layout), residuals_(residuals) {}
  // Once.
  Result<Legs> make(TimeNs now, const PrepareLeg& prepare);

 private:
  // Where legs move to, the one with the rows of a host.
  struct StandbyLeg {
    std::uint32_t host = 0;
    std::uint32_t first_row = 0;
    std::vector<TensorSpec> tensors;
    std::vector<std::uint32_t> slices;
  };

  void plan_slices();
  TensorSpec spec_of(const LegAddress& address, const Slice& slice) const;
  Status make_leg(LegAddress address, std::vector<TensorSpec> tensors, TimeNs now,
                  const PrepareLeg& prepare);
  Status make_slices_leg(const LegAddress& address, TimeNs now, const PrepareLeg& prepare);
  // How many appliances a switch has.
  std::uint32_t hosts() const noexcept {
    return mode_ == BcubeMode::kPlain ? bcube_.switch_ports() : 1;
  }
  std::vector<StandbyLeg> plan_standbys(std::uint32_t level, std::uint32_t first_leg);
  Status make_standbys(TimeNs now, const PrepareLeg& prepare);
  void order();

  const SessionOptions& options_;
  const Bcube& bcube_;
  const BcubeMode mode_;
  const Layout& layout_;
  const Residuals& residuals_;
  Legs legs_;
};

}  // namespace sluice::client

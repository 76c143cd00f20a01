// One worker of a BCube job: its gradients through k threads of sums and broadcasts.
//
// Each (thread, stage, way) is a job of its own among the n servers of one switch, and this worker
// is in it with an ordinary session, a leg. Up: every server contributes the slices that it holds,
// and each slice's next half-way owner adds what the others gave to its own. At the turn, the last
// stage, the sum goes to all n at once. Down: who holds a slice's sum contributes it, the others
// contribute nothing, and so get it. A partial sum is a float32 sum with its weight; the average
// is made when a slice's way is over, from bits that are equal on all servers.
//
// Aggregated: a leg's appliance is the switch. Plain, as published: the owner of a slice runs the
// appliance for its neighbours, and switches only forward.
//
// One more leg a level, the rendezvous, is in a job of all servers of a switch: there they compare
// who they are before the first step, so that a wrong cable or address is told from a right one,
// and it carries broadcasts and barriers, level by level.
//
// A level's switch that is lost in mid-run, or the way to it, is stood in for by another switch of
// the level, which the neighbours at another level reach: all its legs move into one more leg,
// the standby, and the step under way goes on there (failover.h). Plain: the servers of that switch
// stand in, each neighbour for one of this switch's, with a standby each. When it answers again the
// legs move back.
//
// The order of stages and levels is BML's (NeurIPS 2018). Pure: the owner drives the legs'
// sessions as it drives any, then calls act_on_call() until false. One thread at a time. Memory for
// partial sums, a float an element of what this worker is half-way owner of, and with standbys one
// more, is allocated at the start.
//
// A gradient that travels at a loss loses it here, once, before it goes anywhere: what leaves of it
// is written to its output, which every leg's format holds exactly, and which can be sent again
// where legs move. In a synchronous job all of it is delivered, or the job ends.
//
// relay.cc: a slice's way; relay_legs.cc: which legs there are; relay_early.cc: which are done
// without at the start; relay_failover.cc: how they move; relay_failback.cc: and back;
// relay_calls.cc: the application's side; relay_trace.cc: the trace.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/bcube/failback.h"
#include "client/bcube/failover.h"
#include "client/bcube/slices.h"
#include "client/bcube/topology.h"
#include "client/core/calls/calls.h"
#include "client/core/link/event_queue.h"
#include "client/core/member/driven.h"
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

class Relay final : public Calls, public Driven {
 public:
  struct Leg {
    Leg(LegAddress where, SessionOptions options, Layout layout, TimeNs now)
        : address(where), session(std::move(options), std::move(layout), now) {}
    const LegAddress address;
    std::vector<std::uint32_t> slices;  // of its tensors, in order
    std::uint32_t first_row = 0;        // of its tensors in the level's failover
    std::vector<std::uint32_t> parts;   // of the trace that its tensors are in; none: no trace
    Session session;
    bool over = false;  // it has said how it ended
  };

  // `options.rank` and `world_size` are those in the BCube, world_size = n^k; every leg's session
  // gets the rest as it is, and names of its own. Fails for what cannot travel in parts.
  static Result<std::unique_ptr<Relay>> create(SessionOptions options, const Bcube& bcube,
                                               BcubeMode mode, Layout layout, TimeNs now,
                                               const PrepareLeg& prepare = {});
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::deque<Leg>& legs() noexcept { return legs_; }
  const std::deque<Leg>& legs() const noexcept { return legs_; }
  // Lanes in the order in which they are asked what to transmit: what is nearer to its end first,
  // so that no port waits for the last slices alone.
  const std::vector<std::uint32_t>& send_order() const noexcept { return send_order_; }

  // Datagrams that a leg sends before the next one has its turn. In plain they go to different
  // servers: of many in a row, the port of one is full while those of the others are idle.
  std::size_t turn() const noexcept { return mode_ == BcubeMode::kPlain ? 16 : SIZE_MAX; }

  // Switches of its own that another one stands in for.
  std::uint32_t detours() const noexcept {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        failovers_, [](const Failover& each) { return each.state() == Failover::State::kMoved; }));
  }

  // ---- as Session's ----
  // Acts on what the legs' sessions say, and on what was submitted. After every call of theirs,
  // and before they are asked what to transmit.
  bool act_on_call(TimeNs now) override;
  bool has_call() const noexcept override { return tensors_.has_joined() || beginning_; }
  bool poll_event(Event& event) noexcept override { return events_.pop(event); }
  bool poll_trace(TensorTimes& times) noexcept override {
    return part_trace_.poll(times) || trace_.poll(times);
  }
  std::span<const TracePart> trace_parts() const noexcept override { return trace_parts_; }
  void handle_broken(Status why, TimeNs now) override { fail(std::move(why), now); }
  void leave(wire::LeaveReason reason, TimeNs now) override;
  Counters counters() const override;  // of all legs
  // Of a thread at a level, without the rendezvous.
  std::optional<PartCounters> part_counters(std::uint32_t index) const override;
  const StepReport* report(Step step) const noexcept override;
  const StepReport* last_report() const noexcept override { return report(tensors_.current() - 1); }
  Stall stall(TimeNs now) const override;
  std::string describe_plan() const override;  // leg by leg

 private:
  using There = Failover::Row::There;

  // A leg's tensor that a slice is.
  struct LegTensor {
    std::uint32_t leg = 0;
    std::uint32_t tensor = 0;
  };
  // A slice on its way in the step under way.
  struct SliceState {
    Slice slice;
    std::uint32_t stages = 0;         // for which this worker is half-way owner
    std::uint64_t first_partial = 0;  // in partial_sums_ and kept_, if it is at all
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
  struct Progress {
    std::uint32_t slices_left = 0;
    std::uint64_t weight = 0;
    bool any_data = false;
    bool non_finite = false;
  };
  // A tensor whose slices begin one after the other.
  struct Beginning {
    std::uint32_t tensor = 0;
    Submission submission;
    std::uint32_t next = 0;  // of slice_states_
  };

  // A broadcast or barrier on its way through the levels.
  struct Collective {
    std::optional<Rank> root;  // none: a barrier
    void* buffer = nullptr;
    std::size_t bytes = 0;
    std::uint32_t next_level = 0;
    bool running = false;  // at the level before
    bool cut = false;      // whose legs move
  };
  // Where legs move to, the one with the rows of a host.
  struct StandbyLeg {
    std::uint32_t host = 0;
    std::uint32_t first_row = 0;
    std::vector<TensorSpec> tensors;
    std::vector<std::uint32_t> slices;
  };
  // Of a level.
  struct Failbacks {
    Failback home;
    Failback standby;
  };

  Relay(SessionOptions options, const Bcube& bcube, BcubeMode mode, Layout layout);

  // ---- relay_legs.cc ----
  static Status check(const SessionOptions& options, const Bcube& bcube, const Layout& layout);
  TensorSpec spec_of(const LegAddress& address, const Slice& slice) const;
  void plan_slices();
  Status make_legs(TimeNs now, const PrepareLeg& prepare);
  Status make_leg(LegAddress address, std::vector<TensorSpec> tensors, TimeNs now,
                  const PrepareLeg& prepare);
  Status make_slices_leg(const LegAddress& address, TimeNs now, const PrepareLeg& prepare);
  // How many appliances a switch has.
  std::uint32_t hosts() const noexcept {
    return mode_ == BcubeMode::kPlain ? bcube_.switch_ports() : 1;
  }
  std::vector<StandbyLeg> plan_standbys(std::uint32_t level, std::uint32_t first_leg);
  Status make_standbys(TimeNs now, const PrepareLeg& prepare);
  void order_legs();
  float name_of_self(std::uint32_t level, std::uint32_t rank) const noexcept;
  void begin_rendezvous(Leg& leg, TimeNs now);
  Status check_rendezvous(const Leg& leg) const;

  // ---- relay_failover.cc ----
  Failover* failover_of(const Leg& leg) noexcept {
    return failovers_.empty() ? nullptr : &failovers_[leg.address.level];
  }
  // Its legs have moved.
  bool has_moved(std::uint32_t level) const noexcept {
    return !failovers_.empty() && failovers_[level].in_use();
  }
  // Its failure has not been told yet, or it moves when it is back.
  bool will_move(const Leg& leg) noexcept {
    const Failover* const failover = failover_of(leg);
    return failover != nullptr && leg.session.state() == SessionState::kClosed &&
           (failover->state() == Failover::State::kReady ||
            failover->return_vote().return_step() != 0);
  }
  static bool is_standby(const Leg& leg) noexcept { return leg.address.role >= Role::kStates; }
  bool is_detoured(const Leg& leg) const noexcept {
    return leg.address.role < Role::kRendezvous && has_moved(leg.address.level);
  }
  bool is_idle() const noexcept { return tensors_.at_rest() && !collective_; }
  void lose(Leg& leg, const Status& why, TimeNs now);
  void fail_moved(const Leg& leg, const Status& why, TimeNs now);
  void lose_what_is_needed(TimeNs now);
  void lose_standby(const Leg& lost, const Status& why, TimeNs now);
  void move(Leg& leg, const Status& why, TimeNs now);
  void miss_silent(TimeNs now);
  void handle_standby(Leg& leg, const Event& event, TimeNs now);
  void go_on(std::uint32_t level, TimeNs now);
  void go_on_with_collective(std::uint32_t level, TimeNs now);
  std::string describe_failover(std::uint32_t level) const;
  void go_on_with_row(std::uint32_t level, std::uint32_t row, TimeNs now);
  void offer(std::uint32_t level, std::uint32_t row, TimeNs now);
  void hold_back(Failover::Row& row) noexcept;
  void send(std::uint32_t level, std::uint32_t row, Submission submission, There as, TimeNs now);
  void contribute_again(std::uint32_t level, std::uint32_t row) noexcept;
  void keep(SliceState& state, Role role) noexcept;
  SliceState& state_of(const Failover::Row& row) noexcept {
    return slice_states_[legs_[row.leg].slices[row.tensor]];
  }

  // ---- relay_early.cc ----
  void lose_early(Leg& leg, const Status& why, TimeNs now);
  void move_early(std::uint32_t level, TimeNs now);
  void await_standbys(TimeNs now);
  void miss_absent(TimeNs now);
  bool start_when_all_are_here(TimeNs now);

  // ---- relay_failback.cc ----
  Failback* failback_of(const Leg& leg) noexcept {
    if (failbacks_.empty()) return nullptr;
    Failbacks& of_level = failbacks_[leg.address.level];
    return is_standby(leg) ? &of_level.standby : &of_level.home;
  }
  bool is_lost(const Leg& leg) const noexcept {
    if (failbacks_.empty()) return false;
    const Failbacks& of_level = failbacks_[leg.address.level];
    return (is_standby(leg) ? of_level.standby : of_level.home).is_lost();
  }
  // The legs that are lost and found together with this one.
  template <class Body>
  void for_legs_beside(const Leg& leg, Body body) {
    for (Leg& other : legs_)
      if (other.address.level == leg.address.level && is_standby(other) == is_standby(leg))
        body(other);
  }
  void try_failbacks(TimeNs now);
  void try_failback(Leg& first, TimeNs now);
  void rejoin(Leg& leg, TimeNs now);
  void handle_attempt(Leg& leg, const Event& event, TimeNs now);
  void fail_attempt(Leg& leg, TimeNs now);
  static bool runs(const Leg& leg) noexcept {
    return leg.session.state() == SessionState::kRunning;
  }
  void vote(std::uint32_t level, TimeNs now);
  void come_to(std::uint32_t level, TimeNs now);
  void handle_votes(std::uint32_t level, TimeNs now);
  bool is_voting() const noexcept {
    return std::ranges::any_of(failovers_,
                               [](const Failover& each) { return each.return_vote().is_voting(); });
  }
  bool must_vote_first(std::uint32_t level, TimeNs now);
  void go_back(std::uint32_t level, TimeNs now);
  void begin_next_step(TimeNs now);
  // At the level, but not where it was lost.
  bool is_away(std::uint32_t level) const noexcept {
    return has_moved(level) && failovers_[level].return_vote().return_step() == 0;
  }
  bool is_in_collective(std::uint32_t level) const noexcept {
    return collective_ && collective_->running && collective_->next_level == level + 1;
  }

  // ---- relay_calls.cc ----
  void submitted(const Submission& submission, TimeNs) noexcept override {
    last_weight_ = submission.weight;
  }
  std::string describe_collective() const override;
  Status begin_collective(std::optional<Rank> root, void* buffer, std::size_t bytes,
                          TimeNs now) override;
  void advance_collective(TimeNs now);
  void handle_collective(const Leg& leg, const Event& event, TimeNs now);
  const Leg& most_stalled(TimeNs now) const noexcept;
  void note_step(Step step, std::uint64_t weight) noexcept;
  void tell_facts(Counters& counters) const;

  // ---- relay_trace.cc ----
  void plan_trace();
  TracePart part_of(const LegAddress& address, std::uint32_t tensor,
                    std::uint64_t elem_count) const;
  void trace_slices(Leg& leg) noexcept;
  void close_parts(std::uint32_t tensor, Step step) noexcept;

  // ---- relay.cc ----
  std::uint32_t turn_stage() const noexcept { return bcube_.levels() - 1; }
  void handle(Leg& leg, const Event& event, TimeNs now);
  void handle_slice(Leg& leg, const Event& event, TimeNs now);
  void end_leg(Leg& leg);
  void begin(std::uint32_t tensor, TimeNs now);
  void begin_slice(TimeNs now);
  void take_what_leaves(const Slice& slice, const float* gradient, float* output);
  void reduce_slice(SliceState& state, std::uint32_t stage, TimeNs now);
  void add_partial_sum(SliceState& state, const Event& event) noexcept;
  void broadcast_slice(SliceState& state, std::uint32_t from_stage, TimeNs now);
  void finish(SliceState& state, TimeNs now);
  void end_step_when_done(TimeNs now);
  Priority priority_of(const SliceState& state, Role role) const noexcept;
  void submit_slice(SliceState& state, const LegTensor& stop, Submission submission, TimeNs now);
  void fail(Status why, TimeNs now);

  const Bcube bcube_;
  const BcubeMode mode_;
  std::vector<std::uint8_t> packed_;  // a chunk
  std::deque<Leg> legs_;              // the rendezvous by level, then the others
  std::vector<std::uint32_t> send_order_;
  std::vector<SliceState> slice_states_;            // by slice
  std::vector<std::uint32_t> first_slices_;         // of each tensor, and their number
  std::vector<Progress> progress_;                  // by tensor
  std::vector<float> partial_sums_;                 // what the others gave, to be added
  std::vector<float> kept_;                         // the last whole sums, for who lacks them
  std::vector<Failover> failovers_;                 // by level; none: nothing can move
  std::vector<Failbacks> failbacks_;                // likewise
  std::vector<std::vector<float>> unused_results_;  // results of tensors that were left out
  std::vector<std::vector<float>> rendezvous_;      // by level: who is there
  std::array<StepReport, kReportedSteps> reports_{};
  std::optional<Beginning> beginning_;
  std::optional<Collective> collective_;
  std::uint32_t last_weight_ = 1;
  std::size_t first_standby_ = 0;  // the last legs
  std::size_t ended_legs_ = 0;
  TimeNs started_ns_ = 0;
  bool lost_idle_ = false;          // some are lost that nobody needed then
  std::vector<bool> met_;           // by level: its servers have, before the first step
  std::vector<TimeNs> all_run_ns_;  // by level: its servers all run since; 0: not yet
  std::vector<std::uint32_t> collectives_ended_;  // by level: collectives that are done
  std::vector<Status> why_moved_;                 // by level; or why there is no detour any more
  std::uint64_t step_weight_ = 0;                 // of the step under way
  std::uint64_t shards_ = 0;                      // once all have met
  TimeNs stall_told_ns_ = 0;
  TensorTrace trace_;
  TensorTrace part_trace_;
  std::vector<TracePart> trace_parts_;      // by tensor, in the order of their ways
  std::vector<std::uint32_t> first_parts_;  // of each tensor, and their number
  EventQueue events_;
};

}  // namespace sluice::client

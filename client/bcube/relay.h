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
// relay.cc: a slice's way; relay_early.cc: what is done without at the start; relay_failover.cc:
// how legs move; relay_failback.cc: and back; relay_calls.cc: the application's side. Parts of it:
// which legs there are (legs.h), where they are (detours.h), how servers meet (rendezvous.h), and
// the trace (part_trace.h).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/bcube/detours.h"
#include "client/bcube/legs.h"
#include "client/bcube/part_trace.h"
#include "client/bcube/rendezvous.h"
#include "client/core/calls/calls.h"
#include "client/core/link/event_queue.h"
#include "client/core/member/driven.h"
#include "client/core/session.h"

namespace sluice::client {

class Relay final : public Calls, public Driven {
 public:
  // `options.rank` and `world_size` are those in the BCube, world_size = n^k; every leg's session
  // gets the rest as it is, and names of its own. Fails for what cannot travel in parts.
  static Result<std::unique_ptr<Relay>> create(SessionOptions options, const Bcube& bcube,
                                               BcubeMode mode, Layout layout, TimeNs now,
                                               const PrepareLeg& prepare = {});
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::deque<Leg>& legs() noexcept { return legs_.all; }
  const std::deque<Leg>& legs() const noexcept { return legs_.all; }
  const std::vector<std::uint32_t>& send_order() const noexcept { return legs_.send_order; }

  // Datagrams that a leg sends before the next one has its turn. In plain they go to different
  // servers: of many in a row, the port of one is full while those of the others are idle.
  std::size_t turn() const noexcept { return mode_ == BcubeMode::kPlain ? 16 : SIZE_MAX; }

  // Switches of its own that another one stands in for.
  std::uint32_t detours() const noexcept { return detours_.count(); }

  // ---- as Session's ----
  // Acts on what the legs' sessions say, and on what was submitted. After every call of theirs,
  // and before they are asked what to transmit.
  bool act_on_call(TimeNs now) override;
  bool has_call() const noexcept override { return tensors_.has_joined() || beginning_; }
  bool poll_event(Event& event) noexcept override { return events_.pop(event); }
  bool poll_trace(TensorTimes& times) noexcept override {
    return part_trace_.poll(times) || trace_.poll(times);
  }
  std::span<const TracePart> trace_parts() const noexcept override { return part_trace_.parts(); }
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
    std::uint32_t next = 0;  // of legs_.slices
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

  Relay(SessionOptions options, const Bcube& bcube, BcubeMode mode, Layout layout);

  // ---- relay_failover.cc ----
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
  void go_on_with_row(std::uint32_t level, std::uint32_t row, TimeNs now);
  void offer(std::uint32_t level, std::uint32_t row, TimeNs now);
  void hold_back(Failover::Row& row) noexcept;
  void send(std::uint32_t level, std::uint32_t row, Submission submission, There as, TimeNs now);
  void contribute_again(std::uint32_t level, std::uint32_t row) noexcept;
  void keep(SliceState& state, Role role) noexcept;
  SliceState& state_of(const Failover::Row& row) noexcept {
    return legs_.slices[legs_.all[row.leg].slices[row.tensor]];
  }

  // ---- relay_early.cc ----
  void lose_early(Leg& leg, const Status& why, TimeNs now);
  void move_early(std::uint32_t level, TimeNs now);
  void await_standbys(TimeNs now);
  void miss_absent(TimeNs now);
  bool start_when_all_are_here(TimeNs now);

  // ---- relay_failback.cc ----
  // The legs that are lost and found together with this one.
  template <class Body>
  void for_legs_beside(const Leg& leg, Body body) {
    for (Leg& other : legs_.all)
      if (other.address.level == leg.address.level && other.is_standby() == leg.is_standby())
        body(other);
  }
  void try_failbacks(TimeNs now);
  void try_failback(Leg& first, TimeNs now);
  void rejoin(Leg& leg, TimeNs now);
  void handle_attempt(Leg& leg, const Event& event, TimeNs now);
  void fail_attempt(Leg& leg, TimeNs now);
  void vote(std::uint32_t level, TimeNs now);
  void come_to(std::uint32_t level, TimeNs now);
  void handle_votes(std::uint32_t level, TimeNs now);
  bool must_vote_first(std::uint32_t level, TimeNs now);
  void go_back(std::uint32_t level, TimeNs now);
  void begin_next_step(TimeNs now);
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

  // ---- relay.cc ----
  Status make_legs(TimeNs now, const PrepareLeg& prepare);
  void begin_rendezvous(Leg& leg, TimeNs now);
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
  Legs legs_;
  std::vector<Progress> progress_;   // by tensor
  std::vector<float> partial_sums_;  // what the others gave, to be added
  std::vector<float> kept_;          // the last whole sums, for who lacks them
  Detours detours_;
  std::vector<std::vector<float>> unused_results_;  // results of tensors that were left out
  Rendezvous rendezvous_;
  std::array<StepReport, kReportedSteps> reports_{};
  std::optional<Beginning> beginning_;
  std::optional<Collective> collective_;
  std::uint32_t last_weight_ = 1;
  std::size_t ended_legs_ = 0;
  TimeNs started_ns_ = 0;
  bool lost_idle_ = false;                        // some are lost that nobody needed then
  std::vector<TimeNs> all_run_ns_;                // by level: its servers all run since; 0: not yet
  std::vector<std::uint32_t> collectives_ended_;  // by level: collectives that are done
  std::uint64_t step_weight_ = 0;                 // of the step under way
  std::uint64_t shards_ = 0;                      // once all have met
  TimeNs stall_told_ns_ = 0;
  TensorTrace trace_;
  PartTrace part_trace_;
  EventQueue events_;
};

}  // namespace sluice::client

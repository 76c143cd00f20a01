// One worker process: the production Session behind a bounded socket buffer, and an application
// that carries out its plan (tensors in its own order, collectives, leave) and checks the outputs.
//
// In a job that tolerates stragglers the application is the loop that users are told to write:
// catch up while behind, else compute, submit and wait; resync when told to; give its state when
// asked. A checksum over all averages that it applied stands for its parameters.
//
// It can be killed, paused like SIGSTOP, and resumed; another Worker may take its rank later. The
// world owns it and calls it from its events. worker.cc: the process; worker_app.cc: the
// application; worker_checks.cc: its checks; store_loop.h: the application of a parameter store;
// group_loop.h: that of a job of operations.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/wire/packet.h"
#include "client/core/session.h"
#include "tests/sim/far.h"
#include "tests/sim/frame_pool.h"
#include "tests/sim/group_loop.h"
#include "tests/sim/oracle.h"
#include "tests/sim/plan.h"
#include "tests/sim/store_loop.h"

namespace sluice::sim {

class World;
using WorkerIndex = std::uint32_t;
using HostIndex = std::uint32_t;
inline constexpr std::uint8_t kUntouched = 0xA5;  // what outputs hold before their results

enum class ProcessState : std::uint8_t { kWaiting, kRunning, kPaused, kDead };

// An event of the session, with the time at which the application got it.
struct LoggedEvent {
  client::Event::Kind kind{};
  std::uint32_t tensor = 0;
  Step step = 0;
  TimeNs at = 0;
  bool absent = false;
  bool non_finite = false;
  Status status;
};

class Worker {
 public:
  struct Identity {
    WorkerIndex index = 0;
    HostIndex host = 0;
    RunIndex run = 0;
    Rank rank;
    std::uint16_t port = 0;
  };
  // `plan` and `layout` outlive the worker.
  Worker(World& world, const Identity& identity, const JobPlan& plan, const client::Layout& layout);

  void start(TimeNs now);
  void receive(FrameIndex frame, TimeNs now);  // a frame reached the host for this process
  void service(TimeNs now);
  void timeout(TimeNs now);
  void run_app(TimeNs now);
  void kill();
  void pause();
  void resume(TimeNs now);  // unless frozen
  void freeze(bool on) { frozen_ = on; }
  // After the test has called the session: sends, collects events, sets the timer.
  void pump(TimeNs now);

  std::string returned;  // what it was told when its appliance was back, last
  const Identity identity;
  const JobPlan& plan;
  wire::CommonHeader credentials;  // of the last packet that it sent
  const client::Layout& layout;

  client::Session& session() const { return *session_; }
  ProcessState state() const { return state_; }
  bool failed() const { return failed_; }
  bool left() const { return left_; }
  bool leaving() const { return session_->state() == client::SessionState::kLeaving; }
  bool started() const { return started_; }
  bool done() const {
    return (failed_ && (started_ || !retries)) || left_ || (finished_ && !together());
  }
  // The worker has taken its last step, or never will.
  bool over() const {
    return (failed_ && (started_ || !retries)) || left_ || finished_ ||
           state_ == ProcessState::kDead;
  }
  bool retries = false;  // another process comes if this one cannot join
  const Status& failure() const { return failure_; }
  TimeNs failed_at() const { return failed_at_; }
  TimeNs progressed_at() const { return progressed_at_; }
  Step steps_done() const { return steps_done_; }
  const std::vector<LoggedEvent>& log() const { return log_; }
  std::size_t count(client::Event::Kind kind) const;
  std::string describe_log() const;  // one event a line
  std::uint64_t pumps() const { return pumps_; }
  std::uint64_t socket_drops() const { return socket_drops_; }
  std::size_t waiting_frames() const { return socket_.size(); }
  // I7 at the session: empty, or the violation.
  std::string unbalanced() const;
  // In jobs that tolerate stragglers.
  std::uint64_t replica() const { return replica_; }
  std::uint32_t steps_computed() const { return steps_computed_; }
  std::uint32_t steps_caught_up() const { return steps_caught_up_; }
  std::uint32_t resyncs() const { return resyncs_; }
  std::uint32_t states_given() const { return states_given_; }
  Party party() const {
    return {.run = identity.run, .rank = identity.rank, .process = identity.index};
  }
  // All ranks of an Ending::kTogether have taken their last step.
  void leave_together(TimeNs now);
  // The memory that the application gave to the session, for manual tests and for the checks.
  std::uint8_t* input(std::uint32_t tensor) { return inputs_[tensor].data(); }
  std::uint8_t* output(std::uint32_t tensor) { return outputs_[tensor].data(); }

 private:
  enum class Phase : std::uint8_t {
    kWaiting,     // for the others to join
    kNext,        // between two steps
    kSubmitting,  // computes, and submits one tensor after another
    kStep,        // waits for the step's results
    kCollective,
    kResync,  // waits for another rank's state
    kOver,
  };

  bool poll_transmit(TimeNs now);
  bool poll_events(TimeNs now);
  void on_event(const client::Event& event, TimeNs now);
  bool advance(TimeNs now);
  bool advance_loop(TimeNs now);
  bool begin_next(TimeNs now);
  bool begin_catching_up(TimeNs now);
  bool begin_resync(TimeNs now);
  void on_started();
  void on_step_done(const client::Event& event);
  void on_fell_behind(const client::Event& event);
  void on_state_received(const client::Event& event);
  void give_state(TimeNs now);
  void apply_step(Step step);
  void check_report(Step step);
  bool submit_due(TimeNs now);
  void submit(std::uint32_t tensor, Step step, TimeNs now);
  client::FarTensor* far_of(std::uint32_t tensor, const std::uint8_t* input);  // null: not far
  bool start_collective(TimeNs now);
  void finish(TimeNs now);
  void check_tensor(const client::Event& event);
  void check_average(std::uint32_t tensor, Step step);
  std::string unbalanced_gradients() const;
  std::uint64_t give_up(Step behind) const;  // see Oracle; of all tensors
  bool together() const { return plan.ranks[identity.rank.value].ending == Ending::kTogether; }
  void check_collective();
  void wake_app_at(TimeNs at);
  void set_timer(TimeNs now);
  void violation(const std::string& text);
  // Whether the call succeeded. Any failure is a violation, except after the session has failed or
  // fallen behind.
  bool expect_ok(const Status& status, const char* what);

  World& world_;
  std::unique_ptr<client::Session> session_;
  ProcessState state_ = ProcessState::kWaiting;
  Phase phase_ = Phase::kWaiting;
  bool service_scheduled_ = false;
  TimeNs timer_at_ = kNever;
  std::uint32_t idle_timeouts_ = 0;
  std::deque<FrameIndex> socket_;
  std::uint64_t socket_drops_ = 0;
  std::uint64_t datagrams_in_ = 0;
  std::uint64_t datagrams_out_ = 0;
  std::uint64_t pumps_ = 0;

  bool started_ = false;
  bool failed_ = false;
  bool left_ = false;
  bool finished_ = false;
  bool all_over_ = false;  // every rank of the run has taken its last step
  bool frozen_ = false;
  Status failure_;
  TimeNs failed_at_ = kNever;
  TimeNs progressed_at_ = 0;
  std::vector<LoggedEvent> log_;

  Step step_ = 0;        // the step that is submitted or waited for
  Step steps_done_ = 0;  // last kStepDone
  std::vector<std::uint32_t> order_;
  std::size_t submitted_ = 0;
  std::size_t tensors_done_ = 0;
  TimeNs app_due_ = 0;
  std::vector<Step> tensor_steps_;  // last step submitted, per tensor
  std::vector<std::uint32_t> tensors_done_by_step_;
  bool catching_up_ = false;  // the step under way was not computed here
  bool state_wanted_ = false;
  std::uint64_t replica_ = kFirstReplica;
  std::uint32_t steps_computed_ = 0;
  std::uint32_t steps_caught_up_ = 0;
  std::uint32_t resyncs_ = 0;
  std::uint32_t states_given_ = 0;
  std::vector<bool> absent_;         // of the step under way, per tensor
  std::vector<std::uint8_t> given_;  // the state that the session reads
  std::size_t next_collective_ = 0;
  std::vector<std::uint8_t> collective_buffer_;
  std::vector<std::vector<std::uint8_t>> inputs_;
  std::vector<std::vector<std::uint8_t>> outputs_;
  std::vector<std::uint8_t> buffer_;
  mutable FarSide far_;  // mutable: a question may let it take memory back
  bool flushes_ = false;
  std::unique_ptr<StoreLoop> store_;   // the application of a store's worker
  std::unique_ptr<GroupLoop> groups_;  // that of a worker of a job of operations
};

}  // namespace sluice::sim

// What the application's threads and the progress thread tell each other about one job.
//
// A mutex, a list of commands towards the progress thread, and the state of tensors, steps and the
// collective in the other direction. It knows no session and no network; waiting happens here, in
// slices of at most 100 ms. The progress thread uses the part so marked, everyone else the rest.
// board.cc: submissions, steps, waiting; board_stragglers.cc: what only jobs with k < n need.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aggregator/base/counters.h"
#include "aggregator/base/time.h"
#include "client/core/layout.h"
#include "client/core/session.h"
#include "client/fork.h"
#include "client/outcome.h"

namespace sluice::client {

class TraceFile;

// A broadcast (or, with an empty buffer, a barrier). The progress thread owns the buffer until it
// is done; whoever started it may have given up by then.
struct CollectiveCall {
  std::vector<std::uint8_t> buffer;
  Rank root;
  bool is_barrier = false;
  bool done = false;  // under the board's mutex, as is `outcome`
  Outcome outcome;
};

struct Command {
  enum class Kind : std::uint8_t {
    kSubmit,
    kEndStep,
    kCollective,
    kDescribe,
    kDescribePlan,
    kLeave,
    kResync,
    kSendState,
  };
  Kind kind{};
  Submission submission;                       // kSubmit
  Step step = 0;                               // kSubmit, kEndStep: that it belongs to
  std::shared_ptr<CollectiveCall> collective;  // kCollective
  wire::LeaveReason reason{};                  // kLeave
  std::vector<std::uint8_t> state{};           // kSendState
};

// Written by the progress thread, read by anyone.
struct ClientCounters {
  Counter packets_sent, packets_received, bytes_sent, bytes_received, retransmissions, probes,
      results_pulled, duplicate_results, non_finite_results, nil_contributions, invalid_packets,
      send_errors, steps_done, receive_credit_packets, shards, non_finite_inputs, delivered_chunks,
      late_chunks, requeued_chunks, discarded_chunks, cancelled_bytes, resyncs;
};

// A state that another rank has given.
struct ReceivedState {
  std::unique_ptr<std::uint8_t[]> data;
  std::uint64_t bytes = 0;
  Step step = 0;
};

struct WaitOptions {
  std::int32_t timeout_ms = 0;  // SLUICE_FOREVER: no limit
  std::function<bool()> interrupted;
};

TimeNs monotonic_now() noexcept;

class Board {
 public:
  // `place` starts the texts of waits: "job 'x' rank 1 at ADDRESS: ".
  Board(const std::vector<TensorSpec>& tensors, bool allow_nil, std::string place);
  // Before the first submission. `trace` may be null and outlives the board's use.
  void set_trace(TraceFile* trace) noexcept { trace_ = trace; }

  // ---- application threads ----
  // Waits on after its limit while the appliance says that it prepares the job's memory.
  Outcome wait_started(const WaitOptions& options);
  Outcome submit(const Submission& submission);
  Outcome end_step();
  Outcome wait_tensor(std::uint32_t tensor, const WaitOptions& options, sluice_result* result);
  Outcome wait_step(const WaitOptions& options, std::uint32_t* step);
  Outcome mark_applied(std::uint32_t tensor);
  Outcome collective(const std::shared_ptr<CollectiveCall>& call, const WaitOptions& options);
  JobFacts facts() const;
  std::uint32_t behind() const;
  Outcome step_report(Step step, StepReport* report) const;
  bool must_resync() const;
  Outcome resync(const WaitOptions& options, sluice_state* state);
  std::int32_t state_wanted() const;  // by this rank; -1: nobody
  Outcome send_state(const void* data, std::uint64_t bytes, Step step);
  void request_leave(wire::LeaveReason reason);
  bool wait_ended(DurationNs limit_ns);  // false: the progress thread still runs
  Outcome outcome() const;               // SLUICE_OK while the job works
  bool idle() const;                     // nothing submitted is in flight
  std::string describe_stall();
  std::string schedule_plan();
  const ClientCounters& counters() const noexcept { return counters_; }
  // From here on blocking calls on this thread are refused instead of waiting for themselves.
  void set_progress_thread() noexcept;
  void set_trace_thread() noexcept;
  bool on_own_thread() const noexcept;

  // ---- progress thread ----
  bool take_commands(std::vector<Command>& commands);
  void started(const JobFacts& facts, bool must_resync);
  void note_preparing() noexcept { prepared_.store(true, std::memory_order_relaxed); }
  void tensor_done(const Event& event, TimeNs now);
  void step_done(Step step, const StepReport* report);
  // Where the others are: see Session. Before any event that depends on it is told.
  void publish_position(Step open_step, bool late) noexcept;
  // Returns the tensors whose submissions are abandoned.
  std::vector<std::uint32_t> fell_behind(const Event& event);
  void state_received(ReceivedState state);
  void resync_failed(const Outcome& outcome);
  void set_state_wanted(std::int32_t rank);
  void collective_done(const Outcome& outcome);
  void described(Command::Kind what, std::string text);
  // The job is over. Returns the tensors that were in flight.
  std::vector<std::uint32_t> end(const Outcome& outcome, std::string stall, std::string plan);
  ClientCounters& mutable_counters() noexcept { return counters_; }
  int wake_fd() const noexcept { return wake_fd_.get(); }
  // Call before sleeping; false: there are commands, do not sleep.
  bool prepare_sleep();
  void finish_sleep() noexcept;

 private:
  struct TensorState {
    std::string name;
    bool in_flight = false;
    bool abandoned = false;  // its last submission: this rank fell behind
    Step steps = 0;          // submitted or left out so far
    TimeNs submitted_ns = 0;
    sluice_result result{};
  };
  // A text that only the progress thread can write, and the last one that it wrote.
  struct Description {
    Command::Kind what{};
    std::uint64_t asked = 0;
    std::uint64_t answered = 0;
    std::string text;
  };
  using Lock = std::unique_lock<std::mutex>;

  Outcome wait(Lock& lock, const WaitOptions& options, const char* what,
               const std::function<bool()>& ready, const TensorState* tensor = nullptr);
  std::string wait_text(const char* what, const TensorState* tensor) const;
  std::string ask(Lock& lock, Description& description);  // opens the lock
  void push(Command command);                             // with the mutex held
  bool close_step_if_full();                              // likewise
  Outcome refuse_left_out() const;
  bool tolerant() const { return facts_.policy.tolerates_stragglers(); }
  void go_on_at(Step step);  // with the mutex held, as all below

  const bool allow_nil_;
  const std::string place_;
  const OwnedFd wake_fd_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  std::atomic<bool> has_commands_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> prepared_{false};  // since somebody last looked
  bool started_ = false;
  bool ended_ = false;
  Outcome outcome_;
  std::vector<TensorState> tensors_;
  std::size_t in_flight_ = 0;
  Step open_step_ = 1;        // that the application is filling
  bool closed_full_ = false;  // the last step ended by its last submission
  Step done_step_ = 0;
  std::shared_ptr<CollectiveCall> collective_;  // in progress
  // Stragglers.
  JobFacts facts_;
  std::atomic<Step> others_at_{0};  // the open step
  std::atomic<bool> late_{false};   // chunks wait to be requeued
  bool stranded_ = false;
  Outcome why_stranded_;
  bool resyncing_ = false;      // asked for, and not returned yet
  bool resync_caller_ = false;  // a thread waits for it
  bool state_arrived_ = false;  // `incoming_` is whole
  Outcome resync_outcome_;      // why there is no state
  ReceivedState incoming_;
  ReceivedState state_;  // returned last
  std::int32_t state_wanted_ = -1;
  std::array<StepReport, kReportedSteps> reports_;
  Description stall_{.what = Command::Kind::kDescribe};
  Description plan_{.what = Command::Kind::kDescribePlan};
  TraceFile* trace_ = nullptr;
  ClientCounters counters_;
  std::atomic<std::uint64_t> progress_thread_{0};
  std::atomic<std::uint64_t> trace_thread_{0};
};

}  // namespace sluice::client

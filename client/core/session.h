// One worker's side of one job: everything the protocol asks of a worker, without a socket.
//
// Pure: datagrams and time in, datagrams and events out. It owns recovery (the appliance keeps no
// per-packet timer): joins, numbers, windows, probes, credit, collectives, keepalives, and the
// errors that name address, job, ranks and values. The progress thread (client/progress.h), the
// in-process transport and the simulator drive it: handle_datagram() for what arrived, then
// poll_transmit() until false, then sleep until next_timeout() at most. One thread at a time. No
// allocation after start-up, but for error texts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/status.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "aggregator/wire/packet.h"
#include "client/core/layout.h"
#include "client/core/trace.h"
#include "client/sched/scheduler.h"

namespace sluice::client {

struct SessionOptions {
  std::string job_name;
  std::uint16_t ordinal = 0;  // second, third ... model of the same process
  std::uint64_t run_id = 0;   // same on every rank of a launch
  Rank rank;
  std::uint16_t world_size = 0;
  std::string secret;
  std::string appliance_address;  // printable, for messages only
  std::uint64_t nonce = 0;        // fresh randomness, drawn once a join
  AveragingChoice averaging{};    // what an output holds; the same on every rank
  bool allow_nil = true;          // end_step() may fill in for tensors that were not submitted
  std::uint32_t receive_credit_packets = 64;    // results that the transport can buffer
  std::size_t path_datagram_bytes = 1452;       // biggest UDP payload of the local interface
  DurationNs connect_timeout_ns = 4 * kSecond;  // no usable answer to a join
  DurationNs join_timeout_ns = 60 * kSecond;    // waiting for the other ranks
  DurationNs silence_timeout_ns = 4 * kSecond;  // appliance answers no keepalive once joined
  DurationNs stall_report_ns =
      5 * kSecond;           // no progress in a step: report who and what is missing
  ScheduleOptions schedule;  // which chunk leaves next
  PolicyOptions policy;      // asked for, if has_policy
  bool has_policy = false;   // false: whatever the appliance's configuration says
  bool trace = false;        // note when each tensor passed which place
  std::uint64_t max_state_bytes = UINT64_MAX;  // of another rank's state; more is refused
};

// A tensor's gradient for the next step of that tensor. `input` and `output` may be the same
// memory; both must stay valid until the tensor's kTensorDone event, kFellBehind or the job's end.
struct Submission {
  std::uint32_t tensor = 0;
  const void* input = nullptr;  // elem_count elements of the tensor's dtype; null: no data (NIL)
  void* output = nullptr;       // likewise: receives the average
  std::uint32_t weight = 1;     // samples
  Priority priority = 0;
  TimeNs ready_ns = 0;  // when the application submitted it; 0: now. For the trace
  // False: catching up. This worker computed no gradient for the step; `input` and `weight` are
  // ignored, and only what it has to requeue is contributed.
  bool contribute = true;
};

struct Event {
  enum class Kind : std::uint8_t {
    kJoined,          // member; waiting for other ranks
    kStarted,         // all ranks have joined; submissions flow
    kTensorDone,      // output holds the average of `step`
    kStepDone,        // every tensor of `step` is done
    kCollectiveDone,  // the buffer is filled, or the barrier passed. With a `status` that is not
                      // ok: the broadcast has lost its root, for all ranks alike
    kStalled,         // a report, not an error: `status.message()` names tensors, ranks and ages
    kFellBehind,      // `step` has left the window: submissions are abandoned until a resync
    kStateWanted,     // rank `peer` waits for this one's state: send_state(); `bytes` is unused
    kStateUnwanted,   // nobody waits for it any more, and none was given
    kStateSent,       // the state that was given is not read any more, sent or not
    kStateReceived,   // take_state() has `bytes` bytes; `step` is the last step in them. With a
                      // `status` that is not ok: there was no memory, and the resync is over
    kLeft,            // leave() has been acknowledged (or nobody answered in time)
    kFailed,          // final: `status` says why; nothing is sent any more
  };
  Kind kind{};
  std::uint32_t tensor = 0;
  Step step = 0;
  std::uint64_t weight = 0;  // total weight of the last chunk's result; kStepDone: of the least
  bool absent = false;       // kTensorDone: no rank contributed data, output is untouched
  bool non_finite = false;   // some element of the sum is NaN or infinite
  Rank peer{};
  std::uint64_t bytes = 0;
  Status status;
};

// What the results of a finished step said. Kept for the last kReportedSteps steps.
struct StepReport {
  Step step = 0;             // 0: none
  std::uint16_t k = 0;       // the least of its chunks
  std::uint64_t weight = 0;  // likewise
  std::uint16_t mask_words = 0;
  std::array<std::uint64_t, kMaskWords> in_every{};  // ranks that are in every chunk
  std::array<std::uint64_t, kMaskWords> in_any{};    // in at least one
};
inline constexpr std::size_t kReportedSteps = 16;

// What the job runs, as the appliance said at the join.
struct JobFacts {
  PolicyOptions policy;
  std::uint16_t window_steps = 0;
  std::uint32_t resync_hold_ms = 0;
};

struct Transmit {
  std::size_t bytes = 0;
  std::uint16_t port_offset = 0;  // add to the appliance's port: 0 control, 1 + shard data
  Priority priority = 0;
};

// Monotonic; read by the owner's thread or copied out by it.
struct SessionStats {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_received = 0;
  std::uint64_t bytes_sent = 0;       // UDP payload
  std::uint64_t bytes_received = 0;   // UDP payload
  std::uint64_t retransmissions = 0;  // contributions sent again
  std::uint64_t probes = 0;
  std::uint64_t results_pulled = 0;
  std::uint64_t duplicate_results = 0;
  std::uint64_t non_finite_results = 0;
  std::uint64_t nil_contributions = 0;
  // Results that are not finite to which this rank itself sent a NaN or an infinity.
  std::uint64_t non_finite_inputs = 0;
  // Chunks that were submitted with data: each ends as delivered, requeued or discarded.
  std::uint64_t delivered_chunks = 0;
  std::uint64_t late_chunks = 0;  // not in the sum of their own step
  std::uint64_t requeued_chunks = 0;
  std::uint64_t discarded_chunks = 0;
  std::uint64_t cancelled_bytes = 0;  // not sent, because the result was there first
  std::uint64_t resyncs = 0;
  std::array<std::uint64_t, kVerdictCount> verdicts{};  // of datagrams that arrived
};

enum class SessionState : std::uint8_t { kJoining, kForming, kRunning, kLeaving, kClosed };

class Session {
 public:
  Session(SessionOptions options, Layout layout, TimeNs now);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // ---- network side ----
  Verdict handle_datagram(std::span<const std::uint8_t> bytes, TimeNs now) noexcept;
  // Writes the next datagram, most urgent first, as windows allow. False: nothing may be sent now.
  bool poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept;
  // When handle_timeout() wants to run next; kNever when only a packet or the application can help.
  TimeNs next_timeout() const noexcept;
  void handle_timeout(TimeNs now) noexcept;
  // The transport learnt that nothing listens there, or that a datagram was too big for the path
  // (`path_datagram_bytes` of it, 0 when unknown). Unless this host itself refused the datagram
  // (`certain`), that may be forged: it ends a join, never a job.
  void handle_unreachable(TimeNs now) noexcept;
  void handle_too_big(std::size_t datagram_bytes, std::size_t path_datagram_bytes, bool certain,
                      TimeNs now) noexcept;

  // ---- application side ----
  // The tensor's next step: its first submission belongs to step 1, its second to step 2, ... A
  // submission for a step that is not open yet is held. Fails on a bad index, a null pointer, or
  // when the tensor's previous submission is not done.
  Status submit(const Submission& submission, TimeNs now) noexcept;
  // Declares the current step complete: tensors not submitted in it are contributed as NIL (refused
  // when !allow_nil). Without it a step ends when all tensors have been submitted.
  Status end_step(TimeNs now) noexcept;
  // All ranks call the same collectives in the same order; one at a time. `buffer` as for submit().
  // Any size: cut into several steps of the collectives stream, with barriers that hold the window.
  Status broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) noexcept;
  Status barrier(TimeNs now) noexcept;
  // In the middle of a step or of a collective it is kAbnormal, whatever the caller says.
  void leave(wire::LeaveReason reason, TimeNs now) noexcept;

  // ---- stragglers: jobs whose policy is not sync ----
  // Asks for another rank's state; kStateReceived ends it. Called again before that, it goes on
  // with the same request. Nothing may be in flight.
  Status resync(TimeNs now) noexcept;
  // The state that has arrived: the caller's from now on.
  std::unique_ptr<std::uint8_t[]> take_state() noexcept;
  // After kStateWanted: this rank's state after `step`. True: it is read, and must stay valid until
  // kStateSent, of which every such call has one. False: nobody waits for it (any more).
  bool send_state(std::span<const std::uint8_t> state, Step step, TimeNs now) noexcept;
  // The step to catch up to before the next gradient: one that is open, or the first that this
  // worker may contribute to. In requeue mode that step too, while late chunks wait
  // to be contributed to it.
  Step open_step() const noexcept;
  std::uint32_t waiting_late_chunks() const noexcept;
  // Steps to catch up with before the next gradient, from current_step() on.
  std::uint32_t behind() const noexcept {
    const Step ahead = open_step() > current_step() ? open_step() - current_step() : 0;
    return ahead + (waiting_late_chunks() != 0 ? 1 : 0);
  }
  bool must_resync() const noexcept;
  const JobFacts& facts() const noexcept;              // known once kJoined came
  const StepReport* report(Step step) const noexcept;  // null: not among the last ones

  bool poll_event(Event& event) noexcept;
  // With options.trace: the tensors that are done, each at its kTensorDone event at the latest.
  bool poll_trace(TensorTimes& times) noexcept;

  SessionState state() const noexcept;
  Step current_step() const noexcept;     // the gradient step that is being worked on, from 1
  Step collective_step() const noexcept;  // likewise of the collectives
  // The appliance makes the job's memory and answers so: the join takes as long as that.
  bool preparing() const noexcept;
  std::uint16_t shard_count() const noexcept;
  const SessionStats& stats() const noexcept;
  // Why the current step waits: tensors, ranks, when each was last heard. Empty when nothing waits.
  std::string describe_stall(TimeNs now) const;
  // What the schedule does and knows.
  std::string describe_plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::client

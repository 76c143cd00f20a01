// What a session and its owner say to each other: options, submissions, events, reports.
//
// Plain values without behaviour, so that the session's parts need not know the session.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/status.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "client/prune/executor.h"
#include "client/prune/threshold.h"
#include "client/sched/choice.h"
#include "client/sched/requests.h"

namespace sluice::client {

struct FarTensor;

struct SessionOptions {
  std::string job_name;
  std::uint16_t ordinal = 0;  // second, third ... model of the same process
  std::uint64_t run_id = 0;   // same on every rank of a launch
  Rank rank;                  // kAnyRank until an elastic job has given one
  std::uint16_t world_size = 0;
  std::string secret;
  std::string appliance_address;  // where the job is; printable, for messages only
  // Where the job may be: first at the first of them, after its first move at the second, and so
  // on, round and round. Printable; empty: at appliance_address alone.
  std::vector<std::string> addresses;
  std::uint32_t epoch = 0;      // moves so far
  std::uint64_t nonce = 0;      // fresh randomness, drawn once a join
  AveragingChoice averaging{};  // what an output holds; the same on every rank
  bool reproducible = false;    // sums in the order of ranks; the same on every rank
  bool allow_nil = true;        // end_step() may fill in for tensors that were not submitted
  std::uint32_t receive_credit_packets = 64;  // results that the transport can buffer
  std::string more_credit;  // how the user makes them more, for the report; empty: there is no way
  std::size_t path_datagram_bytes = 1452;       // biggest UDP payload of the local interface
  DurationNs connect_timeout_ns = 4 * kSecond;  // no usable answer to a join
  DurationNs join_timeout_ns = 60 * kSecond;    // waiting for the other ranks
  DurationNs silence_timeout_ns = 4 * kSecond;  // appliance answers no keepalive once joined
  // How long a job that may go on waits for an appliance that is lost; 0: not at all,
  // silence_timeout_ns ends it, as it ends other jobs.
  DurationNs restart_timeout_ns = 0;
  DurationNs stall_report_ns =
      5 * kSecond;               // no progress in a step: report who and what is missing
  ScheduleOptions schedule;      // which chunk leaves next
  PolicyOptions policy;          // asked for, if has_policy
  bool has_policy = false;       // false: whatever the appliance's configuration says
  bool trace = false;            // note when each tensor passed which place
  PruneOptions prune;            // which elements leave
  Executor* executor = nullptr;  // of thresholds, outlives the session; null: its own thread
  // Of a job of kind store: its layout is in blocks, and its tensors are pushed and pulled.
  std::optional<StoreOptions> store;
  bool operations = false;                     // of kind operations: it has no tensors
  StoreKeep keep{};                            // of a store: what becomes of it without workers
  RequestPolicy requests{};                    // of a store: which push, which pull goes next
  std::uint64_t max_state_bytes = UINT64_MAX;  // of another rank's state; more is refused
};

// Of operations: the appliance chooses among the ranks that no process has.
inline bool asks_any_rank(const SessionOptions& options) noexcept {
  return options.operations && options.rank == kAnyRank;
}

inline JobKind kind_of(const SessionOptions& options) noexcept {
  if (options.operations) return JobKind::kOperations;
  return options.store ? JobKind::kStore : JobKind::kSums;
}

// A tensor's gradient for the next step of that tensor. `input` and `output` may be the same
// memory; both must stay valid until the tensor's kTensorDone or kTensorLost event.
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
  // False: this worker wants no result. The tensor is done once its gradient has arrived, which is
  // earlier than the step is complete: for who knows by other means when it may begin the next one.
  // `output` is not written. Synchronous jobs only.
  bool wanted = true;
  // `input` is an average already, with its total weight: what all of these add up to is the
  // result, undivided.
  bool averaged = false;
  // Of a far tensor, and of no other. `input` then only says that there is data, and neither that
  // nor `output` is touched.
  FarTensor* far = nullptr;
};

// What the application wants called when an operation is over. Not under the owner's lock.
using OperationDone = std::function<void(std::uint64_t number, StatusCode code)>;

struct Event {
  enum class Kind : std::uint8_t {
    kJoined,          // member; waiting for other ranks
    kStarted,         // all ranks have joined; submissions flow
    kTensorDone,      // output holds the average of `step`
    kTensorLost,      // its submission is given up, both buffers are the caller's again: `status`
    kStepDone,        // every tensor of `step` is done
    kCollectiveDone,  // the buffer is filled, or the barrier passed. With a `status` that is not
                      // ok: the broadcast has lost its root, for all ranks alike
    kStalled,         // a report, not an error: `status.message()` names tensors, ranks and ages
    kCreditLimits,    // a report: the transport's buffer, not the path, sets the rate, see `status`
    kDetoured,        // a report: another appliance stands in for one of several, see `status`
    kReturned,        // a report: that one is used again, see `status`
    kFellBehind,      // `step` has left the window: submissions are abandoned until a resync
    kStateWanted,     // rank `peer` waits for this one's state: send_state()
    kStateUnwanted,   // nobody waits for it any more, and none was given
    kStateSent,       // the state that was given is not read any more, sent or not
    kStateReceived,   // take_state() has it; `step` is the last step in it. With a `status` that
                      // is not ok: there was no memory, and the resync is over
    kPushDone,        // of a store: layer `tensor` of iteration `step` is counted, or `status`
    kPullDone,        // of a store: layer `tensor` is here, with clock `step`, or `status`
    kOperationDone,   // operation `operation` of group `tensor` is over: `status`, `non_finite`
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
  Status status;
  std::uint64_t operation = 0;
  OperationDone done;
};

// What the results of a finished step said. Kept for the last kReportedSteps steps.
struct StepReport {
  Step step = 0;             // 0: none
  std::uint16_t k = 0;       // the least of its chunks; 0: one has nobody
  std::uint64_t weight = 0;  // likewise
  // The first of its chunks that any rank is in, the ranks in it, and ranks that it could have had:
  // a share of the world, equal on all ranks that have applied the step. 0 when no chunk has any.
  ChunkIndex first_chunk = UINT32_MAX;
  std::uint16_t first_members = 0;
  std::uint16_t first_may_count = 0;
  std::uint16_t mask_words = 0;
  std::array<std::uint64_t, kMaskWords> in_every{};  // ranks that are in every chunk
  std::array<std::uint64_t, kMaskWords> in_any{};    // in at least one
};
inline constexpr std::size_t kReportedSteps = 16;

// Another rank's state.
struct ReceivedState {
  std::unique_ptr<std::uint8_t[]> data;
  std::uint64_t bytes = 0;
  Step step = 0;  // the last one that it contains
};

// What the current step waits for.
struct Stall {
  DurationNs stalled_ns = 0;  // since something of it came last; 0: nothing waits
  std::string text;           // tensors, ranks, when each was last heard
  std::array<std::uint64_t, kMaskWords> missing{};  // ranks, as far as an appliance has said
};

// What the job runs, as the appliance said at the join.
struct JobFacts {
  PolicyOptions policy;
  std::uint16_t window_steps = 0;
  std::uint32_t resync_hold_ms = 0;
  AveragingChoice averaging{};  // never kDefault
};

// A datagram: what was written for it, then `payload` where it lies.
struct Transmit {
  std::size_t bytes = 0;  // written
  // The rest, in the memory of a Submission: it is the session's until its next handle_...() call,
  // or leave().
  std::span<const std::uint8_t> payload;
  std::uint16_t port_offset = 0;  // add to the appliance's port: 0 control, 1 + shard data
  std::uint16_t address = 0;      // of SessionOptions::addresses
  Priority priority = 0;
};

// Copies the payload behind what was written at the front of `out`: the whole datagram.
inline std::span<const std::uint8_t> gather(const Transmit& transmit,
                                            std::span<std::uint8_t> out) noexcept {
  DCHECK(transmit.bytes + transmit.payload.size() <= out.size());
  if (!transmit.payload.empty())
    std::memcpy(out.data() + transmit.bytes, transmit.payload.data(), transmit.payload.size());
  return out.first(transmit.bytes + transmit.payload.size());
}

enum class SessionState : std::uint8_t { kJoining, kForming, kRunning, kLeaving, kClosed };

}  // namespace sluice::client

// Whether a process gets the rank that it asks for.
//
// Pure functions from a request and the facts of the job to acceptance or refusal; a refusal prints
// both values that differ. Jobs::join() has proven the secret before, and carries the decision out.
// A check returns the refusal, or one that is ok().
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "aggregator/jobs/entry.h"

namespace sluice::agg {

// A join whose secret is proven, with its sender.
struct JoinRequest {
  const wire::Join& join;
  Rank rank;
  std::string_view address;                // printable
  std::size_t max_datagram_bytes = 0;      // of the appliance's port; 0: unknown
  TimeNs now = 0;                          // active
  std::span<const std::uint8_t> prints{};  // of its tensors, as they travel

  std::string_view name() const noexcept { return {join.name, join.name_bytes}; }
  // The job of kind operations gives a rank to it.
  bool asks_any_rank() const noexcept {
    return rank == kAnyRank && join.kind == JobKind::kOperations;
  }
};

struct [[nodiscard]] Refusal {
  wire::RefuseCode code{};
  std::string text;
  std::optional<wire::Differs> difference{};  // where tensors differ, as far as that is known

  bool ok() const noexcept { return code == wire::RefuseCode{}; }
};
Refusal no(wire::RefuseCode code, std::string why);

// The host of an address "10.0.0.2:40000", and a job's name up to its first slash.
constexpr std::string_view host_of(std::string_view address) noexcept {
  return address.substr(0, address.rfind(':'));
}
constexpr std::string_view prefix_of(std::string_view name) noexcept {
  return name.substr(0, name.find('/'));
}

// The jobs and the memory in use, with memory that is on its way back.
struct Usage {
  std::size_t jobs = 0;
  std::size_t bytes = 0;
  std::size_t returning_jobs = 0;
  std::size_t returning_bytes = 0;
  std::size_t yielding_jobs = 0;  // jobs that make way for others
  std::size_t yielding_bytes = 0;
  Share of_address;  // jobs that the same host has founded, without those whose memory returns
  Share of_prefix;   // jobs with the request's prefix, without those whose memory returns
};

// The job that a request asks for.
struct JobDecision {
  enum class Kind : std::uint8_t {
    kRefuse,
    kJoin,        // the request is for the job under its name
    kAskMembers,  // the job under its name is of another run, whose members may have died just now:
                  // they are asked
    kReplace,     // the job is of another run and makes way, or of this one before it moved, or
                  // before a process came that has its store's values; then decide again, without
                  // it
    kAdopt,       // the job is a kept store that the request agrees with: it is this run's now
    kFound,       // a new job, of `spec` but for its id
    kMakeRoom,    // a new job when another has made way, which happens once all ranks ask
    kLater,       // a new job when the shards have released one that is being removed; the worker
                  // asks again. Or the job has moved on, and the worker will follow
  };
  Kind kind{};
  Refusal refusal;  // kRefuse
  JobSpec spec;     // kFound
};
// `entry`: the job under the request's name; null if there is none. A request of the job's own run
// goes by the options with which the job began, any other by the latest.
JobDecision decide_job(const JoinRequest& request, const JobsOptions& latest, const JobEntry* entry,
                       const Usage& usage, const PausableClock& clock);

// Whether the process gets the rank, of a job that the request agrees with.
struct RankDecision {
  enum class Kind : std::uint8_t {
    kRefuse,
    kAcceptAgain,    // the process has the rank, and the answer to its join was lost
    kRevive,         // the process had the rank, was only frozen, and no other took it
    kIgnore,         // the join is a late copy or too early; a worker that still wants asks again
    kAskHolder,      // a second process is a hint that the holder has ended: the holder is asked
    kLater,          // a store that resumes begins without the process, which joins it then
    kTake,           // the process takes a rank of a job that forms, or of a silent member
    kTakeOfRunning,  // the same in a job that goes on: shard 0 must let the process in first
  };
  Kind kind{};
  Refusal refusal;  // kRefuse
};
RankDecision decide_rank(const JoinRequest& request, const JobEntry& entry,
                         const PausableClock& clock);

// Whether the members of the job under the request's name are being asked for this run's sake.
bool is_asked(const JobEntry& entry, const JoinRequest& request) noexcept;

// The parts of decide_job(), in its order.
Refusal check_size(const JoinRequest& request, std::size_t arrived_bytes);
Refusal check_request(const JoinRequest& request, const JobsOptions& options);
Refusal check_agreement(const JoinRequest& request, const JobsOptions& options,
                        const JobEntry& entry);
Refusal check_shares(const JoinRequest& request, const JobSpec& spec, const JobsOptions& options,
                     const Usage& usage);
Refusal check_room(const JobSpec& spec, const JobsOptions& options, const Usage& usage);

// options.cc: how the job chooses k. The options come from the join, else from the configuration.
PolicyOptions effective_policy(const JoinRequest& request, const JobsOptions& options) noexcept;
// The join or the configuration for the job's name may ask for it.
bool effective_reproducible(const JoinRequest& request, const JobsOptions& options) noexcept;
Refusal check_policy(const JoinRequest& request, const JobsOptions& options);
Refusal check_policy_agreement(const JoinRequest& request, const JobsOptions& options,
                               const JobEntry& entry);
// Whether the ranks register the same tensors and prune alike: layout.cc.
Refusal check_layout_agreement(const JoinRequest& request, const JobEntry& entry);
// Whether there is such a store, and all ranks mean the same one. Precondition: the rest of the
// request makes sense; kind kStore.
Refusal check_store_request(const JoinRequest& request, const JobsOptions& options);
Refusal check_store_agreement(const JoinRequest& request, const JobEntry& entry);
// The same of operations: operations_request.cc.
Refusal check_operations_request(const JoinRequest& request, const JobsOptions& options);
// Whether both mean an elastic job, or both do not.
Refusal check_operations_agreement(const JoinRequest& request, const JobEntry& entry);
OperationsSpec operations_spec(const JoinRequest& request, const JobsOptions& options) noexcept;
StoreSpec store_spec(const JoinRequest& request, const JobsOptions& options) noexcept;
// Whether the process may be in a job that goes on from an appliance that is lost: no rank of a
// synchronous job is a new process. `entry`: null if there is no such job. rank.cc.
Refusal check_resumption(const JoinRequest& request, const JobsOptions& options,
                         const JobEntry* entry);
// A job that leaves stragglers behind keeps more steps for them, as far as a job's memory allows.
void size_windows(JobSpec& spec, std::size_t max_job_bytes) noexcept;

}  // namespace sluice::agg

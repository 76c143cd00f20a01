// What the workers of one job do, as a pure function of the plan: tensors, gradients and their
// order, tensors that are left out, the ends of ranks. The workers and the oracle both read the
// plan, so the oracle can recompute every sum.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "client/core/session.h"
#include "tests/sim/rank_set.h"

namespace sluice::sim {

struct CollectivePlan {
  Step before_step = 1;  // runs when the rank is about to start this gradient step
  CollectiveKind kind{};
  Rank root;
  std::uint32_t size_bytes = 0;
};

enum class Ending : std::uint8_t {
  kLeave,     // leave() after last_step
  kUneven,    // as kLeave, where uneven ends are meant
  kAbnormal,  // leave() with an error after last_step
  kStay,      // neither: the test decides
  kTogether,  // leave() when all others have taken their last step too, or are gone for good
};

struct RankPlan {
  TimeNs start_at = 0;
  Step last_step = 1;  // the last gradient step it takes part in
  Ending ending = Ending::kLeave;
  DurationNs compute_max_ns = kMillisecond;  // between two submissions, drawn each time
  DurationNs step_delay_ns = 0;              // before the first submission of every step
  DurationNs jitter_ns = 0;                  // mean of a further delay, drawn for each step
  Step hiccup_step = 0;                      // the step that takes hiccup_ns longer, once
  DurationNs hiccup_ns = 0;
};

struct JobPlan {
  std::uint64_t seed = 1;
  std::string name = "job";
  std::uint64_t run_id = 1;
  std::string secret;
  std::uint16_t chunk_bytes = 256;
  std::vector<client::TensorSpec> tensors;
  AveragingChoice averaging{};
  Dtype wire = Dtype::kFloat32;  // how float32 travels
  bool allow_nil = true;
  bool reproducible = false;               // sums in the order of ranks
  bool reproducible_of_appliance = false;  // its configuration says so, the sessions do not
  bool inexact = false;                    // gradients whose sum depends on the order
  bool call_end_step = false;              // after every step, needed or not
  bool pipelined = false;       // submit a tensor's next step as soon as its last one is done
  bool in_place = false;        // input and output share memory
  bool random_order = true;     // each rank submits in an order of its own, new at each step
  bool backward_order = false;  // unless random: the last tensor first, as backward passes do
  bool random_priority = true;  // else the tensor's index
  bool manual = false;          // the workers do nothing by themselves
  std::uint32_t nil_ppm = 0;    // of (rank, step, tensor): not submitted
  std::function<bool(Rank, Step, std::uint32_t)> nil_rule;  // replaces nil_ppm when set
  bool nil_output = false;       // a tensor left out is submitted without input, to get the average
  bool forget_end_step = false;  // though tensors were not submitted
  // The time between the submission of `tensor` and of the next one; replaces compute_max_ns when
  // set.
  std::function<DurationNs(Step, std::uint32_t tensor)> gap_rule;
  bool move_buffers = false;  // fresh memory for every submission, as after a bucket rebuild
  bool flush_last = false;    // the last step of a rank carries its whole residual
  bool zero_weights = false;  // the last rank contributes with weight 0
  // Of a store, or of operations: ranks may be lost. Of a store any rank may then be asked for the
  // initial values, so each gives them.
  bool loses_ranks = false;
  bool check_values = true;                 // false: the test submits its own numbers
  std::uint32_t state_bytes = 500;          // of a replica, for a resync: at least 8
  std::vector<CollectivePlan> collectives;  // by before_step
  std::vector<RankPlan> ranks;
  bool policy_of_appliance = false;  // the sessions leave the policy to the appliance's options
  client::SessionOptions session;    // timeouts and limits; identity is filled in per worker

  std::uint16_t world_size() const { return static_cast<std::uint16_t>(ranks.size()); }
  Step steps() const;  // of the rank that stays longest
  // Steps may complete without some ranks: the workers catch up and resync.
  bool tolerates_stragglers() const {
    return session.has_policy && session.policy.tolerates_stragglers();
  }
  bool is_store() const { return session.store.has_value(); }
  bool is_operations() const { return session.operations; }
  bool requeues() const {
    return tolerates_stragglers() && session.policy.late == LateMode::kRequeue;
  }
  // The averaging of an output; the library chooses where the plan does not.
  AveragingChoice averaged_by() const {
    if (averaging != AveragingChoice::kDefault) return averaging;
    return requeues() ? AveragingChoice::kWorld : AveragingChoice::kWeight;
  }
  // The time of the rank's computation before the first submission of a step.
  DurationNs compute_ns(Rank rank, Step step) const;

  // Whether the tensor is lossy on the wire (is_lossy), and the three reasons.
  bool is_rounded(std::uint32_t tensor) const {
    return wire != Dtype::kFloat32 && tensors[tensor].dtype == Dtype::kFloat32 &&
           !tensors[tensor].exact;
  }
  bool is_pruned(std::uint32_t tensor) const {
    const client::TensorSpec& spec = tensors[tensor];
    return session.prune.rule != client::PruneRule::kOff && spec.dtype == Dtype::kFloat32 &&
           !spec.exact && !spec.dense && spec.elem_count >= session.prune.min_elems;
  }
  // Momentum correction: a velocity travels in the place of the gradient.
  bool has_velocity(std::uint32_t tensor) const {
    return session.prune.momentum > 0 && tensors[tensor].dtype == Dtype::kFloat32 &&
           !tensors[tensor].exact;
  }
  bool is_lossy(std::uint32_t tensor) const {
    return is_rounded(tensor) || is_pruned(tensor) || has_velocity(tensor);
  }

  // Small integers (-8 .. 7), so that sums are exact in every order and every dtype. If inexact:
  // these over powers of three, so that every addition rounds.
  // Where values are to be lost on the way: -4096 .. 4095, and -1024 .. 1023 where residuals grow.
  // Rounded, they are still integers with exact sums. A velocity needs one bit more for each step,
  // so its gradients are the small ones.
  float gradient(Rank rank, Step step, std::uint32_t tensor, std::uint64_t elem) const;
  bool is_nil(Rank rank, Step step, std::uint32_t tensor) const;
  std::uint32_t weight(Rank rank, Step step) const;
  bool takes_part(Rank rank, Step step) const { return step <= ranks[rank.value].last_step; }
  std::uint8_t broadcast_byte(std::size_t collective, std::size_t at) const;
  std::vector<std::uint32_t> submission_order(Rank rank, Step step) const;
  Priority priority(Rank rank, Step step, std::uint32_t tensor) const;

  // The sum of one element over the ranks of `mask`, in the order of ranks, without NILs.
  float sum(const RankSet& mask, Step step, std::uint32_t tensor, std::uint64_t elem) const;
};

// The checksum that stands for a replica's parameters, and the bytes that carry it in a resync.
inline constexpr std::uint64_t kFirstReplica = 0;
std::vector<std::uint8_t> encode_state(const JobPlan& plan, std::uint64_t replica, Step step);
bool decode_state(const JobPlan& plan, std::span<const std::uint8_t> state, Step step,
                  std::uint64_t& replica);

// A plan with `workers` ranks that all take `steps` steps over float32 tensors of these sizes.
JobPlan make_plan(std::uint16_t workers, Step steps, const std::vector<std::uint64_t>& elem_counts);

// One element in its dtype's bytes, independent of the fold kernels: round to nearest even.
void store_element(Dtype dtype, float value, std::uint8_t* to);
float load_element(Dtype dtype, const std::uint8_t* from);

}  // namespace sluice::sim

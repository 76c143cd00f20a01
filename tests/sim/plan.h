// What the workers of one job do, as a pure function of the plan: which tensors, which gradients in
// which order, which are left out, when ranks stop. Both the workers and the oracle read it, so the
// oracle can recompute every sum.
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
  kUneven,    // likewise, where uneven ends are meant
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
  DurationNs jitter_ns = 0;                  // mean of what comes on top, drawn for each step
  Step hiccup_step = 0;                      // in this step it takes so much longer, once
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
  bool in_place = false;        // input and output are the same memory
  bool random_order = true;     // each rank submits in an order of its own, new at each step
  bool backward_order = false;  // unless random: the last tensor first, as backward passes do
  bool random_priority = true;  // else the tensor's index
  bool manual = false;          // the workers do nothing by themselves
  std::uint32_t nil_ppm = 0;    // of (rank, step, tensor): not submitted
  std::function<bool(Rank, Step, std::uint32_t)> nil_rule;  // instead, when set
  bool nil_output = false;       // a tensor left out is submitted without input, to get the average
  bool forget_end_step = false;  // though tensors were not submitted
  // Between the submission of `tensor` and of the next one; instead of compute_max_ns, when set.
  std::function<DurationNs(Step, std::uint32_t tensor)> gap_rule;
  bool move_buffers = false;  // fresh memory for every submission, as after a bucket rebuild
  bool flush_last = false;    // a rank's last step takes along what was left behind
  bool zero_weights = false;  // the last rank contributes with weight 0
  // Of a store: ranks may be lost, so each gives the initial values, or the one that does might be.
  bool loses_ranks = false;
  bool check_values = true;                 // false: the test submits its own numbers
  std::uint32_t state_bytes = 500;          // of a replica, for a resync: at least 8
  std::vector<CollectivePlan> collectives;  // by before_step
  std::vector<RankPlan> ranks;
  bool policy_of_appliance = false;  // the sessions leave the policy to the appliance's options
  client::SessionOptions session;    // timeouts and limits; identity is filled in per worker

  std::uint16_t world_size() const { return static_cast<std::uint16_t>(ranks.size()); }
  Step steps() const;  // of the rank that stays longest
  // Steps may be complete without some of the ranks: the workers catch up and resync.
  bool tolerates_stragglers() const {
    return session.has_policy && session.policy.tolerates_stragglers();
  }
  bool is_store() const { return session.store.has_value(); }
  bool requeues() const {
    return tolerates_stragglers() && session.policy.late == LateMode::kRequeue;
  }
  // What an output holds, for the choice that nobody made too.
  AveragingChoice averaged_by() const {
    if (averaging != AveragingChoice::kDefault) return averaging;
    return requeues() ? AveragingChoice::kWorld : AveragingChoice::kWeight;
  }
  // What the rank computes before it submits the first tensor of a step.
  DurationNs compute_ns(Rank rank, Step step) const;

  // Whether the tensor travels at a loss, and why.
  bool is_rounded(std::uint32_t tensor) const {
    return wire != Dtype::kFloat32 && tensors[tensor].dtype == Dtype::kFloat32 &&
           !tensors[tensor].exact;
  }
  bool is_pruned(std::uint32_t tensor) const {
    const client::TensorSpec& spec = tensors[tensor];
    return session.prune.rule != client::PruneRule::kOff && spec.dtype == Dtype::kFloat32 &&
           !spec.exact && !spec.dense && spec.elem_count >= session.prune.min_elems;
  }
  // Momentum correction: a velocity travels in the gradient's place.
  bool has_velocity(std::uint32_t tensor) const {
    return session.prune.momentum > 0 && tensors[tensor].dtype == Dtype::kFloat32 &&
           !tensors[tensor].exact;
  }
  bool is_lossy(std::uint32_t tensor) const {
    return is_rounded(tensor) || is_pruned(tensor) || has_velocity(tensor);
  }

  // Small integers, so that sums are exact in every order and every dtype: -8 .. 7. If inexact,
  // these over powers of three, so that every addition rounds. Where something shall be lost on the
  // way, -4096 .. 4095, and -1024 .. 1023 where it gathers: rounded they are integers still, and
  // sums exact. A velocity needs a bit more a step: its gradients are the small ones.
  float gradient(Rank rank, Step step, std::uint32_t tensor, std::uint64_t elem) const;
  bool is_nil(Rank rank, Step step, std::uint32_t tensor) const;
  std::uint32_t weight(Rank rank, Step step) const;
  bool takes_part(Rank rank, Step step) const { return step <= ranks[rank.value].last_step; }
  std::uint8_t broadcast_byte(std::size_t collective, std::size_t at) const;
  std::vector<std::uint32_t> submission_order(Rank rank, Step step) const;
  Priority priority(Rank rank, Step step, std::uint32_t tensor) const;

  // The sum over the ranks of `mask` of one element in their order, leaving out NILs.
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

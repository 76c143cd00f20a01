#include "client/bcube/legs.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/member/join.h"

namespace sluice::client {
namespace {

// All servers of a leg's switch give its job the same name, and no other leg there has it. The
// rendezvous of all levels have one name, so that those meet who should not; but a server is host
// of rendezvous at all its levels, and of standbys. A standby's name tells `home`, the switch that
// this one stands in for.
std::string job_name_of(const SessionOptions& options, const LegAddress& address, BcubeMode mode,
                        std::uint32_t home) {
  const std::string level = mode == BcubeMode::kPlain ? "." + std::to_string(address.level) : "";
  if (address.role >= Role::kRendezvous)
    return options.job_name + "." + name_of(address.role) + level +
           (address.role == Role::kRendezvous ? "" : "." + std::to_string(home));
  std::string name = options.job_name + ".t" + std::to_string(address.thread) + ".s" +
                     std::to_string(address.stage) + "." + name_of(address.role);
  if (mode == BcubeMode::kPlain) name += "." + std::to_string(address.host);
  return name;
}

}  // namespace

Status check_legs(const SessionOptions& options, const Bcube& bcube, const Layout& layout) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, error_prefix(options) + why);
  };
  if (Status status = bcube.check_world(options.world_size); !status.ok())
    return refuse(status.message());
  CHECK(options.rank.value < options.world_size);
  if (options.has_policy && options.policy.tolerates_stragglers())
    return refuse(
        "a BCube sums synchronously: each of its parts would choose its own k workers, and parts "
        "of one gradient would average different ones; ask for policy sync");
  if (options.operations) return refuse("a BCube has no groups; use one appliance");
  if (options.store) return refuse("a BCube has no store; use one appliance");
  if (options.schedule.policy == Schedule::kCredit || options.schedule.policy == Schedule::kProphet)
    return refuse(
        "over a BCube packets leave in the order of schedule strict or fifo; ask for one");
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    if (layout.tensor(tensor).dtype != Dtype::kFloat32)
      return refuse("tensor '" + layout.tensor(tensor).name +
                    "': half-way sums travel as float32, so a BCube takes float32 tensors; a wire "
                    "format makes them narrow on the way");
  const LegAddress leg{.thread = bcube.levels() - 1,
                       .stage = bcube.levels() - 1,
                       .role = Role::kDown,
                       .host = bcube.switch_ports() - 1};
  const std::uint32_t last = bcube.switches_per_level() - 1;
  const std::size_t suffix =
      std::max(job_name_of(options, leg, BcubeMode::kPlain, last).size(),
               job_name_of(options, {.role = Role::kStates}, BcubeMode::kPlain, last).size()) -
      options.job_name.size();
  if (options.job_name.size() + suffix > kMaxJobNameBytes)
    return refuse("over a BCube a job's name has at most " +
                  std::to_string(kMaxJobNameBytes - suffix) + " bytes, not " +
                  std::to_string(options.job_name.size()));
  return {};
}

// ---- which legs there are ----

void LegPlanner::plan_slices() {
  legs_.first_slices.push_back(0);
  for (const Slice& slice : cut(bcube_, layout_)) {
    while (legs_.first_slices.size() <= slice.tensor)
      legs_.first_slices.push_back(static_cast<std::uint32_t>(legs_.slices.size()));
    SliceState state{.slice = slice,
                     .stages = bcube_.stages_owned(options_.rank.value, slice.owner, slice.thread),
                     .first_partial = legs_.partial_elems};
    if (state.stages != 0 && bcube_.levels() > 1) legs_.partial_elems += slice.elem_count;
    legs_.slices.push_back(std::move(state));
  }
  legs_.first_slices.push_back(static_cast<std::uint32_t>(legs_.slices.size()));
  CHECK(legs_.first_slices.size() == layout_.tensor_count() + 1);
}

// How a slice travels in a leg.
TensorSpec LegPlanner::spec_of(const LegAddress& address, const Slice& slice) const {
  const TensorSpec& whole = layout_.tensor(slice.tensor);
  const bool is_partial = address.role == Role::kUp && address.stage != 0;
  Hop hop = Hop::kFirst;
  if (address.role == Role::kDown) hop = Hop::kDown;
  if (address.role == Role::kTurn) hop = bcube_.levels() == 1 ? Hop::kWhole : Hop::kTurn;
  return {.name = whole.name,
          .elem_count = slice.elem_count,
          .exact = whole.exact || is_partial,
          .hop = hop,
          .relayed = true,
          .sparse = residuals_.prunes(slice.tensor)};
}

Status LegPlanner::make_leg(LegAddress address, std::vector<TensorSpec> tensors, TimeNs now,
                            const PrepareLeg& prepare) {
  Result<Layout> layout = Layout::create(std::move(tensors), layout_.chunk_bytes(), layout_.wire());
  if (!layout.ok()) return layout.status();
  SessionOptions options = options_;
  const std::uint32_t home = bcube_.switch_of(options_.rank.value, address.level);
  options.job_name = job_name_of(options_, address, mode_, home);
  options.rank = Rank{static_cast<std::uint16_t>(bcube_.digit(options_.rank.value, address.level))};
  options.world_size = static_cast<std::uint16_t>(bcube_.switch_ports());
  options.nonce += legs_.all.size();
  options.restart_timeout_ns = 0;  // the relay moves to another appliance
  options.has_policy = true;       // whatever the appliance has for those who ask for none
  options.policy = {};
  options.trace &= address.role < Role::kRendezvous || address.role == Role::kStandby;
  address.starts_late = address.role >= Role::kStates ||
                        (mode_ == BcubeMode::kPlain && address.host != options.rank.value);
  if (address.starts_late)
    options.connect_timeout_ns = std::max(options.connect_timeout_ns, options.join_timeout_ns);
  if (address.role != Role::kRendezvous) {  // in those the application's choices are compared
    options.averaging = AveragingChoice::kSum;
    options.allow_nil = true;
    options.prune = {};
  }
  if (prepare)
    if (Status status = prepare(address, options); !status.ok()) return status;
  const std::uint32_t first = bcube_.server_at(address.level, home, 0);
  const std::uint32_t apart = bcube_.server_at(address.level, home, 1) - first;
  options.appliance_address +=
      " (level " + std::to_string(address.level) + ", switch " +
      std::to_string(address.switch_index) +
      (address.role >= Role::kStates ? " for " + std::to_string(home) : "") +
      ", whose rank r is worker " + std::to_string(first) + " + " + std::to_string(apart) + " r";
  if (mode_ == BcubeMode::kPlain)  // whose silence is that rank's
    options.appliance_address += ", where rank " + std::to_string(address.host) + " sums";
  options.appliance_address += ")";
  legs_.all.emplace_back(address, std::move(options), std::move(layout).value(), now);
  return {};
}

Status LegPlanner::make_slices_leg(const LegAddress& address, TimeNs now,
                                   const PrepareLeg& prepare) {
  std::vector<std::uint32_t> slices;
  std::vector<TensorSpec> tensors;
  for (std::uint32_t index = 0; index < legs_.slices.size(); ++index) {
    const SliceState& state = legs_.slices[index];
    const bool passes = state.slice.thread == address.thread && state.stages >= address.stage;
    const bool here = mode_ == BcubeMode::kAggregated ||
                      bcube_.digit(state.slice.owner, address.level) == address.host;
    if (!passes || !here) continue;
    slices.push_back(index);
    tensors.push_back(spec_of(address, state.slice));
  }
  if (slices.empty()) return {};
  const auto leg = static_cast<std::uint32_t>(legs_.all.size());
  for (std::uint32_t tensor = 0; tensor < slices.size(); ++tensor) {
    SliceState& state = legs_.slices[slices[tensor]];
    (address.role == Role::kDown ? state.down : state.up).push_back({leg, tensor});
  }
  Status status = make_leg(address, std::move(tensors), now, prepare);
  if (status.ok()) legs_.all.back().slices = std::move(slices);
  return status;
}

Result<Legs> LegPlanner::make(TimeNs now, const PrepareLeg& prepare) {
  plan_slices();
  const std::uint32_t rank = options_.rank.value;
  Status status;
  for (std::uint32_t level = 0; level < bcube_.levels() && status.ok(); ++level)
    status = make_leg(
        {.role = Role::kRendezvous, .level = level, .switch_index = bcube_.switch_of(rank, level)},
        {{.name = "who is here", .elem_count = bcube_.switch_ports(), .exact = true}}, now,
        prepare);
  // In the order of stages, so that a slice's stops stand in it.
  for (std::uint32_t thread = 0; thread < bcube_.levels(); ++thread)
    for (std::uint32_t stage = 0; stage < bcube_.levels(); ++stage)
      for (std::uint32_t host = 0; host < hosts() && status.ok(); ++host) {
        const std::uint32_t level = bcube_.level_of(thread, stage);
        LegAddress address{.thread = thread,
                           .stage = stage,
                           .role = stage == bcube_.levels() - 1 ? Role::kTurn : Role::kUp,
                           .level = level,
                           .switch_index = bcube_.switch_of(rank, level),
                           .host = host};
        status = make_slices_leg(address, now, prepare);
        if (!status.ok() || address.role == Role::kTurn) continue;
        address.role = Role::kDown;
        status = make_slices_leg(address, now, prepare);
      }
  legs_.first_standby = legs_.all.size();
  if (status.ok() && bcube_.levels() > 1) status = make_standbys(now, prepare);
  if (!status.ok()) return status;
  order();
  return std::move(legs_);
}

// The rows of a level, those of a host together, and for each host that has any the leg in which
// they are where the legs move to, from this number on.
std::vector<LegPlanner::StandbyLeg> LegPlanner::plan_standbys(std::uint32_t level,
                                                              std::uint32_t first_leg) {
  Failover& failover = legs_.failovers[level];
  std::vector<StandbyLeg> standbys;
  for (std::uint32_t host = 0; host < hosts(); ++host) {
    StandbyLeg standby{.host = host,
                       .first_row = static_cast<std::uint32_t>(failover.rows().size())};
    for (std::uint32_t index = 0; index < legs_.first_standby; ++index) {
      Leg& leg = legs_.all[index];
      const LegAddress& address = leg.address;
      if (address.level != level || address.host != host || address.role == Role::kRendezvous)
        continue;
      leg.first_row = static_cast<std::uint32_t>(failover.rows().size());
      for (std::uint32_t tensor = 0; tensor < leg.slices.size(); ++tensor) {
        const Slice& slice = legs_.slices[leg.slices[tensor]].slice;
        failover.add_row({.role = address.role,
                          .leg = index,
                          .tensor = tensor,
                          .standby = first_leg + static_cast<std::uint32_t>(standbys.size()),
                          .standby_tensor = static_cast<std::uint32_t>(standby.tensors.size())},
                         bcube_.digit(slice.owner, level));
        standby.tensors.push_back(spec_of(address, slice));
        standby.slices.push_back(leg.slices[tensor]);
      }
    }
    if (!standby.tensors.empty()) standbys.push_back(std::move(standby));
  }
  return standbys;
}

// Of each level two to agree on what becomes of its rows, and on the way back, and for each host
// one in which these are.
Status LegPlanner::make_standbys(TimeNs now, const PrepareLeg& prepare) {
  const std::uint32_t rank = options_.rank.value;
  legs_.why_none.resize(bcube_.levels());
  for (std::uint32_t level = 0; level < bcube_.levels(); ++level) {
    Failover& failover =
        legs_.failovers.emplace_back(bcube_.switch_ports(), bcube_.digit(rank, level));
    const auto states_leg = static_cast<std::uint32_t>(legs_.all.size());
    const Failover::Standbys agree{.states_leg = states_leg, .vote_leg = states_leg + 1};
    std::vector<StandbyLeg> standbys = plan_standbys(level, states_leg + 2);
    LegAddress address{
        .role = Role::kStates,
        .level = level,
        .switch_index = bcube_.switch_of(bcube_.detour_neighbour(rank, level), level)};
    const std::size_t elems = Handover::state_elems(bcube_.switch_ports(), failover.rows().size());
    Status status = make_leg(
        address, {{.name = "who has what", .elem_count = elems, .exact = true}}, now, prepare);
    if (status.code() == StatusCode::kNotFound) {
      legs_.why_none[level] = std::move(status);
      continue;
    }
    if (!status.ok()) return status;
    address.role = Role::kVote;
    status = make_leg(address,
                      {{.name = "who is back", .elem_count = bcube_.switch_ports(), .exact = true}},
                      now, prepare);
    address.role = Role::kStandby;
    for (StandbyLeg& standby : standbys) {
      address.host = standby.host;
      if (status.ok()) status = make_leg(address, std::move(standby.tensors), now, prepare);
      if (!status.ok()) return status;
      legs_.all.back().first_row = standby.first_row;
      legs_.all.back().slices = std::move(standby.slices);
    }
    if (!status.ok()) return status;
    failover.set_standbys(agree);
  }
  return {};
}

void LegPlanner::order() {
  CHECK(legs_.all.size() > bcube_.levels());
  legs_.send_order.resize(legs_.all.size());
  std::iota(legs_.send_order.begin(), legs_.send_order.end(), 0u);
  std::ranges::stable_sort(legs_.send_order, std::less<>(), [this](std::uint32_t leg) {
    const LegAddress& address = legs_.all[leg].address;
    const std::uint32_t stages = 2 * bcube_.levels();
    // Plain: else all servers of a switch would send to the same host first.
    const std::uint32_t own = bcube_.digit(options_.rank.value, address.level) % hosts();
    const std::uint32_t turn = (address.host + hosts() - own) % hosts();
    std::uint32_t passed = address.role == Role::kDown ? stages - address.stage : address.stage;
    if (address.role >= Role::kRendezvous) passed = stages + 1;
    return std::pair(stages + 1 - passed, turn);
  });
}

}  // namespace sluice::client

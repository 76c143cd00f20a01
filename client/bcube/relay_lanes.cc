// Which lanes a relay has, in which order they send, and how its servers meet.
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"
#include "client/core/member/join.h"

namespace sluice::client {
namespace {

// All servers of a lane's switch give its job the same name, and no other lane there has it. The
// meetings of all levels have one name, so that those meet who should not; but a server is host of
// meetings at all its levels, and of spares. A spare's name tells `home`, the switch that this one
// stands in for.
std::string job_name_of(const SessionOptions& options, const LanePlace& place, BcubeMode mode,
                        std::uint32_t home) {
  const std::string level = mode == BcubeMode::kPlain ? "." + std::to_string(place.level) : "";
  if (place.way >= Way::kMeeting)
    return options.job_name + "." + name_of(place.way) + level +
           (place.way == Way::kMeeting ? "" : "." + std::to_string(home));
  std::string name = options.job_name + ".t" + std::to_string(place.thread) + ".s" +
                     std::to_string(place.stage) + "." + name_of(place.way);
  if (mode == BcubeMode::kPlain) name += "." + std::to_string(place.host);
  return name;
}

}  // namespace

Status Relay::check(const SessionOptions& options, const Bcube& bcube, const Layout& layout) {
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
  if (options.store) return refuse("a BCube has no store; use one appliance");
  if (options.schedule.policy == Schedule::kCredit || options.schedule.policy == Schedule::kProphet)
    return refuse(
        "over a BCube packets leave in the order of schedule strict or fifo; ask for one");
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    if (layout.tensor(tensor).dtype != Dtype::kFloat32)
      return refuse("tensor '" + layout.tensor(tensor).name +
                    "': half-way sums travel as float32, so a BCube takes float32 tensors; a wire "
                    "format makes them narrow on the way");
  const LanePlace lane{.thread = bcube.levels() - 1,
                       .stage = bcube.levels() - 1,
                       .way = Way::kDown,
                       .host = bcube.switch_ports() - 1};
  const std::uint32_t last = bcube.switches_per_level() - 1;
  const std::size_t suffix =
      std::max(job_name_of(options, lane, BcubeMode::kPlain, last).size(),
               job_name_of(options, {.way = Way::kSurvey}, BcubeMode::kPlain, last).size()) -
      options.job_name.size();
  if (options.job_name.size() + suffix > kMaxJobNameBytes)
    return refuse("over a BCube a job's name has at most " +
                  std::to_string(kMaxJobNameBytes - suffix) + " bytes, not " +
                  std::to_string(options.job_name.size()));
  return {};
}

// ---- which lanes there are ----

void Relay::plan_passages() {
  std::uint64_t half_count = 0;
  first_passages_.push_back(0);
  for (const Slice& slice : cut(bcube_, layout_)) {
    while (first_passages_.size() <= slice.tensor)
      first_passages_.push_back(static_cast<std::uint32_t>(passages_.size()));
    Passage passage{.slice = slice,
                    .stages = bcube_.stages_owned(options_.rank.value, slice.owner, slice.thread),
                    .first_half = half_count};
    if (passage.stages != 0 && bcube_.levels() > 1) half_count += slice.elem_count;
    passages_.push_back(std::move(passage));
  }
  first_passages_.push_back(static_cast<std::uint32_t>(passages_.size()));
  CHECK(first_passages_.size() == layout_.tensor_count() + 1);
  halves_.resize(half_count);
}

// How a slice travels in a lane.
TensorSpec Relay::spec_of(const LanePlace& place, const Slice& slice) const {
  const TensorSpec& whole = layout_.tensor(slice.tensor);
  const bool half_way = place.way == Way::kUp && place.stage != 0;
  Leg leg = Leg::kFirst;
  if (place.way == Way::kDown) leg = Leg::kDown;
  if (place.way == Way::kTurn) leg = bcube_.levels() == 1 ? Leg::kWhole : Leg::kTurn;
  return {.name = whole.name,
          .elem_count = slice.elem_count,
          .exact = whole.exact || half_way,
          .leg = leg,
          .relayed = true,
          .sparse = residuals_.prunes(slice.tensor)};
}

Status Relay::make_lane(LanePlace place, std::vector<TensorSpec> tensors, TimeNs now,
                        const PrepareLane& prepare) {
  Result<Layout> layout = Layout::create(std::move(tensors), layout_.chunk_bytes(), layout_.wire());
  if (!layout.ok()) return layout.status();
  SessionOptions options = options_;
  const std::uint32_t home = bcube_.switch_of(options_.rank.value, place.level);
  options.job_name = job_name_of(options_, place, mode_, home);
  options.rank = Rank{static_cast<std::uint16_t>(bcube_.digit(options_.rank.value, place.level))};
  options.world_size = static_cast<std::uint16_t>(bcube_.switch_ports());
  options.nonce += lanes_.size();
  options.has_policy = true;  // whatever the appliance has for those who ask for none
  options.policy = {};
  options.trace &= place.way < Way::kMeeting || place.way == Way::kSpare;
  place.starts_late =
      place.way >= Way::kSurvey || (mode_ == BcubeMode::kPlain && place.host != options.rank.value);
  if (place.starts_late)
    options.connect_timeout_ns = std::max(options.connect_timeout_ns, options.join_timeout_ns);
  if (place.way != Way::kMeeting) {  // in those the application's choices are compared
    options.averaging = AveragingChoice::kSum;
    options.allow_nil = true;
    options.prune = {};
  }
  if (prepare)
    if (Status status = prepare(place, options); !status.ok()) return status;
  const std::uint32_t first = bcube_.server_at(place.level, home, 0);
  const std::uint32_t apart = bcube_.server_at(place.level, home, 1) - first;
  options.appliance_address +=
      " (level " + std::to_string(place.level) + ", switch " + std::to_string(place.switch_index) +
      (place.way >= Way::kSurvey ? " for " + std::to_string(home) : "") +
      ", whose rank r is worker " + std::to_string(first) + " + " + std::to_string(apart) + " r";
  if (mode_ == BcubeMode::kPlain)  // whose silence is that rank's
    options.appliance_address += ", where rank " + std::to_string(place.host) + " sums";
  options.appliance_address += ")";
  lanes_.emplace_back(place, std::move(options), std::move(layout).value(), now);
  return {};
}

Status Relay::make_slices_lane(const LanePlace& place, TimeNs now, const PrepareLane& prepare) {
  std::vector<std::uint32_t> slices;
  std::vector<TensorSpec> tensors;
  for (std::uint32_t index = 0; index < passages_.size(); ++index) {
    const Passage& passage = passages_[index];
    const bool passes = passage.slice.thread == place.thread && passage.stages >= place.stage;
    const bool here = mode_ == BcubeMode::kAggregated ||
                      bcube_.digit(passage.slice.owner, place.level) == place.host;
    if (!passes || !here) continue;
    slices.push_back(index);
    tensors.push_back(spec_of(place, passage.slice));
  }
  if (slices.empty()) return {};
  const auto lane = static_cast<std::uint32_t>(lanes_.size());
  for (std::uint32_t tensor = 0; tensor < slices.size(); ++tensor) {
    Passage& passage = passages_[slices[tensor]];
    (place.way == Way::kDown ? passage.down : passage.up).push_back({lane, tensor});
  }
  Status status = make_lane(place, std::move(tensors), now, prepare);
  if (status.ok()) lanes_.back().slices = std::move(slices);
  return status;
}

Status Relay::make_lanes(TimeNs now, const PrepareLane& prepare) {
  const std::uint32_t rank = options_.rank.value;
  Status status;
  for (std::uint32_t level = 0; level < bcube_.levels() && status.ok(); ++level)
    status = make_lane(
        {.way = Way::kMeeting, .level = level, .switch_index = bcube_.switch_of(rank, level)},
        {{.name = "who is here", .elem_count = bcube_.switch_ports(), .exact = true}}, now,
        prepare);
  // In the order of stages, so that a slice's stops stand in it.
  for (std::uint32_t thread = 0; thread < bcube_.levels(); ++thread)
    for (std::uint32_t stage = 0; stage < bcube_.levels(); ++stage)
      for (std::uint32_t host = 0; host < hosts() && status.ok(); ++host) {
        const std::uint32_t level = bcube_.level_of(thread, stage);
        LanePlace place{.thread = thread,
                        .stage = stage,
                        .way = stage == turn_stage() ? Way::kTurn : Way::kUp,
                        .level = level,
                        .switch_index = bcube_.switch_of(rank, level),
                        .host = host};
        status = make_slices_lane(place, now, prepare);
        if (!status.ok() || place.way == Way::kTurn) continue;
        place.way = Way::kDown;
        status = make_slices_lane(place, now, prepare);
      }
  first_spare_ = lanes_.size();
  if (status.ok() && bcube_.levels() > 1) status = make_spares(now, prepare);
  if (status.ok()) order_lanes();
  if (status.ok() && options_.trace) plan_trace();
  return status;
}

// The rows of a level, those of a host together, and for each host that has any the lane in which
// they are where the lanes move to, from this number on.
std::vector<Relay::SpareLane> Relay::plan_spares(std::uint32_t level, std::uint32_t first_lane) {
  Failover& failover = failovers_[level];
  std::vector<SpareLane> spares;
  for (std::uint32_t host = 0; host < hosts(); ++host) {
    SpareLane spare{.host = host, .first_row = static_cast<std::uint32_t>(failover.rows().size())};
    for (std::uint32_t index = 0; index < first_spare_; ++index) {
      Lane& lane = lanes_[index];
      const LanePlace& place = lane.place;
      if (place.level != level || place.host != host || place.way == Way::kMeeting) continue;
      lane.first_row = static_cast<std::uint32_t>(failover.rows().size());
      for (std::uint32_t tensor = 0; tensor < lane.slices.size(); ++tensor) {
        const Slice& slice = passages_[lane.slices[tensor]].slice;
        failover.add_row({.way = place.way,
                          .lane = index,
                          .tensor = tensor,
                          .spare = first_lane + static_cast<std::uint32_t>(spares.size()),
                          .spare_tensor = static_cast<std::uint32_t>(spare.tensors.size())},
                         bcube_.digit(slice.owner, level));
        spare.tensors.push_back(spec_of(place, slice));
        spare.slices.push_back(lane.slices[tensor]);
      }
    }
    if (!spare.tensors.empty()) spares.push_back(std::move(spare));
  }
  return spares;
}

// Of each level two to agree on what becomes of its rows, and on the way back, and for each host
// one in which these are.
Status Relay::make_spares(TimeNs now, const PrepareLane& prepare) {
  const std::uint32_t rank = options_.rank.value;
  ways_.resize(bcube_.levels());
  for (std::uint32_t level = 0; level < bcube_.levels(); ++level) {
    Failover& failover = failovers_.emplace_back(bcube_.switch_ports(), bcube_.digit(rank, level));
    const auto survey_lane = static_cast<std::uint32_t>(lanes_.size());
    const Failover::Spares agree{.survey_lane = survey_lane, .vote_lane = survey_lane + 1};
    std::vector<SpareLane> spares = plan_spares(level, survey_lane + 2);
    LanePlace place{.way = Way::kSurvey,
                    .level = level,
                    .switch_index = bcube_.switch_of(bcube_.detour_neighbour(rank, level), level)};
    const std::size_t elems = Handover::state_elems(bcube_.switch_ports(), failover.rows().size());
    Status status = make_lane(place, {{.name = "who has what", .elem_count = elems, .exact = true}},
                              now, prepare);
    if (status.code() == StatusCode::kNotFound) {
      why_moved_[level] = std::move(status);
      continue;
    }
    if (!status.ok()) return status;
    place.way = Way::kVote;
    status = make_lane(
        place, {{.name = "who is back", .elem_count = bcube_.switch_ports(), .exact = true}}, now,
        prepare);
    place.way = Way::kSpare;
    for (SpareLane& spare : spares) {
      place.host = spare.host;
      if (status.ok()) status = make_lane(place, std::move(spare.tensors), now, prepare);
      if (!status.ok()) return status;
      lanes_.back().first_row = spare.first_row;
      lanes_.back().slices = std::move(spare.slices);
    }
    if (!status.ok()) return status;
    failover.set_spares(agree);
    kept_.resize(halves_.size());
  }
  return {};
}

void Relay::order_lanes() {
  CHECK(lanes_.size() > bcube_.levels());
  send_order_.resize(lanes_.size());
  std::iota(send_order_.begin(), send_order_.end(), 0u);
  std::ranges::stable_sort(send_order_, std::less<>(), [this](std::uint32_t lane) {
    const LanePlace& place = lanes_[lane].place;
    const std::uint32_t stages = 2 * bcube_.levels();
    // Plain: else all servers of a switch would send to the same host first.
    const std::uint32_t own = bcube_.digit(options_.rank.value, place.level) % hosts();
    const std::uint32_t turn = (place.host + hosts() - own) % hosts();
    std::uint32_t passed = place.way == Way::kDown ? stages - place.stage : place.stage;
    if (place.way >= Way::kMeeting) passed = stages + 1;
    return std::pair(stages + 1 - passed, turn);
  });
}

// ---- how they meet ----

// Of a server at one of its levels, and of no other.
float Relay::name_of_self(std::uint32_t level, std::uint32_t rank) const noexcept {
  return static_cast<float>(1 + level * bcube_.servers() + rank);  // below 2^24
}

// Each gives its name at its place; weights are such that the average is the sum.
void Relay::meet(Lane& lane, TimeNs now) {
  const std::uint32_t level = lane.place.level;
  const std::uint32_t digit = bcube_.digit(options_.rank.value, level);
  std::vector<float>& names = meetings_[level];
  names.assign(bcube_.switch_ports(), 0);
  names[digit] = name_of_self(level, options_.rank.value);
  const Status status = lane.session.submit(
      {.input = names.data(), .output = names.data(), .weight = digit == 0}, now);
  if (!status.ok()) fail(status, now);
}

Status Relay::check_meeting(const Lane& lane) const {
  const std::uint32_t level = lane.place.level;
  for (std::uint32_t digit = 0; digit < bcube_.switch_ports(); ++digit) {
    const std::uint32_t rank = bcube_.server_at(level, lane.place.switch_index, digit);
    const auto name = static_cast<std::uint32_t>(meetings_[level][digit]);
    if (meetings_[level][digit] == name_of_self(level, rank)) continue;
    CHECK(name != 0);
    const std::uint32_t found_level = (name - 1) / bcube_.servers();
    return {StatusCode::kInvalidArgument,
            lane.session.place() + "level " + std::to_string(level) +
                " leads to another switch than its neighbours': there rank " +
                std::to_string(digit) + " is worker " +
                std::to_string((name - 1) % bcube_.servers()) + " with its level " +
                std::to_string(found_level) + ", not worker " + std::to_string(rank) +
                " with its level " + std::to_string(level) +
                "; check the addresses and cables of both"};
  }
  return {};
}

}  // namespace sluice::client

#include "client/bcube/relay.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/average.h"
#include "client/core/join.h"

namespace sluice::client {
namespace {

constexpr const char* name_of(Way way) noexcept {
  return way == Way::kUp ? "up" : way == Way::kTurn ? "turn" : "down";
}

// All servers of a lane's switch give its job the same name, and no other lane there has it.
std::string job_name_of(const SessionOptions& options, const LanePlace& place, BcubeMode mode) {
  std::string name = options.job_name + ".t" + std::to_string(place.thread) + ".s" +
                     std::to_string(place.stage) + "." + name_of(place.way);
  if (mode == BcubeMode::kPlain) name += "." + std::to_string(place.host);
  return name;
}

// What of a submission a wait for "no data" means.
constexpr std::uint32_t kNoWeight = 0;

}  // namespace

Relay::Relay(SessionOptions options, const Bcube& bcube, Layout layout)
    : options_(std::move(options)),
      bcube_(bcube),
      layout_(std::move(layout)),
      tensors_(options_, layout_, 1),
      progress_(layout_.tensor_count()),
      spares_(layout_.tensor_count()),
      events_(layout_.tensor_count() + 8) {}

Result<std::unique_ptr<Relay>> Relay::create(SessionOptions options, const Bcube& bcube,
                                             BcubeMode mode, Layout layout, TimeNs now) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, place_of(options) + why);
  };
  if (options.world_size != bcube.servers() || options.rank.value >= bcube.servers())
    return refuse("world size " + std::to_string(options.world_size) + ", but bcube(" +
                  std::to_string(bcube.switch_ports()) + "," + std::to_string(bcube.levels()) +
                  ") has " + std::to_string(bcube.servers()) + " servers");
  if (options.has_policy && options.policy.tolerates_stragglers())
    return refuse(
        "a BCube sums synchronously: each of its parts would choose its own k workers, and parts "
        "of one gradient would average different ones; ask for policy sync");
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    if (layout.tensor(tensor).dtype != Dtype::kFloat32 || layout.is_rounded(tensor))
      return refuse("tensor '" + layout.tensor(tensor).name +
                    "': half-way sums travel as float32, so a BCube takes float32 tensors, and "
                    "wire float32 alone");
  std::unique_ptr<Relay> relay(new Relay(std::move(options), bcube, std::move(layout)));
  if (Status status = relay->make_lanes(mode, now); !status.ok()) return status;
  return relay;
}

Status Relay::make_lanes(BcubeMode mode, TimeNs now) {
  const std::uint32_t rank = options_.rank.value;
  std::uint64_t half_count = 0;
  first_passages_.push_back(0);
  for (const Slice& slice : cut(bcube_, layout_)) {
    while (first_passages_.size() <= slice.tensor)
      first_passages_.push_back(static_cast<std::uint32_t>(passages_.size()));
    Passage passage{.slice = slice,
                    .stages = bcube_.stages_owned(rank, slice.owner, slice.thread),
                    .first_half = half_count};
    if (passage.stages != 0 && bcube_.levels() > 1) half_count += slice.elem_count;
    passages_.push_back(std::move(passage));
  }
  first_passages_.push_back(static_cast<std::uint32_t>(passages_.size()));
  CHECK(first_passages_.size() == layout_.tensor_count() + 1);
  halves_.resize(half_count);

  std::vector<std::uint32_t> slices;  // of the lane that is made
  const auto make_lane = [&](const LanePlace& place) -> Status {
    if (slices.empty()) return {};
    std::vector<TensorSpec> tensors;
    const auto lane = static_cast<std::uint32_t>(lanes_.size());
    for (const std::uint32_t index : slices) {
      Passage& passage = passages_[index];
      const Stop stop{.lane = lane, .tensor = static_cast<std::uint32_t>(tensors.size())};
      (place.way == Way::kDown ? passage.down : passage.up).push_back(stop);
      tensors.push_back({.name = layout_.tensor(passage.slice.tensor).name,
                         .elem_count = passage.slice.elem_count});
    }
    Result<Layout> layout = Layout::create(std::move(tensors), layout_.chunk_bytes());
    if (!layout.ok()) return layout.status();
    SessionOptions options = options_;
    options.job_name = job_name_of(options_, place, mode);
    options.rank = Rank{static_cast<std::uint16_t>(bcube_.digit(rank, place.level))};
    options.world_size = static_cast<std::uint16_t>(bcube_.switch_ports());
    options.nonce += lane;
    options.averaging = AveragingChoice::kSum;
    lanes_.emplace_back(place, std::move(options), std::move(layout).value(), now);
    lanes_.back().slices = slices;
    return {};
  };
  // In the order of stages, so that a slice's stops stand in it.
  for (std::uint32_t thread = 0; thread < bcube_.levels(); ++thread)
    for (std::uint32_t stage = 0; stage < bcube_.levels(); ++stage) {
      const std::uint32_t level = bcube_.level_of(thread, stage);
      const std::uint32_t hosts = mode == BcubeMode::kPlain ? bcube_.switch_ports() : 1;
      for (std::uint32_t host = 0; host < hosts; ++host) {
        slices.clear();
        for (std::uint32_t index = 0; index < passages_.size(); ++index) {
          const Passage& passage = passages_[index];
          const bool passes = passage.slice.thread == thread && passage.stages >= stage;
          if (passes && (hosts == 1 || bcube_.digit(passage.slice.owner, level) == host))
            slices.push_back(index);
        }
        LanePlace place{.thread = thread,
                        .stage = stage,
                        .way = stage == turn_stage() ? Way::kTurn : Way::kUp,
                        .level = level,
                        .switch_index = bcube_.switch_of(rank, level),
                        .host = host};
        Status status = make_lane(place);
        if (status.ok() && place.way == Way::kUp) {
          place.way = Way::kDown;
          status = make_lane(place);
        }
        if (!status.ok()) return status;
      }
    }
  CHECK(!lanes_.empty());
  send_order_.resize(lanes_.size());
  std::iota(send_order_.begin(), send_order_.end(), 0u);
  std::ranges::stable_sort(send_order_, std::greater<>(), [this](std::uint32_t lane) {
    const LanePlace& place = lanes_[lane].place;
    const std::uint32_t stages = 2 * bcube_.levels();
    return place.way == Way::kDown ? stages - place.stage : place.stage;
  });
  return {};
}

// ---- the application's side ----

Status Relay::submit(const Submission& submission, TimeNs now) {
  if (!failure_.ok()) return failure_;
  Status status = tensors_.check(submission);
  if (status.ok() && !submission.contribute)
    status = {StatusCode::kInvalidArgument,
              place_of(options_) +
                  "a synchronous job waits for every rank, so there is nothing to "
                  "catch up with; submit a gradient"};
  if (status.ok()) {
    tensors_.accept(submission, now);
    last_weight_ = submission.weight;
  }
  return status;
}

Status Relay::end_step() { return failure_.ok() ? tensors_.end_step() : failure_; }

void Relay::leave(wire::LeaveReason reason, TimeNs now) {
  const bool at_rest = tensors_.at_rest();
  for (Lane& lane : lanes_)
    lane.session.leave(at_rest ? reason : wire::LeaveReason::kAbnormal, now);
}

void Relay::fail(Status why, TimeNs now) {
  if (!failure_.ok()) return;
  CHECK(!why.ok());
  failure_ = std::move(why);
  for (Lane& lane : lanes_)
    if (lane.session.state() != SessionState::kClosed)
      lane.session.leave(wire::LeaveReason::kAbnormal, now);
  events_.push({.kind = Event::Kind::kFailed, .status = failure_});
}

// ---- what the lanes say ----

// A lane's answer may be another lane's submission, which may be done at once.
void Relay::work(TimeNs now) {
  for (bool again = true; again;) {
    again = false;
    for (Lane& lane : lanes_)
      for (Event event; lane.session.poll_event(event); again = true) handle(lane, event, now);
    std::uint32_t tensor = 0;
    while (started() && failure_.ok() && tensors_.next_joined(tensor)) {
      begin(tensor, now);
      again = true;
    }
  }
}

void Relay::handle(Lane& lane, const Event& event, TimeNs now) {
  switch (event.kind) {
    case Event::Kind::kStarted:
      if (++started_lanes_ == lanes_.size()) events_.push({.kind = Event::Kind::kStarted});
      return;
    case Event::Kind::kFailed: return fail(event.status, now);
    case Event::Kind::kLeft:
      if (++ended_lanes_ == lanes_.size() && failure_.ok())
        events_.push({.kind = Event::Kind::kLeft});
      return;
    case Event::Kind::kStalled: return events_.push(event);
    case Event::Kind::kTensorDone: break;
    default: return;
  }
  if (!failure_.ok()) return;
  Passage& passage = passages_[lane.slices[event.tensor]];
  CHECK(passage.in_flight != 0);
  --passage.in_flight;
  const std::uint32_t stage = lane.place.stage;
  const bool owns = stage < passage.stages;
  if (lane.place.way == Way::kUp && owns) {
    add_half(passage, event);
    climb(passage, stage + 1, now);
  } else if (lane.place.way == Way::kTurn || (lane.place.way == Way::kDown && !owns)) {
    passage.weight = event.weight;
    passage.value = event.absent ? nullptr : passage.output;
    passage.non_finite |= event.non_finite;
    passage.whole = true;
    descend(passage, stage, now);
  }
  if (passage.whole && passage.in_flight == 0) finish(passage, now);
}

// ---- a slice's way ----

void Relay::begin(std::uint32_t tensor, TimeNs now) {
  const bool left_out = tensors_.part(tensor) == Tensors::Part::kLeftOut;
  std::vector<float>& spare = spares_[tensor];
  if (left_out) spare.resize(layout_.tensor(tensor).elem_count);
  const Submission submission =
      left_out ? Submission{.output = spare.data(), .weight = last_weight_, .priority = 255}
               : tensors_.submission(tensor);
  const std::uint32_t first = first_passages_[tensor], end = first_passages_[tensor + 1];
  progress_[tensor] = {.slices_left = end - first};
  for (std::uint32_t index = first; index < end; ++index) {
    Passage& passage = passages_[index];
    CHECK(passage.in_flight == 0);
    const auto* input = static_cast<const float*>(submission.input);
    passage.value = input == nullptr ? nullptr : input + passage.slice.first_elem;
    passage.output = static_cast<float*>(submission.output) + passage.slice.first_elem;
    passage.weight = submission.weight;
    passage.priority = submission.priority;
    passage.whole = false;
    passage.non_finite = false;
    climb(passage, 0, now);
  }
}

// Contributes what this worker has to the sum of its next half-way owner, or takes what the others
// have for this one.
void Relay::climb(Passage& passage, std::uint32_t stage, TimeNs now) {
  CHECK(stage <= turn_stage() && stage <= passage.stages && passage.weight <= UINT32_MAX);
  const auto weight = static_cast<std::uint32_t>(passage.weight);
  const Stop& up = passage.up[stage];
  if (stage == turn_stage())
    return submit(passage, up, {.input = passage.value, .output = passage.output, .weight = weight},
                  now);
  if (stage < passage.stages)
    return submit(passage, up, {.output = &halves_[passage.first_half], .weight = kNoWeight}, now);
  // Its sum comes down as soon as it is whole, so this worker is ready for it.
  submit(passage, up,
         {.input = passage.value, .output = passage.output, .weight = weight, .wanted = false},
         now);
  submit(passage, passage.down[stage], {.output = passage.output, .weight = kNoWeight}, now);
}

// The others' sum came; with this worker's own it is the half-way sum, which stands in the output.
void Relay::add_half(Passage& passage, const Event& event) noexcept {
  passage.weight += event.weight;
  passage.non_finite |= event.non_finite;
  if (event.absent) return;
  const float* others = &halves_[passage.first_half];
  if (passage.value == nullptr)
    std::copy_n(others, passage.slice.elem_count, passage.output);
  else
    std::transform(others, others + passage.slice.elem_count, passage.value, passage.output,
                   std::plus<>());
  passage.value = passage.output;
}

// The sum of all is here: to everybody who is below this worker in the stages before.
void Relay::descend(Passage& passage, std::uint32_t from_stage, TimeNs now) {
  CHECK(passage.whole && from_stage <= passage.stages && passage.weight <= UINT32_MAX);
  for (std::uint32_t stage = from_stage; stage-- != 0;)
    submit(passage, passage.down[stage],
           {.input = passage.value,
            .output = passage.output,
            .weight = static_cast<std::uint32_t>(passage.weight),
            .wanted = false},
           now);
}

void Relay::submit(Passage& passage, const Stop& stop, Submission submission, TimeNs now) {
  submission.tensor = stop.tensor;
  submission.priority = passage.priority;
  const Status status = lanes_[stop.lane].session.submit(submission, now);
  if (!status.ok()) return fail(status, now);
  ++passage.in_flight;
}

// The same division of the same bits on every server.
void Relay::finish(Passage& passage, TimeNs now) {
  CHECK(passage.whole && passage.in_flight == 0);
  const std::uint32_t tensor = passage.slice.tensor;
  if (passage.value != nullptr && options_.averaging != AveragingChoice::kSum) {
    const auto divisor = static_cast<float>(passage.weight);
    for (std::uint64_t i = 0; i < passage.slice.elem_count; ++i) passage.output[i] /= divisor;
    passage.non_finite |= passage.weight == 0;
  }
  Progress& progress = progress_[tensor];
  progress.weight = passage.weight;
  progress.any_data |= passage.value != nullptr;
  progress.non_finite |= passage.non_finite;
  CHECK(progress.slices_left != 0);
  if (--progress.slices_left != 0) return;
  const Step step = tensors_.current();
  const bool left_out = tensors_.part(tensor) == Tensors::Part::kLeftOut;
  tensors_.done(
      tensor,
      {.weight = progress.weight, .absent = !progress.any_data, .non_finite = progress.non_finite},
      now);
  if (!left_out)
    events_.push({.kind = Event::Kind::kTensorDone,
                  .tensor = tensor,
                  .step = step,
                  .weight = progress.weight,
                  .absent = !progress.any_data,
                  .non_finite = progress.non_finite});
  if (!tensors_.all_done()) return;
  events_.push({.kind = Event::Kind::kStepDone, .step = step, .weight = progress.weight});
  tensors_.begin_next_step();
}

}  // namespace sluice::client

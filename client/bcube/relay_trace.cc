// What a relay's lanes note for the trace, tensor by tensor: which way a gradient went, and where
// it was waited for.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "client/bcube/relay.h"

namespace sluice::client {

// A tensor has slices in many lanes, a lane many slices of a tensor: together they are one part.
void Relay::plan_trace() {
  const auto on_way = [this](std::uint32_t lane) {  // sorts lanes as slices pass them
    const LanePlace& place = lanes_[lane].place;
    const std::uint32_t passed =
        place.way == Way::kDown ? 2 * bcube_.levels() - place.stage : place.stage;
    return std::tuple(place.thread, passed, place.host);
  };
  std::vector<std::uint32_t> in_order(first_spare_), parts(first_spare_);
  std::iota(in_order.begin(), in_order.end(), 0u);
  std::ranges::sort(in_order, std::less<>(), on_way);
  std::vector<std::uint64_t> elems(first_spare_);
  for (std::uint32_t tensor = 0; tensor < layout_.tensor_count(); ++tensor) {
    first_parts_.push_back(static_cast<std::uint32_t>(trace_parts_.size()));
    const auto for_stops = [&](auto body) {
      for (std::uint32_t at = first_passages_[tensor]; at < first_passages_[tensor + 1]; ++at) {
        for (const Stop& stop : passages_[at].up) body(stop, passages_[at].slice);
        for (const Stop& stop : passages_[at].down) body(stop, passages_[at].slice);
      }
    };
    std::ranges::fill(elems, 0);
    for_stops([&](const Stop& stop, const Slice& slice) { elems[stop.lane] += slice.elem_count; });
    for (const std::uint32_t lane : in_order) {
      if (elems[lane] == 0) continue;
      const LanePlace& place = lanes_[lane].place;
      parts[lane] = static_cast<std::uint32_t>(trace_parts_.size());
      trace_parts_.push_back(part_of(place, tensor, elems[lane]));
    }
    for_stops([&](const Stop& stop, const Slice&) {  // in the order of the lane's tensors
      lanes_[stop.lane].parts.push_back(parts[stop.lane]);
    });
  }
  first_parts_.push_back(static_cast<std::uint32_t>(trace_parts_.size()));
  part_trace_.enable(static_cast<std::uint32_t>(trace_parts_.size()));
}

TracePart Relay::part_of(const LanePlace& place, std::uint32_t tensor,
                         std::uint64_t elem_count) const {
  std::string name = "thread " + std::to_string(place.thread) + ", stage " +
                     std::to_string(place.stage) + " " + name_of(place.way) + ", level " +
                     std::to_string(place.level);
  if (mode_ == BcubeMode::kPlain)
    name += ", summed by worker " +
            std::to_string(bcube_.server_at(place.level, place.switch_index, place.host));
  return {.tensor = tensor,
          .elem_count = elem_count,
          .thread = place.thread,
          .stage = place.stage,
          .level = place.level,
          .way = name_of(place.way),
          .name = std::move(name)};
}

// Before the lane's event is handled, as that may end the step or submit to the lane again.
void Relay::trace_slices(Lane& lane) noexcept {
  for (TensorTimes times; lane.session.poll_trace(times);) {
    const Lane* home = &lane;
    std::uint32_t slice = times.tensor;
    if (is_spare(lane)) {
      const Failover::Row& row = failovers_[lane.place.level].rows()[lane.first_row + times.tensor];
      if (row.is_for_others()) continue;  // it was for the others, or of a step that is over here
      home = &lanes_[row.lane];
      slice = row.tensor;
    }
    times.part = 1 + home->parts[slice];
    times.tensor = trace_parts_[home->parts[slice]].tensor;
    times.step = tensors_.current();  // a lane that came later has steps of its own
    times.switch_index = lane.place.switch_index;
    times.detoured = is_spare(lane);
    part_trace_.part_done(times);
  }
}

void Relay::close_parts(std::uint32_t tensor, Step step) noexcept {
  if (!part_trace_.on()) return;
  for (std::uint32_t part = first_parts_[tensor]; part < first_parts_[tensor + 1]; ++part)
    part_trace_.close_part(part, step);
}

}  // namespace sluice::client

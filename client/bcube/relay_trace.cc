// What a relay's legs note for the trace, tensor by tensor: which way a gradient went, and where
// it was waited for.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "client/bcube/relay.h"

namespace sluice::client {

// A tensor has slices in many legs, a leg many slices of a tensor: together they are one part.
void Relay::plan_trace() {
  const auto on_way = [this](std::uint32_t leg) {  // sorts legs as slices pass them
    const LegAddress& address = legs_[leg].address;
    const std::uint32_t passed =
        address.role == Role::kDown ? 2 * bcube_.levels() - address.stage : address.stage;
    return std::tuple(address.thread, passed, address.host);
  };
  std::vector<std::uint32_t> in_order(first_standby_), parts(first_standby_);
  std::iota(in_order.begin(), in_order.end(), 0u);
  std::ranges::sort(in_order, std::less<>(), on_way);
  std::vector<std::uint64_t> elems(first_standby_);
  for (std::uint32_t tensor = 0; tensor < layout_.tensor_count(); ++tensor) {
    first_parts_.push_back(static_cast<std::uint32_t>(trace_parts_.size()));
    const auto for_stops = [&](auto body) {
      for (std::uint32_t at = first_slices_[tensor]; at < first_slices_[tensor + 1]; ++at) {
        for (const LegTensor& stop : slice_states_[at].up) body(stop, slice_states_[at].slice);
        for (const LegTensor& stop : slice_states_[at].down) body(stop, slice_states_[at].slice);
      }
    };
    std::ranges::fill(elems, 0);
    for_stops(
        [&](const LegTensor& stop, const Slice& slice) { elems[stop.leg] += slice.elem_count; });
    for (const std::uint32_t leg : in_order) {
      if (elems[leg] == 0) continue;
      const LegAddress& address = legs_[leg].address;
      parts[leg] = static_cast<std::uint32_t>(trace_parts_.size());
      trace_parts_.push_back(part_of(address, tensor, elems[leg]));
    }
    for_stops([&](const LegTensor& stop, const Slice&) {  // in the order of the leg's tensors
      legs_[stop.leg].parts.push_back(parts[stop.leg]);
    });
  }
  first_parts_.push_back(static_cast<std::uint32_t>(trace_parts_.size()));
  part_trace_.enable(static_cast<std::uint32_t>(trace_parts_.size()));
}

TracePart Relay::part_of(const LegAddress& address, std::uint32_t tensor,
                         std::uint64_t elem_count) const {
  std::string name = "thread " + std::to_string(address.thread) + ", stage " +
                     std::to_string(address.stage) + " " + name_of(address.role) + ", level " +
                     std::to_string(address.level);
  if (mode_ == BcubeMode::kPlain)
    name += ", summed by worker " +
            std::to_string(bcube_.server_at(address.level, address.switch_index, address.host));
  return {.tensor = tensor,
          .elem_count = elem_count,
          .thread = address.thread,
          .stage = address.stage,
          .level = address.level,
          .way = name_of(address.role),
          .name = std::move(name)};
}

// Before the leg's event is handled, as that may end the step or submit to the leg again.
void Relay::trace_slices(Leg& leg) noexcept {
  for (TensorTimes times; leg.session.poll_trace(times);) {
    const Leg* home = &leg;
    std::uint32_t slice = times.tensor;
    if (is_standby(leg)) {
      const Failover::Row& row = failovers_[leg.address.level].rows()[leg.first_row + times.tensor];
      if (row.is_for_others()) continue;  // it was for the others, or of a step that is over here
      home = &legs_[row.leg];
      slice = row.tensor;
    }
    times.part = 1 + home->parts[slice];
    times.tensor = trace_parts_[home->parts[slice]].tensor;
    times.step = tensors_.current();  // a leg that came later has steps of its own
    times.switch_index = leg.address.switch_index;
    times.detoured = is_standby(leg);
    part_trace_.part_done(times);
  }
}

void Relay::close_parts(std::uint32_t tensor, Step step) noexcept {
  if (!part_trace_.on()) return;
  for (std::uint32_t part = first_parts_[tensor]; part < first_parts_[tensor + 1]; ++part)
    part_trace_.close_part(part, step);
}

}  // namespace sluice::client

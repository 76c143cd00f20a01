#include "client/bcube/part_trace.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace sluice::client {
namespace {

TracePart part_of(const Bcube& bcube, BcubeMode mode, const LegAddress& address,
                  std::uint32_t tensor, std::uint64_t elem_count) {
  std::string name = "thread " + std::to_string(address.thread) + ", stage " +
                     std::to_string(address.stage) + " " + name_of(address.role) + ", level " +
                     std::to_string(address.level);
  if (mode == BcubeMode::kPlain)
    name += ", summed by worker " +
            std::to_string(bcube.server_at(address.level, address.switch_index, address.host));
  return {.tensor = tensor,
          .elem_count = elem_count,
          .thread = address.thread,
          .stage = address.stage,
          .level = address.level,
          .way = name_of(address.role),
          .name = std::move(name)};
}

}  // namespace

void PartTrace::plan(const Bcube& bcube, BcubeMode mode, std::uint32_t tensor_count, Legs& legs) {
  const auto on_way = [&](std::uint32_t leg) {  // sorts legs as slices pass them
    const LegAddress& address = legs.all[leg].address;
    const std::uint32_t passed =
        address.role == Role::kDown ? 2 * bcube.levels() - address.stage : address.stage;
    return std::tuple(address.thread, passed, address.host);
  };
  std::vector<std::uint32_t> in_order(legs.first_standby), parts(legs.first_standby);
  std::iota(in_order.begin(), in_order.end(), 0u);
  std::ranges::sort(in_order, std::less<>(), on_way);
  std::vector<std::uint64_t> elems(legs.first_standby);
  for (std::uint32_t tensor = 0; tensor < tensor_count; ++tensor) {
    first_parts_.push_back(static_cast<std::uint32_t>(parts_.size()));
    const auto for_stops = [&](auto body) {
      for (std::uint32_t at = legs.first_slices[tensor]; at < legs.first_slices[tensor + 1]; ++at) {
        for (const LegTensor& stop : legs.slices[at].up) body(stop, legs.slices[at].slice);
        for (const LegTensor& stop : legs.slices[at].down) body(stop, legs.slices[at].slice);
      }
    };
    std::ranges::fill(elems, 0);
    for_stops(
        [&](const LegTensor& stop, const Slice& slice) { elems[stop.leg] += slice.elem_count; });
    for (const std::uint32_t leg : in_order) {
      if (elems[leg] == 0) continue;
      const LegAddress& address = legs.all[leg].address;
      parts[leg] = static_cast<std::uint32_t>(parts_.size());
      parts_.push_back(part_of(bcube, mode, address, tensor, elems[leg]));
    }
    for_stops([&](const LegTensor& stop, const Slice&) {  // in the order of the leg's tensors
      legs.all[stop.leg].parts.push_back(parts[stop.leg]);
    });
  }
  first_parts_.push_back(static_cast<std::uint32_t>(parts_.size()));
  trace_.enable(static_cast<std::uint32_t>(parts_.size()));
}

void PartTrace::take(Leg& leg, const Legs& legs, const Detours& detours, Step step) noexcept {
  for (TensorTimes times; leg.session.poll_trace(times);) {
    const Leg* home = &leg;
    std::uint32_t slice = times.tensor;
    if (leg.is_standby()) {
      const Failover::Row& row =
          detours.failovers[leg.address.level].rows()[leg.first_row + times.tensor];
      if (row.is_for_others()) continue;  // it was for the others, or of a step that is over here
      home = &legs.all[row.leg];
      slice = row.tensor;
    }
    times.part = 1 + home->parts[slice];
    times.tensor = parts_[home->parts[slice]].tensor;
    times.step = step;  // a leg that came later has steps of its own
    times.switch_index = leg.address.switch_index;
    times.detoured = leg.is_standby();
    trace_.part_done(times);
  }
}

void PartTrace::close(std::uint32_t tensor, Step step) noexcept {
  if (!trace_.on()) return;
  for (std::uint32_t part = first_parts_[tensor]; part < first_parts_[tensor + 1]; ++part)
    trace_.close_part(part, step);
}

}  // namespace sluice::client

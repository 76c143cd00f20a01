#include "client/sched/credit.h"

#include <algorithm>

namespace sluice::client {
namespace {

std::uint32_t packets_of(std::uint64_t bytes, std::size_t chunk_bytes) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(bytes / std::max<std::size_t>(chunk_bytes, 1), 1, UINT32_MAX / 2));
}

}  // namespace

CreditPolicy::CreditPolicy(const ScheduleOptions& options, const ScheduleSetup& setup)
    : tensors_(setup),
      unit_packets_(packets_of(options.unit_bytes, setup.chunk_bytes)),
      credit_packets_(packets_of(options.credit_bytes, setup.chunk_bytes)),
      fresh_(setup),
      lost_(setup) {}

bool CreditPolicy::next(const WindowState& windows, Choice& choice) noexcept {
  waits_ = false;
  Queues::Head head;
  if (lost_.find(windows.open_shards, 0, head)) {
    lost_.take(head);
    choice = {.chunk = head.chunk, .shard = head.shard, .last = lost_.empty(head.shard)};
    return true;
  }
  if (!find_in_unit(windows.open_shards, head)) {
    if (!fresh_.find(windows.open_shards, 0, head)) return false;
    if (windows.in_flight_packets >= credit_packets_) {
      waits_ = true;
      return false;
    }
    unit_ = unit_of(head);
  }
  fresh_.take(head);
  Queues::Head rest;
  choice = {.chunk = head.chunk,
            .shard = head.shard,
            .last = !find_in_unit(std::uint64_t{1} << head.shard, rest)};
  return true;
}

// Units are cut at fixed places of the tensor, so that it is known which shards have part of one.
CreditPolicy::Unit CreditPolicy::unit_of(const Queues::Head& head) const noexcept {
  const std::uint32_t tensor = tensors_.tensor_of(head.chunk);
  const ChunkIndex first = tensors_.begin(tensor);
  const ChunkIndex begin = head.chunk - (head.chunk - first) % unit_packets_;
  return {.begin = begin,
          .end = std::min(tensors_.end(tensor), begin + unit_packets_),
          .priority = head.priority};
}

bool CreditPolicy::find_in_unit(std::uint64_t shards, Queues::Head& head) const noexcept {
  return unit_.begin != unit_.end &&
         fresh_.find_at(
             shards, unit_.priority, [this](ChunkIndex chunk) { return unit_.has(chunk); }, head);
}

void CreditPolicy::clear() noexcept {
  fresh_.clear();
  lost_.clear();
  unit_ = {};
}

std::string CreditPolicy::describe_plan() const {
  return "credit: units of at most " + std::to_string(unit_packets_) +
         " packets of one tensor, the next begins when less than " +
         std::to_string(credit_packets_) + " packets are in flight\n";
}

}  // namespace sluice::client

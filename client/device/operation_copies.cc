#include "client/device/operation_copies.h"

#include <string>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::size_t kKeptFailures = 4096;

void settle(Event& event, StatusCode copied) {
  if (event.status.ok() && copied != StatusCode::kOk)
    event.status = {copied, "its copies from or to the device were given up"};
}

}  // namespace

CopyStage::Place OperationCopies::place_of(const OperationCall& call, std::size_t member_count,
                                           std::size_t place, bool is_root) noexcept {
  using enum wire::OperationKind;
  const auto one = static_cast<std::size_t>(call.bytes);
  switch (call.kind) {
    case kAllReduce: return {.in_bytes = one, .out_bytes = one, .bytes = one};
    case kReduceScatter:
      return {.in_bytes = member_count * one,
              .out_at = place * one,
              .out_bytes = one,
              .bytes = member_count * one};
    case kAllGather:
      return {.in_at = place * one,
              .in_bytes = one,
              .out_bytes = member_count * one,
              .bytes = member_count * one};
    case kBroadcast:
      return {.in_bytes = is_root ? one : 0, .out_bytes = is_root ? 0 : one, .bytes = one};
    case kReduce: return {.in_bytes = one, .out_bytes = is_root ? one : 0, .bytes = one};
    case kBarrier: break;
  }
  return {};
}

void OperationCopies::begin(Key key, const OperationCall& call, const CopyStage::Place& place,
                            std::string title, sluice_device_mark* fence) {
  const std::uint32_t row =
      stage_.begin({.input = call.input, .output = call.output, .priority = call.priority}, place,
                   std::move(title), fence);
  if (row >= keys_.size()) keys_.resize(row + 1);
  keys_[row] = key;
  CHECK(open_.try_emplace(key, Open{.row = row}).second);
}

bool OperationCopies::take(Event& event) {
  const auto found = open_.find({event.tensor, event.operation});
  if (found == open_.end()) return false;
  Open& open = found->second;
  CHECK(!open.event);
  if (open.copied) {
    settle(event, *open.copied);
    open_.erase(found);
    return false;
  }
  const StatusCode code = event.status.code();
  open.event = std::move(event);
  stage_.ended(open.row, code);
  return true;
}

std::optional<Event> OperationCopies::copied(const CopyStage::Done& done, const Status& why) {
  const auto found = open_.find(keys_[done.tensor]);
  CHECK(found != open_.end() && !found->second.copied);
  found->second.copied = done.code;
  std::optional<Event> event = std::move(found->second.event);
  if (!event) return {};
  if (event->status.ok() && done.code != StatusCode::kOk) {
    if (why.ok())
      settle(*event, done.code);
    else
      event->status = why;
    failed_.emplace(found->first, event->status);
    if (failed_.size() > kKeptFailures) failed_.erase(failed_.begin());
  }
  open_.erase(found);
  return event;
}

std::vector<Event> OperationCopies::take_rest() {
  std::vector<Event> rest;
  for (auto& [key, open] : open_)
    if (open.event) {
      settle(*open.event, StatusCode::kClosed);
      rest.push_back(std::move(*open.event));
    }
  open_.clear();
  return rest;
}

}  // namespace sluice::client

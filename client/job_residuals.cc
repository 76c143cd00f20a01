// The residuals of this rank's gradients, which were pruned or rounded: read, set, scaled, flushed,
// and told at the end.
#include <algorithm>
#include <bit>
#include <cmath>

#include "client/job.h"

namespace sluice::client {

Status Job::get_residual(std::uint32_t tensor, float* values) {
  Lock lock = shared_.mutex.lock();
  Kept kept;
  Status status = check_not_staged(tensor, "get_residual");
  if (status.ok() && is_far(tensor))
    return move_residual(lock, tensor, CopyStage::Direction::kIn,
                         [values](std::span<float> part, std::size_t first) {
                           std::copy(part.begin(), part.end(), values + first);
                         });
  if (status.ok()) status = shared_.calls.residual(tensor, kept);
  if (status.ok()) std::copy(kept.values.begin(), kept.values.end(), values);
  return status;
}

Status Job::set_residual(std::uint32_t tensor, const float* values) {
  Lock lock = shared_.mutex.lock();
  Kept kept;
  Status status = check_not_staged(tensor, "set_residual");
  if (status.ok() && is_far(tensor))
    return move_residual(lock, tensor, CopyStage::Direction::kOut,
                         [values](std::span<float> part, std::size_t first) {
                           std::copy_n(values + first, part.size(), part.begin());
                         });
  if (status.ok()) status = shared_.calls.residual(tensor, kept);
  if (status.ok()) std::copy_n(values, kept.values.size(), kept.values.begin());
  return status;
}

// A far tensor's position belongs to the threads that find its threshold. They are at rest while
// the tensor is not staged.
Status Job::prune_position(std::uint32_t tensor, const char* call, PrunePosition*& position) {
  Kept kept;
  Status status = check_not_staged(tensor, call);
  if (status.ok() && is_far(tensor))
    kept.position = &buffers_->position(tensor);
  else if (status.ok())
    status = shared_.calls.residual(tensor, kept);
  position = kept.position;
  return status;
}

Status Job::get_pruning(std::uint32_t tensor, std::uint64_t& packed) {
  const Lock lock = shared_.mutex.lock();
  PrunePosition* position = nullptr;
  Status status = prune_position(tensor, "get_pruning", position);
  if (status.ok())
    packed = std::uint64_t{std::bit_cast<std::uint32_t>(position->last)} << 32 | position->steps;
  return status;
}

Status Job::set_pruning(std::uint32_t tensor, std::uint64_t packed) {
  const Lock lock = shared_.mutex.lock();
  const PrunePosition wanted{
      .steps = static_cast<std::uint32_t>(packed),
      .last = std::bit_cast<float>(static_cast<std::uint32_t>(packed >> 32))};
  PrunePosition* position = nullptr;
  Status status = prune_position(tensor, "set_pruning", position);
  if (status.ok() && !(std::isfinite(wanted.last) && wanted.last >= 0))
    return {StatusCode::kInvalidArgument, place_ + "set_pruning: " + std::to_string(packed) +
                                              " is not what sluice_get_pruning() has given"};
  if (status.ok()) *position = wanted;
  return status;
}

bool Job::is_far(std::uint32_t tensor) const noexcept {
  return shared_.stage != nullptr && shared_.stage->is_far(tensor);
}

// Copies in parts that fit the page-locked memory. Jobs that have ended have residuals too.
Status Job::move_residual(
    Lock& lock, std::uint32_t tensor, CopyStage::Direction direction,
    const std::function<void(std::span<float> part, std::size_t first)>& use) {
  if (!shared_.failure.ok()) return shared_.failure;
  CopyStage& stage = *shared_.stage;
  const std::span<std::uint8_t> staging = stage.residual_staging(tensor);
  auto* const floats = reinterpret_cast<float*>(staging.data());
  const std::size_t count = shared_.calls.layout().tensor(tensor).elem_count;
  const std::size_t staging_count = staging.size() / sizeof(float);
  for (std::size_t first = 0; first < count; first += staging_count) {
    const std::span<float> part(floats, std::min(staging_count, count - first));
    if (direction == CopyStage::Direction::kOut) use(part, first);
    stage.copy_residual(tensor, direction, first * sizeof(float), part.size_bytes());
    shared_.copies.notify_one();
    shared_.changed.wait(lock, [&] { return !stage.holds(tensor); });
    if (stage.outcome(tensor) != StatusCode::kOk) return shared_.status();
    if (direction == CopyStage::Direction::kIn) use(part, first);
  }
  return {};
}

Status Job::scale_residuals(double factor) {
  Lock lock = shared_.mutex.lock();
  CopyStage* const stage = shared_.stage.get();
  const auto busy = [this] { return !shared_.at_rest() || shared_.stage->scales(); };
  if (stage != nullptr && busy())
    return {StatusCode::kBusy, place_ + "scale_residuals: in the middle of a step"};
  Status status = shared_.calls.scale_residuals(static_cast<float>(factor));
  if (!status.ok() || far_ == nullptr) return status;
  stage->scale(static_cast<float>(factor));
  shared_.copies.notify_one();
  shared_.changed.wait(lock, [&] { return !stage->scales(); });
  return shared_.failure;
}

Status Job::flush_residuals() {
  const Lock lock = shared_.mutex.lock();
  if (shared_.stage != nullptr) shared_.stage->flush();
  return shared_.calls.flush_residuals();
}

// The lock is free for other calls between two tensors, since a pass over a big model takes long.
Status Job::left_behind(LeftBehind& found) {
  Status status;
  const std::uint32_t count = shared_.calls.layout().tensor_count();
  for (std::uint32_t tensor = 0; tensor < count && status.ok(); ++tensor) {
    Lock lock = shared_.mutex.lock();
    status = shared_.status();
    if (!status.ok() || !shared_.calls.leaves_behind(tensor)) continue;
    status = check_not_staged(tensor, "get_left_behind");
    if (status.ok() && is_far(tensor)) {
      status = move_residual(lock, tensor, CopyStage::Direction::kIn,
                             [&](std::span<float> part, std::size_t) { found.add(part); });
      continue;
    }
    Kept kept;
    if (status.ok()) status = shared_.calls.residual(tensor, kept);
    // Without the velocity behind the residual, which is of delivered gradients too.
    if (status.ok()) found.add(kept.values.first(shared_.calls.layout().tensor(tensor).elem_count));
  }
  return status;
}

// Empty where the residual can't be told, because a step is under way or the job has failed: the
// error says more.
std::string Job::left_behind_note() {
  LeftBehind found;
  if (!log_.wants(SLUICE_LOG_WARN) || !left_behind(found).ok()) return {};
  const std::string text = found.describe();
  return text.empty() ? text : place_ + text;
}

}  // namespace sluice::client

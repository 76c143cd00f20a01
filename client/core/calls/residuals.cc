#include "client/core/calls/residuals.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/sparse.h"

namespace sluice::client {
namespace {

// A value that is not finite has left or is lost; it does not come back.
void update_velocity(const float* gradient, float momentum, float* velocity,
                     std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const float last = velocity[i] - velocity[i] == 0 ? velocity[i] : 0;
    velocity[i] = momentum * last + gradient[i];
  }
}

}  // namespace

PruneTensor prunable_as(const TensorSpec& tensor) noexcept {
  return {
      .elem_count = tensor.elem_count,
      .dense = tensor.dense || tensor.exact || tensor.relayed || tensor.dtype != Dtype::kFloat32};
}

std::vector<PruneTensor> prunable_of(const Layout& layout) {
  std::vector<PruneTensor> tensors;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    tensors.push_back(prunable_as(layout.tensor(tensor)));
  return tensors;
}

Residuals::Residuals(const Layout& layout, const PruneOptions& pruning, Executor* executor)
    : layout_(layout),
      thresholds_(pruning, prunable_of(layout)),
      momentum_(pruning.momentum),
      executor_(executor),
      measurements_(layout.tensor_count()),
      limits_(layout.tensor_count()),
      far_(layout.tensor_count()) {
  std::uint64_t count = 0;
  bool selects_any = false, relayed_any = false;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    first_.push_back(count);
    measurements_[tensor].residuals = this;
    measurements_[tensor].tensor = tensor;
    covers_.push_back(selects(tensor) || prunes(tensor) || layout.is_rounded(tensor));
    if (covers(tensor) && keeps_here(tensor)) count += layout.tensor(tensor).elem_count;
    if (has_velocity(tensor)) count += layout.tensor(tensor).elem_count;
    CHECK(!is_far(tensor) || (covers(tensor) && !is_relayed(tensor) && !has_velocity(tensor)));
    prunes_any_ |= prunes(tensor);
    selects_any |= selects(tensor);
    relayed_any |= is_relayed(tensor);
  }
  values_.resize(count);
  if (selects_any || relayed_any) nothing_.resize(layout.max_chunk_elems());
  if (selects_any) left_.resize(layout.max_chunk_elems());
  if (selects_any || prunes_any_) packed_.resize(layout.chunk_bytes());
}

Residuals::~Residuals() {
  for (std::uint32_t tensor = 0; tensor < measurements_.size(); ++tensor) await(tensor);
}

void Residuals::begin_step(std::uint32_t tensor, const float* gradient, FarTensor* far) {
  CHECK(is_far(tensor) == (far != nullptr));
  far_[tensor] = far;
  if (!selects(tensor) || far != nullptr) return;
  Measurement& measurement = measurements_[tensor];
  CHECK(measurement.done());
  measurement.gradient = gradient;
  measurement.whole = flushes_;
  measurement.begin();
  if (executor_ != nullptr)
    executor_->execute(measurement);
  else
    measurement.run();
}

void Residuals::await(std::uint32_t tensor) noexcept {
  if (!measured(tensor)) executor_->finish(measurements_[tensor]);
}

// On any thread.
void Residuals::measure(const Measurement& measurement) noexcept {
  const std::uint32_t tensor = measurement.tensor;
  const std::uint64_t count = layout_.tensor(tensor).elem_count;
  float* const residual = &values_[first_[tensor]];
  const float* gradient = measurement.gradient;
  if (has_velocity(tensor)) {
    update_velocity(gradient, momentum_, residual + count, count);
    gradient = residual + count;
  }
  if (!thresholds_.prunes(tensor)) return;
  const float limit = thresholds_.next(tensor, {gradient, count}, {residual, count});
  CHECK(limit >= 0);
  limits_[tensor] = measurement.whole ? kPruneNothing : limit;
}

Kept Residuals::of(std::uint32_t tensor) noexcept {
  CHECK(covers(tensor) && !is_far(tensor));
  await(tensor);
  const std::uint64_t count = layout_.tensor(tensor).elem_count;
  return {.values = {&values_[first_[tensor]], has_velocity(tensor) ? 2 * count : count},
          .position = &thresholds_.position(tensor)};
}

float* Residuals::at(const ChunkSpan& span) noexcept {
  DCHECK(covers(span.tensor));
  DCHECK(first_[span.tensor] + span.first_elem + span.elem_count <= values_.size());
  return &values_[first_[span.tensor] + span.first_elem];
}

float* Residuals::velocity_at(const ChunkSpan& span) noexcept {
  DCHECK(has_velocity(span.tensor));
  return at(span) + layout_.tensor(span.tensor).elem_count;
}

std::span<const std::uint8_t> Residuals::packed(const ChunkSpan& span) const noexcept {
  DCHECK(far_[span.tensor] != nullptr);
  return far_[span.tensor]->packed_of(
      index_in_tensor(span), payload_bytes(layout_.wire_dtype(span.tensor), span.elem_count));
}

void Residuals::pack_far(const ChunkSpan& span, std::uint8_t* out) const noexcept {
  const Dtype dtype = layout_.wire_dtype(span.tensor);
  std::span<const std::uint8_t> bytes = packed(span);
  if (bytes.size() == payload_bytes(dtype, span.elem_count)) {
    std::memcpy(out, bytes.data(), bytes.size());
    return;
  }
  wire::SparseEntry entry;
  if (!bytes.empty()) entry = wire::take_entry(bytes, span.elem_count, dtype);
  agg::expand(entry, span.elem_count, dtype, out);
}

const float* Residuals::value_of(const ChunkSpan& span, const float* gradient) noexcept {
  return has_velocity(span.tensor) ? velocity_at(span) : gradient;
}

void Residuals::select(const ChunkSpan& span, const float* gradient) noexcept {
  DCHECK(selects(span.tensor));
  agg::prune(value_of(span, gradient), at(span), span.elem_count, limits_[span.tensor],
             left_.data());
}

void Residuals::pack(const ChunkSpan& span, const float* gradient, std::uint8_t* out) noexcept {
  DCHECK(measured(span.tensor));
  if (is_far(span.tensor)) return pack_far(span, out);
  const float* residual = is_relayed(span.tensor) ? nothing_.data() : at(span);
  if (selects(span.tensor)) {
    select(span, gradient);
    gradient = left_.data();
    residual = nothing_.data();
  }
  if (layout_.is_rounded(span.tensor))
    agg::pack(gradient, residual, span.elem_count, layout_.wire(), out);
  else
    std::memcpy(out, gradient, span.elem_count * sizeof(float));
}

std::size_t Residuals::compress(const ChunkSpan& span, const float* gradient,
                                std::span<std::uint8_t> out) noexcept {
  DCHECK(measured(span.tensor));
  if (is_far(span.tensor)) {
    const std::span<const std::uint8_t> entry = packed(span);
    if (entry.size() > out.size()) return agg::kNotCompressed;
    std::copy(entry.begin(), entry.end(), out.begin());
    return entry.size();
  }
  if (selects(span.tensor) && !layout_.is_rounded(span.tensor))
    return agg::compress_pruned(value_of(span, gradient), at(span), span.elem_count,
                                limits_[span.tensor], out);
  pack(span, gradient, packed_.data());
  return agg::compress(packed_.data(), span.elem_count, layout_.wire_dtype(span.tensor), out);
}

void Residuals::update(const ChunkSpan& span, const float* gradient, bool delivered) noexcept {
  if (is_relayed(span.tensor)) return;
  if (is_far(span.tensor)) {
    far_[span.tensor]->fates[index_in_tensor(span)] = delivered ? Fate::kDelivered : Fate::kMissed;
    return;
  }
  if (!selects(span.tensor))
    return agg::update_residual(gradient, at(span), span.elem_count, layout_.wire(), delivered);
  if (delivered && layout_.is_rounded(span.tensor)) {
    pack(span, gradient, packed_.data());
    agg::fold_store(left_.data(), packed_.data(), span.elem_count, layout_.wire_dtype(span.tensor));
  } else if (delivered) {
    select(span, gradient);
  }
  agg::keep_rest(value_of(span, gradient), at(span), span.elem_count,
                 delivered ? left_.data() : nothing_.data());
  if (!has_velocity(span.tensor) || !delivered) return;
  // The velocity starts anew only where a value was pruned away: a tensor that leaves whole keeps
  // its momentum.
  if (!thresholds_.prunes(span.tensor) || limits_[span.tensor] == kPruneNothing) return;
  float* const velocity = velocity_at(span);
  for (std::size_t i = 0; i < span.elem_count; ++i)
    if (left_[i] != 0) velocity[i] = 0;
}

void Residuals::give_back(const ChunkSpan& span, std::span<const std::uint8_t> payload) noexcept {
  const Dtype dtype = layout_.wire_dtype(span.tensor);
  CHECK(payload.size() == payload_bytes(dtype, span.elem_count));
  if (FarTensor* const far = far_[span.tensor]; far != nullptr) {
    const std::size_t at = far->given_payloads.size();
    far->given_chunks.push_back(index_in_tensor(span));
    far->given_payloads.resize(at + far->dense_bytes);
    std::memcpy(&far->given_payloads[at], payload.data(), payload.size());
    return;
  }
  await(span.tensor);
  agg::give_back(at(span), payload.data(), span.elem_count, dtype);
}

void Residuals::discard(const ChunkSpan& span) noexcept {
  if (is_far(span.tensor)) {
    far_[span.tensor]->fates[index_in_tensor(span)] = Fate::kUnknown;
    return;
  }
  await(span.tensor);
  std::fill_n(at(span), span.elem_count, 0.0f);
  if (has_velocity(span.tensor)) std::fill_n(velocity_at(span), span.elem_count, 0.0f);
}

void Residuals::scale(float factor) noexcept {
  for (std::uint32_t tensor = 0; tensor < measurements_.size(); ++tensor) await(tensor);
  for (float& value : values_) value *= factor;
}

}  // namespace sluice::client

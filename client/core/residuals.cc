#include "client/core/residuals.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/sparse.h"

namespace sluice::client {
namespace {

// Only float32 is pruned, as only float32 is rounded.
std::vector<PruneTensor> prunable(const Layout& layout) {
  std::vector<PruneTensor> tensors;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    const TensorSpec& spec = layout.tensor(tensor);
    tensors.push_back({.elem_count = spec.elem_count,
                       .dense = spec.dense || spec.exact || spec.dtype != Dtype::kFloat32});
  }
  return tensors;
}

}  // namespace

Residuals::Residuals(const Layout& layout, const PruneOptions& pruning)
    : layout_(layout), thresholds_(pruning, prunable(layout)), limits_(layout.tensor_count()) {
  std::uint64_t count = 0;
  bool any_pruned = false;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    first_.push_back(count);
    if (covers(tensor)) count += layout.tensor(tensor).elem_count;
    any_pruned |= prunes(tensor);
  }
  values_.resize(count);
  if (!any_pruned) return;
  left_.resize(layout.max_chunk_elems());
  packed_.resize(layout.chunk_bytes());
  nothing_.resize(layout.max_chunk_elems());
}

void Residuals::begin_step(std::uint32_t tensor, const float* gradient) noexcept {
  if (!prunes(tensor)) return;
  const float limit =
      thresholds_.next(tensor, {gradient, layout_.tensor(tensor).elem_count}, of(tensor));
  CHECK(limit >= 0);
  limits_[tensor] = flushes_ ? kPruneNothing : limit;
}

std::span<float> Residuals::of(std::uint32_t tensor) noexcept {
  CHECK(covers(tensor));
  return {&values_[first_[tensor]], layout_.tensor(tensor).elem_count};
}

float* Residuals::at(const ChunkSpan& span) noexcept {
  DCHECK(covers(span.tensor));
  DCHECK(first_[span.tensor] + span.first_elem + span.elem_count <= values_.size());
  return &values_[first_[span.tensor] + span.first_elem];
}

void Residuals::pack(const ChunkSpan& span, const float* gradient, std::uint8_t* out) noexcept {
  const float* residual = at(span);
  if (prunes(span.tensor)) {
    agg::prune(gradient, residual, span.elem_count, limits_[span.tensor], left_.data());
    gradient = left_.data();
    residual = nothing_.data();
  }
  if (layout_.is_rounded(span.tensor))
    agg::pack(gradient, residual, span.elem_count, layout_.wire(), out);
  else
    std::memcpy(out, gradient, span.elem_count * sizeof(float));
}

void Residuals::settle(const ChunkSpan& span, const float* gradient, bool delivered) noexcept {
  if (!prunes(span.tensor))
    return agg::settle(gradient, at(span), span.elem_count, layout_.wire(), delivered);
  if (delivered) {
    pack(span, gradient, packed_.data());
    agg::fold_store(left_.data(), packed_.data(), span.elem_count, layout_.wire_dtype(span.tensor));
  }
  agg::keep_rest(gradient, at(span), span.elem_count, delivered ? left_.data() : nothing_.data());
}

void Residuals::give_back(const ChunkSpan& span, std::span<const std::uint8_t> payload) noexcept {
  const Dtype dtype = layout_.wire_dtype(span.tensor);
  CHECK(payload.size() == payload_bytes(dtype, span.elem_count));
  agg::give_back(at(span), payload.data(), span.elem_count, dtype);
}

void Residuals::discard(const ChunkSpan& span) noexcept {
  std::fill_n(at(span), span.elem_count, 0.0f);
}

void Residuals::scale(float factor) noexcept {
  for (float& value : values_) value *= factor;
}

}  // namespace sluice::client

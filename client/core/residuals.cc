#include "client/core/residuals.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/core/narrow.h"

namespace sluice::client {

Residuals::Residuals(const Layout& layout) : layout_(layout) {
  std::uint64_t count = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    first_.push_back(count);
    if (covers(tensor)) count += layout.tensor(tensor).elem_count;
  }
  values_.resize(count);
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

void Residuals::pack(const ChunkSpan& span, const float* gradient,
                     std::uint8_t* out) const noexcept {
  agg::pack(gradient, at(span), span.elem_count, layout_.wire(), out);
}

void Residuals::settle(const ChunkSpan& span, const float* gradient, bool delivered) noexcept {
  agg::settle(gradient, at(span), span.elem_count, layout_.wire(), delivered);
}

void Residuals::give_back(const ChunkSpan& span, std::span<const std::uint8_t> payload) noexcept {
  CHECK(payload.size() == payload_bytes(layout_.wire(), span.elem_count));
  agg::give_back(at(span), payload.data(), span.elem_count, layout_.wire());
}

void Residuals::discard(const ChunkSpan& span) noexcept {
  std::fill_n(at(span), span.elem_count, 0.0f);
}

void Residuals::scale(float factor) noexcept {
  for (float& value : values_) value *= factor;
}

}  // namespace sluice::client

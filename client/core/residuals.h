// Error feedback: of every tensor that travels at a loss, what of this worker's gradients has not
// been delivered, element by element.
//
// A chunk's value is gradient + residual. pack() writes what of it leaves; when it is known what
// became of that, settle() keeps the rest. In between the residual does not change, so what is sent
// again is the same. Here alone stands what leaves and what stays; what became of a chunk, late.h
// and its callers know. delivered + residual + discarded = sum of the gradients, but for what is
// not finite, which leaves and is never kept.
//
// Pure; the session's thread only. Memory, a float an element, is allocated at the join.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/core/layout.h"

namespace sluice::client {

class Residuals {
 public:
  // `layout` outlives it.
  explicit Residuals(const Layout& layout);

  // The tensor travels at a loss. The other calls are for such tensors only.
  bool covers(std::uint32_t tensor) const noexcept { return layout_.is_rounded(tensor); }

  // ---- a chunk of a gradient, elem_count floats ----
  // Writes payload_bytes(wire dtype, elem_count) bytes.
  void pack(const ChunkSpan& span, const float* gradient, std::uint8_t* out) const noexcept;
  // Delivered, or kept somewhere else as it was packed: what packing lost stays. Else all does.
  void settle(const ChunkSpan& span, const float* gradient, bool delivered) noexcept;
  // What was packed, and kept somewhere else, will not be delivered after all.
  void give_back(const ChunkSpan& span, std::span<const std::uint8_t> payload) noexcept;
  // It was part of a value of which nobody knows whether it was delivered.
  void discard(const ChunkSpan& span) noexcept;

  // ---- a tensor ----
  std::span<float> of(std::uint32_t tensor) noexcept;
  // The scale of the loss has changed by this factor.
  void scale(float factor) noexcept;

 private:
  float* at(const ChunkSpan& span) noexcept;
  const float* at(const ChunkSpan& span) const noexcept {
    return const_cast<Residuals*>(this)->at(span);
  }

  const Layout& layout_;
  std::vector<std::uint64_t> first_;  // of each tensor, in values_
  std::vector<float> values_;
};

}  // namespace sluice::client

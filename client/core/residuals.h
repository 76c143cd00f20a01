// Error feedback: of every tensor that travels at a loss, because it is pruned or because it is
// rounded, what of this worker's gradients has not been delivered, element by element.
//
// A chunk's value is gradient + residual. pack() writes what of it leaves: all, or what reaches the
// tensor's threshold, which is fixed for a step. When it is known what became of that, settle()
// keeps the rest. In between neither residual nor threshold changes, so what is sent again is the
// same. Here alone stands what leaves and what stays; what became of a chunk, late.h and its
// callers know. delivered + residual + discarded = sum of the gradients, but for what is not
// finite, which leaves and is never kept.
//
// Pure; the session's thread only. Memory, a float an element, is allocated at the join.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/core/layout.h"
#include "client/prune/threshold.h"

namespace sluice::client {

class Residuals {
 public:
  // `layout` outlives it.
  Residuals(const Layout& layout, const PruneOptions& pruning);

  // Of the tensor's values only the big ones leave.
  bool prunes(std::uint32_t tensor) const noexcept { return thresholds_.prunes(tensor); }
  bool prunes_any() const noexcept { return !nothing_.empty(); }
  // The tensor travels at a loss. The other calls are for such tensors only.
  bool covers(std::uint32_t tensor) const noexcept {
    return prunes(tensor) || layout_.is_rounded(tensor);
  }

  // Once a step, before its first chunk is packed.
  void begin_step(std::uint32_t tensor, const float* gradient) noexcept;
  // From each tensor's next step on all of it leaves, with all that was left behind: what a worker
  // does in its last step.
  void flush() noexcept { flushes_ = true; }

  // ---- a chunk of a gradient, elem_count floats ----
  // Writes a dense payload, payload_bytes(wire dtype, elem_count) bytes.
  void pack(const ChunkSpan& span, const float* gradient, std::uint8_t* out) noexcept;
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

  const Layout& layout_;
  Thresholds thresholds_;
  std::vector<float> limits_;  // of each tensor in the step under way: smaller values stay
  bool flushes_ = false;
  std::vector<std::uint64_t> first_;  // of each tensor, in values_
  std::vector<float> values_;
  // Of one chunk that is pruned: what leaves, as floats and packed, and a residual of nothing.
  std::vector<float> left_;
  std::vector<std::uint8_t> packed_;
  std::vector<float> nothing_;
};

}  // namespace sluice::client

// Error feedback: of every tensor that travels at a loss, because it is pruned or because it is
// rounded, what of this worker's gradients has not been delivered, element by element.
//
// A chunk's value is gradient + residual. pack() writes what of it leaves: all, or what reaches the
// tensor's threshold, which is fixed for a step. When it is known what became of that, update()
// keeps the rest. In between neither residual nor threshold changes, so what is sent again is the
// same. Here alone stands what leaves and what stays; what became of a chunk, late.h and its
// callers know. delivered + residual + discarded = sum of the gradients, but for what is not
// finite, which leaves and is never kept.
//
// With momentum correction (PruneOptions) a velocity takes the gradient's place here, of all
// float32 tensors but the exact ones: those that are not pruned would have no momentum else. It
// starts anew, at zero, where it leaves (factor masking): what is late is not pushed on. All of a
// velocity that was not delivered becomes residual, as a gradient does.
//
// Of a far tensor (far.h) nothing stands here but what became of its chunks: whoever submits it has
// packed it and keeps its residual.
//
// Pure; the session's thread only, but for measuring: what an executor does of that on another
// thread reads the gradient and the tensor's residual, so whoever writes there waits until it is
// done. Memory, a float an element, with momentum two, is allocated at the join.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/core/calls/far.h"
#include "client/core/calls/layout.h"
#include "client/prune/executor.h"
#include "client/prune/threshold.h"

namespace sluice::client {

// What pruning is told of a tensor: only float32 is pruned, as only float32 is rounded.
PruneTensor prunable_as(const TensorSpec& tensor) noexcept;
std::vector<PruneTensor> prunable_of(const Layout& layout);

// What a checkpoint keeps of a tensor.
struct Kept {
  std::span<float> values;  // the residual, and with momentum the velocity behind that
  PrunePosition* position = nullptr;
};

class Residuals {
 public:
  // `layout` outlives it, and so does `executor`; null: what is measured is measured at once.
  Residuals(const Layout& layout, const PruneOptions& pruning, Executor* executor);
  ~Residuals();
  Residuals(const Residuals&) = delete;

  // Of the tensor's values only the big ones leave, or have left.
  bool prunes(std::uint32_t tensor) const noexcept {
    return thresholds_.prunes(tensor) || layout_.tensor(tensor).sparse;
  }
  bool prunes_any() const noexcept { return prunes_any_; }
  // The tensor travels at a loss, or as a velocity. The other calls are for such tensors only.
  bool covers(std::uint32_t tensor) const noexcept { return covers_[tensor] != 0; }

  // See far.h.
  bool is_far(std::uint32_t tensor) const noexcept { return layout_.tensor(tensor).far; }

  // Once a step: begins to find out what of the tensor leaves. `gradient` stays as it is until
  // measured(), before which no chunk of the tensor is packed or updated.
  void begin_step(std::uint32_t tensor, const float* gradient, FarTensor* far = nullptr);
  bool measured(std::uint32_t tensor) const noexcept { return measurements_[tensor].done(); }
  void await(std::uint32_t tensor) noexcept;
  // From each tensor's next step on all of it leaves, with all that was left behind: what a worker
  // does in its last step.
  void flush() noexcept { flushes_ = true; }
  // What the tensor keeps has been kept from leaving: not, after a flush, where rounding keeps
  // something of whatever leaves.
  bool leaves_behind(std::uint32_t tensor) const noexcept {
    return prunes(tensor) && !(flushes_ && layout_.is_rounded(tensor));
  }

  // ---- a chunk of a gradient, elem_count floats ----
  // Writes a dense payload, payload_bytes(wire dtype, elem_count) bytes.
  void pack(const ChunkSpan& span, const float* gradient, std::uint8_t* out) noexcept;
  // Writes the entry of that payload; see agg::compress().
  std::size_t compress(const ChunkSpan& span, const float* gradient,
                       std::span<std::uint8_t> out) noexcept;
  // Delivered, or kept somewhere else as it was packed: what packing lost stays. Else all does.
  void update(const ChunkSpan& span, const float* gradient, bool delivered) noexcept;
  // What was packed, and kept somewhere else, will not be delivered after all.
  void give_back(const ChunkSpan& span, std::span<const std::uint8_t> payload) noexcept;
  // It was part of a value of which nobody knows whether it was delivered.
  void discard(const ChunkSpan& span) noexcept;

  // ---- a tensor ----
  // Not of a far tensor; likewise scale().
  Kept of(std::uint32_t tensor) noexcept;
  // The scale of the loss has changed by this factor.
  void scale(float factor) noexcept;

 private:
  bool has_velocity(std::uint32_t tensor) const noexcept {
    const TensorSpec& spec = layout_.tensor(tensor);
    return momentum_ > 0 && spec.dtype == Dtype::kFloat32 && !spec.exact && !spec.relayed;
  }
  // What leaves of it is chosen element by element, or is no gradient.
  bool selects(std::uint32_t tensor) const noexcept {
    return thresholds_.prunes(tensor) || has_velocity(tensor);
  }
  // Its residual is somewhere else.
  bool is_relayed(std::uint32_t tensor) const noexcept { return layout_.tensor(tensor).relayed; }
  bool keeps_here(std::uint32_t tensor) const noexcept {
    return !is_relayed(tensor) && !is_far(tensor);
  }
  std::uint32_t index_in_tensor(const ChunkSpan& span) const noexcept {
    return static_cast<std::uint32_t>(span.first_elem / layout_.chunk_elems(span.tensor));
  }
  // Finds the tensor's threshold for a step, and its velocity.
  struct Measurement final : Task {
    void work() noexcept override { residuals->measure(*this); }
    Residuals* residuals = nullptr;
    std::uint32_t tensor = 0;
    const float* gradient = nullptr;
    bool whole = false;  // all of it leaves
  };
  void measure(const Measurement& measurement) noexcept;
  // Of a far tensor: its entry of a sparse packet, nothing, or what pack() writes.
  std::span<const std::uint8_t> packed(const ChunkSpan& span) const noexcept;
  void pack_far(const ChunkSpan& span, std::uint8_t* out) const noexcept;
  // A chunk's gradient, or what stands in its place.
  const float* value_of(const ChunkSpan& span, const float* gradient) noexcept;
  void select(const ChunkSpan& span, const float* gradient) noexcept;  // what leaves, into left_
  float* at(const ChunkSpan& span) noexcept;
  float* velocity_at(const ChunkSpan& span) noexcept;

  const Layout& layout_;
  Thresholds thresholds_;
  float momentum_;
  Executor* const executor_;
  std::vector<Measurement> measurements_;  // by tensor
  bool prunes_any_ = false;
  std::vector<std::uint8_t> covers_;  // by tensor
  std::vector<float> limits_;         // of each tensor in the step under way: smaller values stay
  bool flushes_ = false;
  std::vector<FarTensor*> far_;       // by tensor; null: none, or no step of it has begun
  std::vector<std::uint64_t> first_;  // of each tensor, in values_
  std::vector<float> values_;
  // Of one chunk that is pruned or a velocity's: what leaves, as floats and packed, and a residual
  // of nothing, as relayed tensors have.
  std::vector<float> left_;
  std::vector<std::uint8_t> packed_;
  std::vector<float> nothing_;
};

}  // namespace sluice::client

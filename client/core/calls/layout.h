// How a job's tensors become chunks: in registration order, each cut into pieces of at most
// chunk_bytes, none crossing a tensor. Both sides of a job must have the same layout; its hash says
// so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"
#include "aggregator/base/types.h"

namespace sluice::client {

// What is special about a part of a tensor on its way through a BCube, whose half-way sums are
// float32 whatever the wire format is.
enum class Hop : std::uint8_t {
  kWhole,  // nothing: contributions and results travel in the wire format
  kFirst,  // contributions alone do: the result is a half-way sum
  kTurn,   // the result alone does: the average, of half-way sums
  kDown,   // both: the average is passed on, one contribution as it is
};

struct TensorSpec {
  std::string name;
  std::uint64_t elem_count = 0;
  Dtype dtype = Dtype::kFloat32;
  bool exact = false;         // it travels as it is, whatever the wire format and the pruning are
  bool dense = false;         // it is never pruned
  bool begins_block = false;  // its chunks begin a block of 64: the first of a layer of a store
  Hop hop{};
  // What is submitted is such that the wire format holds it, and whoever submits it keeps the
  // residual; outputs are as results travel: a sum in float32, an average else.
  bool relayed = false;
  bool sparse = false;  // relayed, and pruned
  bool far = false;     // its submissions come with a FarTensor: it lies in a device's memory
};

struct ChunkSpan {
  std::uint32_t tensor = 0;
  std::uint64_t first_elem = 0;
  std::uint16_t elem_count = 0;
};

class Layout {
 public:
  // `wire`: the format that the elements of float32 tensors travel in, but of exact ones.
  // Fails when a tensor is empty or of opaque bytes, when there are none, when chunk_bytes is out
  // of range, or when there would be over kMaxChunks chunks. In blocks: when the first tensor
  // begins none, or one is not float32.
  static Result<Layout> create(std::vector<TensorSpec> tensors, std::size_t chunk_bytes,
                               Dtype wire = Dtype::kFloat32);

  // Of a job of kind operations, which has no tensors.
  static Result<Layout> without_tensors(std::size_t chunk_bytes);

  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  std::uint32_t chunk_count() const noexcept { return first_chunks_.back(); }
  std::uint32_t tensor_count() const noexcept {
    return static_cast<std::uint32_t>(tensors_.size());
  }
  const TensorSpec& tensor(std::uint32_t index) const noexcept { return tensors_[index]; }
  Dtype wire() const noexcept { return wire_; }
  // How its elements travel.
  Dtype wire_dtype(std::uint32_t index) const noexcept { return wire_dtypes_[index]; }
  // How its results' elements do.
  Dtype result_dtype(std::uint32_t index) const noexcept { return result_dtypes_[index]; }
  // They lose something on the way.
  bool is_rounded(std::uint32_t index) const noexcept {
    return wire_dtype(index) != tensors_[index].dtype;
  }
  // Each layer begins a block: indices of chunks between layers are of no chunk.
  bool in_blocks() const noexcept { return !tensors_.empty() && tensors_.front().begins_block; }
  // Behind its last chunk.
  ChunkIndex end_chunk(std::uint32_t tensor) const noexcept {
    const std::uint64_t elems = chunk_elems_[tensor];
    return first_chunks_[tensor] +
           static_cast<ChunkIndex>((tensors_[tensor].elem_count + elems - 1) / elems);
  }
  // First chunk of a tensor; first_chunk(tensor_count()) is chunk_count().
  ChunkIndex first_chunk(std::uint32_t tensor) const noexcept { return first_chunks_[tensor]; }
  std::uint32_t chunks_of(std::uint32_t tensor) const noexcept {
    return first_chunks_[tensor + 1] - first_chunks_[tensor];
  }
  // Of every tensor, and chunk_count().
  std::span<const ChunkIndex> first_chunks() const noexcept { return first_chunks_; }
  ChunkSpan chunk(ChunkIndex index) const noexcept {
    DCHECK(index < chunk_count());
    std::uint32_t tensor = block_tensors_[index / kChunksPerBlock];
    while (first_chunks_[tensor + 1] <= index) ++tensor;
    const std::uint64_t chunk_elems = chunk_elems_[tensor];
    const std::uint64_t first_elem = (index - first_chunks_[tensor]) * chunk_elems;
    DCHECK(first_elem < tensors_[tensor].elem_count);
    const std::uint64_t left = tensors_[tensor].elem_count - first_elem;
    return {.tensor = tensor,
            .first_elem = first_elem,
            .elem_count = static_cast<std::uint16_t>(std::min(chunk_elems, left))};
  }
  // Of each of the tensor's chunks but the last.
  std::uint32_t chunk_elems(std::uint32_t index) const noexcept { return chunk_elems_[index]; }
  // Elements of the biggest chunk.
  std::uint32_t max_chunk_elems() const noexcept { return max_chunk_elems_; }
  // FNV-1a 64 over chunk_bytes and every tensor in order: all of its TensorSpec but where it lies.
  std::uint64_t hash() const noexcept { return hash_; }
  // Of tensors in a row, by which a rank can say where its layout differs from another one's.
  std::uint32_t fingerprint(std::uint32_t first, std::uint32_t count) const noexcept;

 private:
  Layout() = default;
  static Dtype wire_dtype(const TensorSpec& tensor, Dtype wire) noexcept {
    return tensor.dtype == Dtype::kFloat32 && !tensor.exact ? wire : tensor.dtype;
  }
  std::vector<TensorSpec> tensors_;
  std::vector<ChunkIndex> first_chunks_;
  std::vector<std::uint32_t> chunk_elems_;    // by tensor: of each of its chunks but the last
  std::vector<std::uint64_t> tensor_hashes_;  // by tensor
  std::vector<Dtype> wire_dtypes_;            // by tensor
  std::vector<Dtype> result_dtypes_;          // by tensor
  std::vector<std::uint32_t> block_tensors_;  // by block of chunks: the tensor of its first
  std::size_t chunk_bytes_ = 0;
  Dtype wire_ = Dtype::kFloat32;
  std::uint32_t max_chunk_elems_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace sluice::client

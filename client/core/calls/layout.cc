#include "client/core/calls/layout.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"

namespace sluice::client {
namespace {

constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325;
constexpr std::uint64_t kFnvPrime = 0x100000001b3;

void mix(std::uint64_t& hash, std::uint64_t value) noexcept {
  for (int byte = 0; byte < 8; ++byte) {
    hash ^= value >> (8 * byte) & 0xff;
    hash *= kFnvPrime;
  }
}

std::uint64_t hash_of(const TensorSpec& tensor, Dtype travels, Dtype result) noexcept {
  std::uint64_t hash = kFnvOffset;
  mix(hash, tensor.name.size());
  for (const char letter : tensor.name) mix(hash, static_cast<unsigned char>(letter));
  for (const std::uint64_t value :
       {std::uint64_t{tensor.elem_count}, static_cast<std::uint64_t>(tensor.dtype),
        static_cast<std::uint64_t>(travels), static_cast<std::uint64_t>(result),
        std::uint64_t{tensor.exact}, std::uint64_t{tensor.dense}, std::uint64_t{tensor.sparse},
        std::uint64_t{tensor.begins_block}})
    mix(hash, value);
  return hash;
}

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status check_chunk_bytes(std::size_t chunk_bytes) {
  if (chunk_bytes >= kMinChunkBytes && chunk_bytes <= kMaxChunkBytes &&
      chunk_bytes % kChunkAlignBytes == 0)
    return {};
  return invalid("chunk size " + std::to_string(chunk_bytes) + " bytes: must be a multiple of " +
                 std::to_string(kChunkAlignBytes) + " from " + std::to_string(kMinChunkBytes) +
                 " to " + std::to_string(kMaxChunkBytes));
}

std::string describe(const TensorSpec& tensor, std::size_t index) {
  return "tensor " + std::to_string(index) + " '" + tensor.name + "'";
}

}  // namespace

Result<Layout> Layout::without_tensors(std::size_t chunk_bytes) {
  if (Status status = check_chunk_bytes(chunk_bytes); !status.ok()) return status;
  Layout layout;
  layout.chunk_bytes_ = chunk_bytes;
  layout.first_chunks_ = {0};
  layout.hash_ = kFnvOffset;
  mix(layout.hash_, chunk_bytes);
  return layout;
}

Result<Layout> Layout::create(std::vector<TensorSpec> tensors, std::size_t chunk_bytes,
                              Dtype wire) {
  CHECK(is_summed(wire));
  if (Status status = check_chunk_bytes(chunk_bytes); !status.ok()) return status;
  if (tensors.empty()) return invalid("the layout has no tensors: register at least one");

  Layout layout;
  layout.chunk_bytes_ = chunk_bytes;
  layout.wire_ = wire;
  layout.first_chunks_.reserve(tensors.size() + 1);
  std::uint64_t chunk_count = 0;
  std::uint64_t hash = kFnvOffset;
  mix(hash, chunk_bytes);
  const bool in_blocks = std::ranges::any_of(tensors, &TensorSpec::begins_block);
  if (in_blocks && !tensors.front().begins_block)
    return invalid(describe(tensors.front(), 0) + " begins no layer: the first tensor must");
  const auto end_block = [&] {
    chunk_count = (chunk_count + kChunksPerBlock - 1) / kChunksPerBlock * kChunksPerBlock;
  };
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    const TensorSpec& tensor = tensors[index];
    if (tensor.elem_count == 0)
      return invalid(describe(tensor, index) + " has no elements: leave it out of the layout");
    if (tensor.dtype > Dtype::kBfloat16)
      return invalid(describe(tensor, index) +
                     " has a type that cannot be summed: use float32, float16 or bfloat16");
    if (in_blocks && (tensor.dtype != Dtype::kFloat32 || wire != Dtype::kFloat32))
      return invalid(describe(tensor, index) +
                     " of a store: its elements are float32, as they are");
    if (tensor.begins_block) end_block();
    layout.first_chunks_.push_back(static_cast<ChunkIndex>(chunk_count));
    const Dtype travels = tensor.hop == Hop::kTurn ? tensor.dtype : wire_dtype(tensor, wire);
    const Dtype result = tensor.hop == Hop::kFirst ? tensor.dtype : wire_dtype(tensor, wire);
    layout.wire_dtypes_.push_back(travels);
    layout.result_dtypes_.push_back(result);
    // A chunk must have the same elements in the formats of all legs.
    const Dtype widest = tensor.hop == Hop::kWhole ? travels : tensor.dtype;
    const std::uint64_t chunk_elems =
        (chunk_bytes - (payload_bytes(widest, 1) - dtype_bytes(widest))) / dtype_bytes(widest);
    layout.chunk_elems_.push_back(static_cast<std::uint32_t>(chunk_elems));
    // Compared before it is added, so that a huge tensor cannot wrap the sum.
    const std::uint64_t needed =
        tensor.elem_count / chunk_elems + (tensor.elem_count % chunk_elems != 0);
    if (needed > kMaxChunks - chunk_count)
      return invalid(describe(tensor, index) + " brings the layout to more than " +
                     std::to_string(kMaxChunks) + " chunks of " + std::to_string(chunk_bytes) +
                     " bytes: use a larger chunk size");
    chunk_count += needed;
    layout.max_chunk_elems_ = std::max<std::uint32_t>(
        layout.max_chunk_elems_,
        static_cast<std::uint32_t>(std::min(tensor.elem_count, chunk_elems)));
    layout.tensor_hashes_.push_back(hash_of(tensor, travels, result));
    mix(hash, layout.tensor_hashes_.back());
  }
  if (in_blocks) end_block();
  layout.first_chunks_.push_back(static_cast<ChunkIndex>(chunk_count));
  for (std::uint32_t tensor = 0, first = 0; first < chunk_count; first += kChunksPerBlock) {
    while (layout.first_chunks_[tensor + 1] <= first) ++tensor;
    layout.block_tensors_.push_back(tensor);
  }
  layout.tensors_ = std::move(tensors);
  layout.hash_ = hash;
  CHECK(chunk_count != 0 && layout.max_chunk_elems_ != 0);
  CHECK(layout.first_chunks_.size() == layout.tensors_.size() + 1);
  return layout;
}

std::uint32_t Layout::fingerprint(std::uint32_t first, std::uint32_t count) const noexcept {
  CHECK(first < tensor_count());
  std::uint64_t hash = kFnvOffset;
  for (std::uint32_t index = first; index < tensor_count() && index - first < count; ++index)
    mix(hash, tensor_hashes_[index]);
  return static_cast<std::uint32_t>(hash ^ hash >> 32);
}

}  // namespace sluice::client

// The kernels that make up each operation of kernels.h, in their order; one source for the plug-in
// and the fake device. Cold: it only starts work.
//
// A Launcher has launch(blocks, kernel) and zero(memory, bytes), which take effect in the order of
// the calls and return false when they can't.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "client/device/cuda/chunks.h"
#include "client/device/cuda/payloads.h"
#include "client/device/cuda/thresholds.h"
#include "client/device/kernels.h"

namespace sluice::cuda {

inline constexpr std::uint32_t kMaxCountBlocks = 1024;
inline constexpr int kDynamicRounds = 3;

constexpr std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
constexpr std::uint32_t blocks_for(std::uint64_t count, std::uint32_t of_each) {
  return static_cast<std::uint32_t>((count + of_each - 1) / of_each);
}
inline std::uint32_t chunk_blocks(const sluice_device_tensor& tensor) {
  return blocks_for(chunk_count(tensor), kGroups);
}

// The parts of the workspace in which a threshold is found.
struct Workspace {
  Selection* selection = nullptr;
  Sums* total = nullptr;
  Sums* blocks = nullptr;
  std::size_t bytes = 0;

  Workspace(void* memory, std::uint64_t elem_count) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    const std::size_t first = rounded_up(sizeof(Selection));
    const std::size_t second = first + rounded_up(sizeof(Sums));
    selection = reinterpret_cast<Selection*>(at);
    total = reinterpret_cast<Sums*>(at + first);
    blocks = reinterpret_cast<Sums*>(at + second);
    bytes = second + rounded_up(sum_blocks(elem_count) * sizeof(Sums));
  }
};

inline std::size_t workspace_bytes(const sluice_device_tensor& tensor) {
  return Workspace(nullptr, tensor.elem_count).bytes;
}

template <class Launcher>
bool select_rank(const Launcher& on, const Elements& from, std::uint64_t rank,
                 const Workspace& space, float* threshold) {
  const std::uint32_t blocks =
      std::min(blocks_for(from.elem_count, CountRanges::kThreads), kMaxCountBlocks);
  bool good = on.zero(space.selection, sizeof(Selection));
  for (int pass = 0; good && pass < kSelectPasses; ++pass)
    good =
        on.launch(blocks, CountRanges{.from = from, .pass = pass, .selection = space.selection}) &&
        on.launch(
            1,
            ChooseRange{
                .pass = pass, .rank = rank, .selection = space.selection, .threshold = threshold});
  return good;
}

// `least`: see SumBlocks; `sigmas`: see FinishSums.
template <class Launcher>
bool sum_up(const Launcher& on, const Elements& from, const float* least, double sigmas,
            const Workspace& space, float* threshold) {
  const std::uint32_t blocks = blocks_for(sum_blocks(from.elem_count), SumBlocks::kBlocksAtOnce);
  return on.launch(blocks, SumBlocks{.from = from, .least = least, .out = space.blocks}) &&
         on.launch(1, FinishSums{.blocks = space.blocks,
                                 .elem_count = from.elem_count,
                                 .sigmas = sigmas,
                                 .total = space.total,
                                 .threshold = threshold});
}

template <class Launcher>
bool find_threshold(const Launcher& on, const sluice_device_tensor& tensor,
                    const sluice_device_rule& rule, void* workspace, float* threshold) {
  const Elements from{tensor.gradient, tensor.residual, tensor.elem_count};
  const Workspace space(workspace, tensor.elem_count);
  switch (rule.kind) {
    case SLUICE_DEVICE_RANK: return select_rank(on, from, rule.rank, space, threshold);
    case SLUICE_DEVICE_SIGMA: return sum_up(on, from, nullptr, rule.sigmas, space, threshold);
    case SLUICE_DEVICE_ALL: return on.zero(threshold, sizeof *threshold);
    default: break;
  }
  bool good = on.zero(threshold, sizeof *threshold);
  for (int round = 0; good && round < kDynamicRounds; ++round)
    good = sum_up(on, from, threshold, 0, space, threshold);
  return good;
}

// Launches the Kernel of the tensor's format; `rest` are its members besides the tensor.
template <template <Dtype> class Kernel, class Launcher, class... Rest>
bool launch_chunks(const Launcher& on, const sluice_device_tensor& tensor, const Rest&... rest) {
  const std::uint32_t blocks = chunk_blocks(tensor);
  switch (static_cast<Dtype>(tensor.wire)) {
    case Dtype::kFloat32: return on.launch(blocks, Kernel<Dtype::kFloat32>{{{tensor}}, rest...});
    case Dtype::kFloat16: return on.launch(blocks, Kernel<Dtype::kFloat16>{{{tensor}}, rest...});
    case Dtype::kBfloat16: return on.launch(blocks, Kernel<Dtype::kBfloat16>{{{tensor}}, rest...});
    default: return on.launch(blocks, Kernel<Dtype::kInt8>{{{tensor}}, rest...});
  }
}

template <class Launcher>
bool pack(const Launcher& on, const sluice_device_tensor& tensor, const float* threshold,
          std::uint8_t* packed, std::uint64_t* extents) {
  const std::uint32_t chunks = chunk_count(tensor);
  std::uint64_t* const total = extents + chunks;
  return on.zero(total, sizeof *total) &&
         launch_chunks<PackChunks>(on, tensor, Sieve{threshold}, packed, extents, total, chunks);
}

template <class Launcher>
bool update_residual(const Launcher& on, const sluice_device_tensor& tensor, const float* threshold,
                     const std::uint8_t* fates) {
  return launch_chunks<UpdateResiduals>(on, tensor, Sieve{threshold}, fates);
}

template <class Launcher>
bool give_back(const Launcher& on, const sluice_device_tensor& tensor, const std::uint32_t* chunks,
               const std::uint8_t* payloads, std::uint32_t count) {
  return on.launch(blocks_for(count, kGroups), GiveBackChunks{{tensor}, chunks, payloads, count});
}

template <class Launcher>
bool scale(const Launcher& on, float* values, std::uint64_t count, float factor) {
  return on.launch(std::min(blocks_for(count, ScaleValues::kThreads), kMaxCountBlocks),
                   ScaleValues{values, count, factor});
}

template <class Launcher>
bool convert(const Launcher& on, const sluice_device_tensor& tensor, std::uint8_t* payloads) {
  return launch_chunks<ConvertChunks>(on, tensor, payloads);
}

template <class Launcher>
bool unpack(const Launcher& on, const sluice_device_tensor& tensor, const std::uint8_t* packed,
            const sluice_device_result* results, float* output) {
  return launch_chunks<UnpackChunks>(on, tensor, packed, results, output);
}

}  // namespace sluice::cuda

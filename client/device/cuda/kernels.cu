// The kernels of kernels.h on the device: every lane of lanes.h is a thread, and a phase ends at a
// barrier. They run on the stream of the copies from the device, in the order of the calls.
#include <cuda_runtime.h>

#include <cub/warp/warp_scan.cuh>

#include "client/device/cuda/opened.h"
#include "client/device/cuda/operations.h"

namespace sluice::cuda {
namespace {

__device__ inline void sum_up(std::uint32_t number, Lane& lane) {
  using Scan = cub::WarpScan<std::uint32_t>;
  Scan::TempStorage nothing;  // of a whole warp
  Scan(nothing).ExclusiveSum(number, lane.before, lane.total);
}

template <class Kernel>
constexpr int least_blocks() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // older ones have fewer threads at once
  if constexpr (requires { Kernel::kLeastBlocks; }) return Kernel::kLeastBlocks;
#endif
  return 1;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, least_blocks<Kernel>())
    run_kernel(const Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  Lane lane{.block = blockIdx.x, .blocks = gridDim.x, .thread = threadIdx.x};
#pragma unroll
  for (int phase = 0; phase < Kernel::kPhases; ++phase) {
    if (phase >= Kernel::kAllWait)
      __syncthreads();
    else if (phase != 0)
      __syncwarp();
    if constexpr (requires { Kernel::kSummed; }) {
      const std::uint32_t number = kernel.run(phase, lane, shared);
      if (phase == Kernel::kSummed) sum_up(number, lane);
    } else {
      kernel.run(phase, lane, shared);
    }
  }
}

struct CudaLauncher {
  cudaStream_t stream;

  template <class Kernel>
  bool launch(std::uint32_t blocks, const Kernel& kernel) const {
    if (blocks == 0) return true;
    run_kernel<<<blocks, Kernel::kThreads, 0, stream>>>(kernel);
    return ok(cudaGetLastError(), "kernel");
  }
  bool zero(void* memory, std::size_t bytes) const {
    return ok(cudaMemsetAsync(memory, 0, bytes, stream), "cudaMemsetAsync");
  }
};

// Starts the work and returns the mark of its end.
template <class Work>
sluice_device_mark* start(sluice_device* device, const Work& work) {
  const Current current(device->ordinal);
  const bool good = current && work(CudaLauncher{device->in});
  return good ? mark_in(device, device->in) : nullptr;
}

void* acquire_memory(sluice_device* device, size_t bytes) {
  const Current current(device->ordinal);
  void* memory = nullptr;
  if (!current || !ok(cudaMalloc(&memory, bytes), "cudaMalloc")) return nullptr;
  if (ok(cudaMemsetAsync(memory, 0, bytes, device->in), "cudaMemsetAsync")) return memory;
  (void)cudaFree(memory);
  return nullptr;
}

void free_memory(sluice_device* device, void* memory) {
  const Current current(device->ordinal);
  (void)ok(cudaFree(memory), "cudaFree");
}

uint64_t bytes_to_work_in(const sluice_device_tensor* tensor) { return workspace_bytes(*tensor); }

sluice_device_mark* start_copy(sluice_device* device, void* to, const void* from, size_t bytes) {
  return start(device, [=](const CudaLauncher& on) {
    return ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on.stream), "cudaMemcpyAsync");
  });
}

sluice_device_mark* start_threshold(sluice_device* device, const sluice_device_tensor* tensor,
                                    const sluice_device_rule* rule, void* workspace,
                                    float* threshold) {
  return start(device, [=](const CudaLauncher& on) {
    return find_threshold(on, *tensor, *rule, workspace, threshold);
  });
}

sluice_device_mark* start_pack(sluice_device* device, const sluice_device_tensor* tensor,
                               const float* threshold, uint8_t* packed, uint64_t* extents) {
  return start(device, [=](const CudaLauncher& on) {
    return pack(on, *tensor, threshold, packed, extents);
  });
}

sluice_device_mark* start_update_residual(sluice_device* device, const sluice_device_tensor* tensor,
                                          const float* threshold, const uint8_t* fates) {
  return start(device, [=](const CudaLauncher& on) {
    return update_residual(on, *tensor, threshold, fates);
  });
}

sluice_device_mark* start_give_back(sluice_device* device, const sluice_device_tensor* tensor,
                                    const uint32_t* chunks, const uint8_t* payloads,
                                    uint32_t count) {
  return start(device, [=](const CudaLauncher& on) {
    return give_back(on, *tensor, chunks, payloads, count);
  });
}

sluice_device_mark* start_scale(sluice_device* device, float* values, uint64_t count,
                                float factor) {
  return start(device, [=](const CudaLauncher& on) { return scale(on, values, count, factor); });
}

sluice_device_mark* start_convert(sluice_device* device, const sluice_device_tensor* tensor,
                                  uint8_t* payloads) {
  return start(device, [=](const CudaLauncher& on) { return convert(on, *tensor, payloads); });
}

sluice_device_mark* start_unpack(sluice_device* device, const sluice_device_tensor* tensor,
                                 const uint8_t* values, const sluice_device_result* results,
                                 float* output) {
  return start(
      device, [=](const CudaLauncher& on) { return unpack(on, *tensor, values, results, output); });
}

}  // namespace
}  // namespace sluice::cuda

extern "C" __attribute__((visibility("default")))
const sluice_device_kernels sluice_device_kernels = {
    SLUICE_DEVICE_KERNELS_ABI,     sluice::cuda::acquire_memory,
    sluice::cuda::free_memory,     sluice::cuda::bytes_to_work_in,
    sluice::cuda::start_copy,      sluice::cuda::start_threshold,
    sluice::cuda::start_pack,      sluice::cuda::start_update_residual,
    sluice::cuda::start_give_back, sluice::cuda::start_scale,
    sluice::cuda::start_convert,   sluice::cuda::start_unpack};

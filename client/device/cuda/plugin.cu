// The plug-in for device memory: CUDA's copy engines and events behind the table of plugin.h.
//
// The runtime is linked statically, so the machine needs NVIDIA's driver alone. An open device has
// a stream for each direction; a mark is an event. Every call makes its device the current one and
// restores the calling thread's own, which is the training's.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "client/device/cuda/opened.h"
#include "client/device/plugin.h"

namespace {

using namespace sluice::cuda;

// Either side is aligned for 16 bytes but for a tensor's last piece and odd tensors.
__global__ void copy_kernel(void* to, const void* from, size_t bytes) {
  const size_t at = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  const bool wide = (reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from)) % 16 == 0;
  const size_t quads = wide ? bytes / 16 : 0;
  for (size_t i = at; i < quads; i += stride)
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  for (size_t i = quads * 16 + at; i < bytes; i += stride)
    static_cast<unsigned char*>(to)[i] = static_cast<const unsigned char*>(from)[i];
}

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // enough for a bus, few enough to leave the training its processors

bool start_copy(sluice_device* device, cudaStream_t stream, void* to, const void* from,
                size_t bytes) {
  if (!device->by_kernel)
    return ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  copy_kernel<<<kBlocks, kThreads, 0, stream>>>(to, from, bytes);
  return ok(cudaGetLastError(), "copy kernel");
}

void close_device(sluice_device* device) {
  const Current current(device->ordinal);
  for (cudaStream_t stream : {device->in, device->out}) {
    if (stream == nullptr) continue;
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
  for (sluice_device_mark* mark : device->free) {
    (void)cudaEventDestroy(mark->event);
    delete mark;
  }
  (void)cudaGetLastError();
  delete device;
}

// The rate of the opened path: the best of a few copies of some megabytes.
bool measure(sluice_device* device, double* bytes_per_s) {
  constexpr size_t kBytes = size_t{8} << 20;
  void* host = nullptr;
  void* memory = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  bool good = ok(cudaHostAlloc(&host, kBytes, cudaHostAllocPortable | cudaHostAllocMapped),
                 "cudaHostAlloc") &&
              ok(cudaMalloc(&memory, kBytes), "cudaMalloc") &&
              ok(cudaEventCreate(&start), "cudaEventCreate") &&
              ok(cudaEventCreate(&end), "cudaEventCreate");
  float best_ms = 0;
  for (int i = 0; good && i < 4; ++i) {
    float ms = 0;
    good = ok(cudaEventRecord(start, device->in), "cudaEventRecord") &&
           start_copy(device, device->in, host, memory, kBytes) &&
           ok(cudaEventRecord(end, device->in), "cudaEventRecord") &&
           ok(cudaEventSynchronize(end), "cudaEventSynchronize") &&
           ok(cudaEventElapsedTime(&ms, start, end), "cudaEventElapsedTime");
    if (good && (best_ms == 0 || ms < best_ms)) best_ms = ms;
  }
  if (start != nullptr) (void)cudaEventDestroy(start);
  if (end != nullptr) (void)cudaEventDestroy(end);
  (void)cudaFree(memory);
  (void)cudaFreeHost(host);
  *bytes_per_s = best_ms > 0 ? kBytes / (best_ms * 1e-3) : 0;
  return good;
}

bool open_streams(sluice_device* device, int32_t path, sluice_device_facts* facts) {
  cudaDeviceProp properties{};
  if (!ok(cudaGetDeviceProperties(&properties, device->ordinal), "cudaGetDeviceProperties"))
    return false;
  if (path == SLUICE_DEVICE_ZERO_COPY && properties.canMapHostMemory == 0) {
    error_text = "this device can't map host memory";
    return false;
  }
  std::snprintf(facts->name, sizeof facts->name, "%.100s", properties.name);
  device->by_kernel = path == SLUICE_DEVICE_ZERO_COPY;
  int least = 0, greatest = 0;
  return ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities") &&
         ok(cudaStreamCreateWithPriority(&device->in, cudaStreamNonBlocking, greatest),
            "cudaStreamCreate") &&
         ok(cudaStreamCreateWithPriority(&device->out, cudaStreamNonBlocking, greatest),
            "cudaStreamCreate") &&
         measure(device, &facts->bytes_per_s);
}

sluice_device* open_device(int32_t ordinal, int32_t path, sluice_device_facts* facts) {
  auto* const device = new (std::nothrow) sluice_device;
  if (device == nullptr) {
    error_text = "out of memory";
    return nullptr;
  }
  device->ordinal = ordinal;
  const Current current(ordinal);
  if (current && open_streams(device, path, facts)) return device;
  const std::string why = error_text;
  close_device(device);
  error_text = why;
  return nullptr;
}

const char* error_of_thread() { return error_text.c_str(); }

int32_t count_devices() {
  int count = 0;
  return ok(cudaGetDeviceCount(&count), "NVIDIA's driver") ? count : -1;
}

void* allocate(sluice_device* device, size_t bytes) {
  const Current current(device->ordinal);
  void* memory = nullptr;
  const bool good =
      current && ok(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                    "cudaHostAlloc");
  return good ? memory : nullptr;
}

void release(sluice_device* device, void* memory) {
  const Current current(device->ordinal);
  (void)cudaStreamSynchronize(device->in);
  (void)cudaStreamSynchronize(device->out);
  (void)cudaFreeHost(memory);
}

sluice_device_mark* mark(sluice_device* device, void* stream) {
  const Current current(device->ordinal);
  return current ? mark_in(device, static_cast<cudaStream_t>(stream)) : nullptr;
}

sluice_device_mark* copy(sluice_device* device, cudaStream_t stream, void* to, const void* from,
                         size_t bytes) {
  const Current current(device->ordinal);
  if (!current || !start_copy(device, stream, to, from, bytes)) return nullptr;
  return mark_in(device, stream);
}

sluice_device_mark* copy_in(sluice_device* device, void* host, const void* memory, size_t bytes) {
  return copy(device, device->in, host, memory, bytes);
}

sluice_device_mark* copy_out(sluice_device* device, void* memory, const void* host, size_t bytes) {
  return copy(device, device->out, memory, host, bytes);
}

int32_t passed(sluice_device*, sluice_device_mark* mark) {
  const cudaError_t code = cudaEventQuery(mark->event);
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return 0;
  }
  return ok(code, "earlier work of the device") ? 1 : -1;
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const sluice_device_plugin sluice_device_plugin = {SLUICE_DEVICE_PLUGIN_ABI,
                                                   error_of_thread,
                                                   count_devices,
                                                   open_device,
                                                   close_device,
                                                   allocate,
                                                   release,
                                                   mark,
                                                   copy_in,
                                                   copy_out,
                                                   passed,
                                                   drop};

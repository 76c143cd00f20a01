// The kernels of the fake device: the device's own source, run by the host lane by lane, at once.
#include <cstdlib>

#include "client/device/cuda/host_lanes.h"
#include "client/device/cuda/operations.h"

extern "C" const sluice_device_plugin sluice_device_plugin;  // fake_device.cc

namespace {

namespace cuda = sluice::cuda;
constexpr cuda::HostLauncher kHost;

sluice_device_mark* done(sluice_device* device, bool good) {
  return good ? sluice_device_plugin.mark(device, nullptr) : nullptr;
}

void* acquire(sluice_device*, std::size_t bytes) { return std::malloc(bytes); }
void give_back(sluice_device*, void* memory) { std::free(memory); }

std::uint64_t workspace_bytes(sluice_device*, const sluice_device_tensor* tensor) {
  return cuda::workspace_bytes(kHost, *tensor);
}

sluice_device_mark* copy(sluice_device* device, void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return done(device, true);
}

sluice_device_mark* find_threshold(sluice_device* device, const sluice_device_tensor* tensor,
                                   const sluice_device_rule* rule, void* workspace,
                                   float* threshold) {
  return done(device, cuda::find_threshold(kHost, *tensor, *rule, workspace, threshold));
}

sluice_device_mark* pack(sluice_device* device, const sluice_device_tensor* tensor,
                         const float* threshold, void* workspace, std::uint8_t* packed,
                         std::uint64_t* offsets) {
  return done(device, cuda::pack(kHost, *tensor, threshold, workspace, packed, offsets));
}

sluice_device_mark* settle(sluice_device* device, const sluice_device_tensor* tensor,
                           const float* threshold) {
  return done(device, cuda::settle(kHost, *tensor, threshold));
}

sluice_device_mark* convert(sluice_device* device, const sluice_device_tensor* tensor,
                            std::uint8_t* payloads) {
  return done(device, cuda::convert(kHost, *tensor, payloads));
}

sluice_device_mark* unpack(sluice_device* device, const sluice_device_tensor* tensor,
                           const std::uint8_t* packed, const std::uint64_t* offsets,
                           const sluice_device_average* averages, float* output) {
  return done(device, cuda::unpack(kHost, *tensor, packed, offsets, averages, output));
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const sluice_device_kernels sluice_device_kernels = {
    .abi = SLUICE_DEVICE_KERNELS_ABI,
    .acquire = acquire,
    .free = give_back,
    .workspace_bytes = workspace_bytes,
    .copy = copy,
    .find_threshold = find_threshold,
    .pack = pack,
    .settle = settle,
    .convert = convert,
    .unpack = unpack,
};

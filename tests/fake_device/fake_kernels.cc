// The kernels of the fake device: the device's own source, run by the host lane by lane, late.
#include <cstdlib>

#include "client/device/cuda/host_lanes.h"
#include "client/device/cuda/operations.h"
#include "tests/fake_device/fake_device.h"

namespace {

namespace cuda = sluice::cuda;
constexpr cuda::HostLauncher kHost;

// Arguments are the caller's only until the call returns.
template <class Work>
sluice_device_mark* start(sluice_device* device, Work work) {
  return fake_device::start(device, [work] {
    if (!work()) std::abort();
  });
}

void* acquire(sluice_device*, std::size_t bytes) { return fake_device::acquire(bytes); }
void release(sluice_device* device, void* memory) {
  fake_device::await(device);
  fake_device::give_back(memory);
}

std::uint64_t workspace_bytes(const sluice_device_tensor* tensor) {
  return cuda::workspace_bytes(*tensor);
}

sluice_device_mark* copy(sluice_device* device, void* to, const void* from, std::size_t bytes) {
  return start(device, [=] {
    std::memcpy(to, from, bytes);
    return true;
  });
}

sluice_device_mark* find_threshold(sluice_device* device, const sluice_device_tensor* tensor,
                                   const sluice_device_rule* rule, void* workspace,
                                   float* threshold) {
  return start(device, [=, tensor = *tensor, rule = *rule] {
    return cuda::find_threshold(kHost, tensor, rule, workspace, threshold);
  });
}

sluice_device_mark* pack(sluice_device* device, const sluice_device_tensor* tensor,
                         const float* threshold, std::uint8_t* packed, std::uint64_t* extents) {
  return start(device, [=, tensor = *tensor] {
    return cuda::pack(kHost, tensor, threshold, packed, extents);
  });
}

sluice_device_mark* update_residual(sluice_device* device, const sluice_device_tensor* tensor,
                                    const float* threshold, const std::uint8_t* fates) {
  return start(device, [=, tensor = *tensor] {
    return cuda::update_residual(kHost, tensor, threshold, fates);
  });
}

sluice_device_mark* give_back(sluice_device* device, const sluice_device_tensor* tensor,
                              const std::uint32_t* chunks, const std::uint8_t* payloads,
                              std::uint32_t count) {
  fake_device::count_to_device(count * (sizeof *chunks + cuda::dense_bytes(*tensor)));
  return start(device, [=, tensor = *tensor] {
    return cuda::give_back(kHost, tensor, chunks, payloads, count);
  });
}

sluice_device_mark* scale(sluice_device* device, float* values, std::uint64_t count, float factor) {
  return start(device, [=] { return cuda::scale(kHost, values, count, factor); });
}

sluice_device_mark* convert(sluice_device* device, const sluice_device_tensor* tensor,
                            std::uint8_t* payloads) {
  return start(device, [=, tensor = *tensor] { return cuda::convert(kHost, tensor, payloads); });
}

sluice_device_mark* unpack(sluice_device* device, const sluice_device_tensor* tensor,
                           const std::uint8_t* values, const sluice_device_result* results,
                           float* output) {
  return start(device, [=, tensor = *tensor] {
    return cuda::unpack(kHost, tensor, values, results, output);
  });
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const sluice_device_kernels sluice_device_kernels = {
    .abi = SLUICE_DEVICE_KERNELS_ABI,
    .acquire = acquire,
    .free = release,
    .workspace_bytes = workspace_bytes,
    .copy = copy,
    .find_threshold = find_threshold,
    .pack = pack,
    .update_residual = update_residual,
    .give_back = give_back,
    .scale = scale,
    .convert = convert,
    .unpack = unpack,
};

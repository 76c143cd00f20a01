// What the plug-in's parts share: a device that is open, and how failures are told. Only nvcc reads
// it.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <string>
#include <vector>

#include "client/device/plugin.h"

struct sluice_device {
  int ordinal = 0;
  bool by_kernel = false;
  cudaStream_t in = nullptr;  // also the kernels'
  cudaStream_t out = nullptr;
  std::mutex mutex;
  std::vector<sluice_device_mark*> free;
};

struct sluice_device_mark {
  cudaEvent_t event = nullptr;
};

namespace sluice::cuda {

// Of the calling thread's last failed call.
extern thread_local std::string error_text;
bool ok(cudaError_t code, const char* what);

// The calling thread works on this device for a while.
class Current {
 public:
  explicit Current(int ordinal);
  ~Current();
  Current(const Current&) = delete;
  explicit operator bool() const { return ok_; }

 private:
  int before_ = 0;
  bool ok_ = false;
  bool changed_ = false;
};

// A point in the stream's work. Null: failed.
sluice_device_mark* mark_in(sluice_device* device, cudaStream_t stream);
void drop(sluice_device* device, sluice_device_mark* mark);

}  // namespace sluice::cuda

// Shared by the sources of the plug-in: an open device, its marks, and the text of the last
// failure. Compiled by nvcc only.
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

// The text of the calling thread's last failed call.
extern thread_local std::string error_text;
bool ok(cudaError_t code, const char* what);

// Makes the device the calling thread's current one, and restores the one before at the end.
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

// A mark of the stream's work so far. Null: failed.
sluice_device_mark* mark_in(sluice_device* device, cudaStream_t stream);
void drop(sluice_device* device, sluice_device_mark* mark);

}  // namespace sluice::cuda

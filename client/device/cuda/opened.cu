// Open devices, marks and failures; see opened.h.
#include <new>

#include "client/device/cuda/opened.h"

namespace sluice::cuda {

thread_local std::string error_text;

namespace {

const char* remedy(cudaError_t code) {
  switch (code) {
    case cudaErrorInsufficientDriver:
      return "; install NVIDIA's driver, or a newer one (nvidia-smi shows which there is)";
    case cudaErrorNoDevice: return "; CUDA_VISIBLE_DEVICES may hide it";
    case cudaErrorInvalidDevice: return "; count devices from 0";
    default: return "";
  }
}

sluice_device_mark* new_mark(sluice_device* device) {
  {
    const std::lock_guard lock(device->mutex);
    if (!device->free.empty()) {
      sluice_device_mark* const mark = device->free.back();
      device->free.pop_back();
      return mark;
    }
  }
  auto* const mark = new (std::nothrow) sluice_device_mark;
  if (mark != nullptr &&
      ok(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming), "cudaEventCreate"))
    return mark;
  delete mark;
  return nullptr;
}

}  // namespace

bool ok(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return true;
  error_text = std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) +
               ")" + remedy(code);
  (void)cudaGetLastError();  // else the training's next check would find it
  return false;
}

Current::Current(int ordinal) {
  ok_ = ok(cudaGetDevice(&before_), "cudaGetDevice") &&
        (before_ == ordinal || ok(cudaSetDevice(ordinal), "cudaSetDevice"));
  changed_ = ok_ && before_ != ordinal;
}

Current::~Current() {
  if (changed_) (void)cudaSetDevice(before_);
}

void drop(sluice_device* device, sluice_device_mark* mark) {
  const std::lock_guard lock(device->mutex);
  device->free.push_back(mark);
}

sluice_device_mark* mark_in(sluice_device* device, cudaStream_t stream) {
  sluice_device_mark* const mark = new_mark(device);
  if (mark == nullptr || ok(cudaEventRecord(mark->event, stream), "cudaEventRecord")) return mark;
  drop(device, mark);
  return nullptr;
}

}  // namespace sluice::cuda

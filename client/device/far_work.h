// A far tensor's kernels: what the device does before its chunks leave and after their results have
// come, and the device's memory for that.
//
// The copier's thread, but for construction and destruction. Nothing here waits for the device but
// those two, and the first submission of a far tensor from the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aggregator/base/status.h"
#include "client/device/copy_stage.h"
#include "client/device/device.h"
#include "client/device/device_buffers.h"

namespace sluice::client {

class FarWork {
 public:
  // Gets the device's memory, and places `buffers` there. Both outlive it.
  static Result<std::unique_ptr<FarWork>> create(Device& device, DeviceBuffers& buffers,
                                                 const PruneOptions& pruning);
  ~FarWork();
  FarWork(const FarWork&) = delete;

  // Starts what a Copy of kernels says. False: failed, the device says why. A mark that is null:
  // there was nothing to start.
  bool start(const CopyStage::Copy& copy, sluice_device_mark*& mark);
  // That has passed.
  void passed(const CopyStage::Copy& copy);

 private:
  using Buffer = DeviceBuffers::Buffer;

  FarWork(Device& device, DeviceBuffers& buffers, const PruneOptions& pruning)
      : device_(device), kernels_(*device.kernels()), buffers_(buffers), pruning_(pruning) {}
  bool pack(const CopyStage::Copy& copy, Buffer& buffer, sluice_device_mark*& mark);
  bool finish(const CopyStage::Copy& copy, Buffer& buffer, sluice_device_mark*& mark);
  bool give_back(const sluice_device_tensor& tensor, Buffer& buffer, sluice_device_mark*& mark);
  bool then(sluice_device_mark* next, sluice_device_mark*& mark) const;
  float* loan(std::uint32_t tensor, const Buffer& buffer);
  sluice_device_rule rule_for(const CopyStage::Copy& copy) noexcept;

  Device& device_;
  const sluice_device_kernels& kernels_;
  DeviceBuffers& buffers_;
  const PruneOptions pruning_;
  void* memory_ = nullptr;
  void* workspace_ = nullptr;
  // Page-locked, by tensor: in place of what is submitted from the host's memory.
  std::vector<float*> loans_;
};

}  // namespace sluice::client

// The kernels of far tensors, which the device runs before chunks leave and after their results
// have come back, and the device memory that they need.
//
// Called on the copier's thread, but for construction and destruction. Only these two wait for the
// device, and the first submission of a far tensor from host memory, which allocates page-locked
// memory.
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
  // Allocates device memory and places `buffers` there. `device` and `buffers` outlive the object.
  static Result<std::unique_ptr<FarWork>> create(Device& device, DeviceBuffers& buffers,
                                                 const PruneOptions& pruning);
  ~FarWork();
  FarWork(const FarWork&) = delete;

  // Starts the kernels of a Copy. False: failed, and the device's why() says how. A null mark:
  // there was nothing to start.
  bool start(const CopyStage::Copy& copy, sluice_device_mark*& mark);
  // The kernels of the Copy have ended.
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
  // Page-locked memory, by tensor, that takes the place of ordinary host memory in a submission.
  std::vector<float*> loans_;
};

}  // namespace sluice::client

// One device whose memory holds gradients, opened by the best path that works.
//
// Owns the device that the plug-in (plugin.h) opens. It decides which path is tried first, and logs
// why the others are not taken. Its functions may be called on the threads that plugin.h names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "client/device/copy_stage.h"
#include "client/device/kernels.h"
#include "client/device/plugin.h"
#include "client/log.h"

namespace sluice::client {

// Where a job's gradients are, and how they are copied from there. The numbers are those of
// sluice_memory.
enum class Memory : std::uint8_t {
  kHost = 0,
  kDevice = 1,    // on a device, copied by the best path below that works
  kPinned = 2,    // by copy engines, through page-locked memory
  kZeroCopy = 3,  // by kernels, through page-locked memory that is mapped
  kDirect = 4     // read and written by the network card
};
const char* name_of(Memory memory) noexcept;
class Device {
 public:
  // `memory` is not kHost. Logs every path that is not taken, with its reason; the message of a
  // failure lists all reasons.
  static Result<std::unique_ptr<Device>> open(Memory memory, std::int32_t ordinal, const Log& log);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // A line for each path, whether it works or why not: "pinned: works, NVIDIA X, 50 GB/s".
  static std::string describe(std::int32_t ordinal);

  // Allocates the staging memory of the copies. Called once.
  Status allocate(std::size_t bytes);
  // Allocates further page-locked memory, which is released with the device. Null: failed.
  void* lock_pages(std::size_t bytes);
  // Null: the plug-in has no kernels that fit, and why_no_kernels() says why.
  const sluice_device_kernels* kernels() const noexcept { return kernels_; }
  const std::string& why_no_kernels() const noexcept { return why_no_kernels_; }
  sluice_device* raw() const noexcept { return device_; }
  std::span<std::uint8_t> staging() const noexcept { return staging_; }
  const sluice_device_facts& facts() const noexcept { return facts_; }
  const std::string& title() const noexcept { return title_; }  // "cuda:0 (NVIDIA X, pinned)"

  // A mark of the work that the stream has been given so far, and of a copy. Null: failed, and
  // why() says how.
  sluice_device_mark* mark(void* stream) const { return plugin_.mark(device_, stream); }
  sluice_device_mark* copy(const CopyStage::Copy& copy) const;
  std::int32_t passed(sluice_device_mark* mark) const { return plugin_.passed(device_, mark); }
  void drop(sluice_device_mark* mark) const { plugin_.drop(device_, mark); }
  std::string why() const { return plugin_.error(); }

 private:
  Device(const sluice_device_plugin& plugin, sluice_device* device) noexcept
      : plugin_(plugin), device_(device) {}

  const sluice_device_plugin& plugin_;
  sluice_device* const device_;
  sluice_device_facts facts_{};
  std::string title_;
  std::span<std::uint8_t> staging_;
  std::vector<void*> pages_;  // all page-locked memory, the staging memory included
  const sluice_device_kernels* kernels_ = nullptr;
  std::string why_no_kernels_;
};

}  // namespace sluice::client

#include "client/device/device.h"

#include "aggregator/base/check.h"
#include "aggregator/base/text.h"
#include "client/plugin_file.h"

namespace sluice::client {
namespace {

constexpr const char* kPluginFile = "libsluice_cuda.so";
// In the order in which they are tried. A copy engine leaves the device's processors to the
// training.
constexpr Memory kWays[] = {Memory::kDirect, Memory::kPinned, Memory::kZeroCopy};

Result<const sluice_device_plugin*> load() {
  const Result<const void*> found =
      open_plugin("the plug-in for device memory", kPluginFile, SLUICE_DEVICE_PLUGIN_SYMBOL,
                  "hand over gradients in host memory; it is built where CMake finds nvcc, and "
                  "needs NVIDIA's driver to run, but no toolkit");
  if (!found.ok()) return found.status();
  const auto* const plugin = static_cast<const sluice_device_plugin*>(found.value());
  if (Status status = check_plugin_abi(plugin->abi, SLUICE_DEVICE_PLUGIN_ABI, kPluginFile);
      !status.ok())
    return status;
  return plugin;
}

Result<const sluice_device_kernels*> load_kernels() {
  const Result<const void*> found =
      open_plugin("the plug-in for device memory", kPluginFile, SLUICE_DEVICE_KERNELS_SYMBOL,
                  "take the one that came with this library");
  if (!found.ok()) return found.status();
  const auto* const kernels = static_cast<const sluice_device_kernels*>(found.value());
  if (Status status = check_plugin_abi(kernels->abi, SLUICE_DEVICE_KERNELS_ABI, kPluginFile);
      !status.ok())
    return status;
  return kernels;
}

struct Attempt {
  sluice_device* device = nullptr;  // null: `why` not
  sluice_device_facts facts{};
  std::string why;
};

Attempt attempt(const sluice_device_plugin& plugin, Memory way, std::int32_t ordinal) {
  Attempt made;
  if (way == Memory::kDirect) {
    made.why =
        "no transport of the client owns a network card that could read the device's memory "
        "(udp:// sends through the kernel, vhost:// through shared host memory)";
    return made;
  }
  const std::int32_t path = way == Memory::kPinned ? SLUICE_DEVICE_PINNED : SLUICE_DEVICE_ZERO_COPY;
  made.device = plugin.open(ordinal, path, &made.facts);
  if (made.device == nullptr) made.why = plugin.error();
  return made;
}

std::string rate_of(const sluice_device_facts& facts) {
  return text("%.3g GB/s", facts.bytes_per_s / 1e9);
}

}  // namespace

const char* name_of(Memory memory) noexcept {
  switch (memory) {
    case Memory::kHost: return "host";
    case Memory::kDevice: return "device";
    case Memory::kPinned: return "pinned";
    case Memory::kZeroCopy: return "pinned_zero_copy";
    case Memory::kDirect: return "gpudirect";
  }
  return "unknown";
}

Result<std::unique_ptr<Device>> Device::open(Memory memory, std::int32_t ordinal, const Log& log) {
  CHECK(memory != Memory::kHost);
  const std::string which = "device " + std::to_string(ordinal);
  const Result<const sluice_device_plugin*> plugin = load();
  if (!plugin.ok()) return plugin.status();
  const std::int32_t count = plugin.value()->count();
  if (count < 0)
    return Status(StatusCode::kNotFound, which + ": " + std::string(plugin.value()->error()));
  if (ordinal < 0 || ordinal >= count)
    return Status(StatusCode::kNotFound, which + " does not exist: this process sees " +
                                             std::to_string(count) + ", counted from 0");
  std::string reasons;
  for (const Memory way : kWays) {
    if (memory != Memory::kDevice && memory != way) continue;
    Attempt made = attempt(*plugin.value(), way, ordinal);
    if (made.device == nullptr) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(name_of(way)) + ": " + made.why;
      log.write(SLUICE_LOG_INFO, which + ": not " + name_of(way) + ": " + made.why);
      continue;
    }
    std::unique_ptr<Device> opened(new Device(*plugin.value(), made.device));
    opened->facts_ = made.facts;
    opened->title_ = which + " (" + made.facts.name + ", " + name_of(way) + ")";
    const Result<const sluice_device_kernels*> kernels = load_kernels();
    if (kernels.ok())
      opened->kernels_ = kernels.value();
    else
      opened->why_no_kernels_ = kernels.status().message();
    log.write(SLUICE_LOG_INFO, opened->title_ + ": copies at " + rate_of(made.facts));
    return opened;
  }
  return Status(StatusCode::kIoError, which + " cannot be used: " + reasons);
}

Device::~Device() {
  for (void* const pages : pages_) plugin_.release(device_, pages);
  plugin_.close(device_);
}

std::string Device::describe(std::int32_t ordinal) {
  const Result<const sluice_device_plugin*> plugin = load();
  std::string text = "host: works";
  for (const Memory way : kWays) {
    Attempt made;
    if (plugin.ok()) {
      made = attempt(*plugin.value(), way, ordinal);
    } else {
      made.why = plugin.status().message();
    }
    text += "\n" + std::string(name_of(way)) + ": ";
    if (made.device != nullptr) {
      const Result<const sluice_device_kernels*> kernels = load_kernels();
      text += "works, " + std::string(made.facts.name) + ", " + rate_of(made.facts) +
              (kernels.ok() ? ", what is pruned or rounded is packed there"
                            : ", gradients cross the bus whole: " + kernels.status().message());
      plugin.value()->close(made.device);
    } else {
      text += made.why;
    }
  }
  return text;
}

Status Device::allocate(std::size_t bytes) {
  CHECK(staging_.empty() && bytes > 0);
  void* const memory = lock_pages(bytes);
  if (memory == nullptr)
    return {StatusCode::kExhausted, title_ + ": " + std::to_string(bytes) +
                                        " bytes of page-locked host memory, one copy of all "
                                        "tensors, cannot be had: " +
                                        why()};
  staging_ = {static_cast<std::uint8_t*>(memory), bytes};
  return {};
}

void* Device::lock_pages(std::size_t bytes) {
  void* const memory = plugin_.allocate(device_, bytes);
  if (memory != nullptr) pages_.push_back(memory);
  return memory;
}

sluice_device_mark* Device::copy(const CopyStage::Copy& copy) const {
  return copy.direction == CopyStage::Direction::kIn
             ? plugin_.copy_in(device_, copy.host, copy.device, copy.bytes)
             : plugin_.copy_out(device_, copy.device, copy.host, copy.bytes);
}

}  // namespace sluice::client

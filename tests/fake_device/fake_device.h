// The part that the fake device's copies and its kernels share.
#pragma once

#include <cstddef>
#include <functional>

#include "client/device/plugin.h"

namespace fake_device {

// Runs `work` with the device's own access to its memory.
void as_device(const std::function<void()>& work);
void* acquire(std::size_t bytes);
void give_back(void* memory);
// Starts `work`: it runs when the device gets to it, after all work that was started before.
sluice_device_mark* start(sluice_device* device, std::function<void()> kernel);
void await(sluice_device* device);  // all work that was started
// The bytes of the host's memory that kernels have read.
void count_to_device(std::size_t bytes);

}  // namespace fake_device

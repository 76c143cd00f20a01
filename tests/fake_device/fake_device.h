// What the fake device's copies and its kernels share.
#pragma once

#include <cstddef>
#include <functional>

#include "client/device/plugin.h"

namespace fake_device {

// With the device's own access to its memory, which nobody else has.
void as_device(const std::function<void()>& work);
void* acquire(std::size_t bytes);
void give_back(void* memory);
// Started: it runs when the device gets to it, behind those before it.
sluice_device_mark* start(sluice_device* device, std::function<void()> kernel);
void await(sluice_device* device);  // all that were started
// Kernels read so much of the host's memory.
void count_to_device(std::size_t bytes);

}  // namespace fake_device

// The memory of the machine, and the limits that follow from it and from the ports if the file has
// none.
//
// read_memory() asks the kernel; the rest is pure. Called by the loader.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/loader.h"
#include "config/reader.h"

namespace sluice::config {

// Reads the memory from /proc and the control groups under `root` ("" for this machine); 0 for
// values that they do not have.
MemoryFacts read_memory(const std::string& root);

// The limits, with 0 replaced by the values that the machine's memory and the ports' MTU allow.
LimitsConfig resolved_limits(const Config& config, const HostFacts& host);

// Compares the memory that the limits allow with the memory of the machine.
void check_memory(const Config& config, const HostFacts& host, Report& report);

}  // namespace sluice::config

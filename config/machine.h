// The memory of the machine, and the limits that follow from it and from the ports where the file
// gives none.
//
// read_memory() asks the kernel; the rest is pure. Called by the loader.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/loader.h"
#include "config/reader.h"

namespace sluice::config {

// What /proc and the control groups under `root` ("" for this machine) say; 0 where they say
// nothing.
MemoryFacts read_memory(const std::string& root);

// The limits that are 0 replaced by what the machine's memory and the ports' MTU allow.
LimitsConfig resolved_limits(const Config& config, const HostFacts& host);

// What the memory limits allow, against what the machine has.
void check_memory(const Config& config, const HostFacts& host, Report& report);

}  // namespace sluice::config

// What the file wants of this host's interfaces, devices, pages and folders.
//
// Pure: the host comes in as HostFacts. Called by check_combinations().
#pragma once

#include "config/config.h"
#include "config/loader.h"
#include "config/reader.h"

namespace sluice::config {

void check_host(const Config& config, const HostFacts& host, Report& report);

}  // namespace sluice::config

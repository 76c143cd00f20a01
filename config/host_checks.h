// Checks that this host has the interfaces, devices, pages and folders that the file needs.
//
// Pure: facts about the host are passed in as HostFacts. Called by check_combinations().
#pragma once

#include "config/config.h"
#include "config/loader.h"
#include "config/reader.h"

namespace sluice::config {

void check_host(const Config& config, const HostFacts& host, Report& report);

}  // namespace sluice::config

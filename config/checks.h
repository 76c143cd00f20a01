// Checks combinations of settings that can't work, though each setting is in range.
//
// Pure: facts about the host are passed in as HostFacts. Called by the loader after reading.
#pragma once

#include "config/config.h"
#include "config/loader.h"
#include "config/reader.h"

namespace sluice::config {

void check_combinations(const Config& config, const HostFacts& host, Report& report);

}  // namespace sluice::config

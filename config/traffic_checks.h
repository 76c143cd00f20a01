// Checks combinations of [[port]], [[class]] and [[rule]] settings that can't work or have no
// effect.
//
// Pure; called by check_combinations().
#pragma once

#include "config/config.h"
#include "config/reader.h"

namespace sluice::config {

void check_traffic(const Config& config, Report& report);

}  // namespace sluice::config

// Finds and opens the DPDK plug-in at run time, so that programs without DPDK can use libsluice.
#pragma once

#include <string>

#include "aggregator/base/status.h"
#include "client/transport/dpdk/plugin.h"

namespace sluice::client {

// Looks where open_plugin() does.
Result<const sluice_dpdk_plugin*> load_dpdk_plugin();

}  // namespace sluice::client

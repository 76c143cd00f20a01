// Finds and opens the DPDK plug-in at run time, so that programs without DPDK can use libsluice.
#pragma once

#include <string>

#include "aggregator/base/status.h"
#include "client/transport/dpdk/plugin.h"

namespace sluice::client {

// Looks for libsluice_dpdk.so in $SLUICE_PLUGIN_DIR (nowhere else when it is set), in the directory
// of this library, in sluice/ below that, then on the system's library path. A failure names every
// place and the remedy. The plug-in stays loaded until the process ends.
Result<const sluice_dpdk_plugin*> load_dpdk_plugin();

}  // namespace sluice::client

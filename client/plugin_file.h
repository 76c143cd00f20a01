// Finds and opens a plug-in of libsluice at run time, so that programs need not have what it links.
//
// Cold; any thread. A plug-in stays loaded until the process ends.
#pragma once

#include <string>

#include "aggregator/base/status.h"

namespace sluice::client {

// Looks for `file` in $SLUICE_PLUGIN_DIR (nowhere else when it is set), in the directory of this
// library, in sluice/ below that, then on the system's library path, and returns what it exports as
// `symbol`. A failure names every place, and ends with `remedy`.
Result<const void*> open_plugin(const std::string& what, const std::string& file,
                                const char* symbol, const std::string& remedy);

// Two halves of one version: what the plug-in's table begins with must be this one's number.
Status check_plugin_abi(std::uint32_t found, std::uint32_t wanted, const std::string& file);

}  // namespace sluice::client

#include "client/transport/dpdk/loader.h"

#include "client/plugin_file.h"

namespace sluice::client {

Result<const sluice_dpdk_plugin*> load_dpdk_plugin() {
  constexpr const char* kFile = "libsluice_dpdk.so";
  const Result<const void*> found =
      open_plugin("the DPDK plug-in", kFile, SLUICE_DPDK_PLUGIN_SYMBOL, "use a udp:// address");
  if (!found.ok()) return found.status();
  const auto* const plugin = static_cast<const sluice_dpdk_plugin*>(found.value());
  if (Status status = check_plugin_abi(plugin->abi, SLUICE_DPDK_PLUGIN_ABI, kFile); !status.ok())
    return status;
  return plugin;
}

}  // namespace sluice::client

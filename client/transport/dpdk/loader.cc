#include "client/transport/dpdk/loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace sluice::client {
namespace {

constexpr const char* kPluginFile = "libsluice_dpdk.so";

// The directory of the file that holds this code; empty when the system does not know.
std::string own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&load_dpdk_plugin), &info) == 0) return {};
  const std::string file = info.dli_fname == nullptr ? "" : info.dli_fname;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

std::vector<std::string> candidates() {
  const char* chosen = std::getenv("SLUICE_PLUGIN_DIR");
  if (chosen != nullptr && *chosen != '\0') return {std::string(chosen) + "/" + kPluginFile};
  std::vector<std::string> files;
  if (const std::string directory = own_directory(); !directory.empty()) {
    files.push_back(directory + "/" + kPluginFile);
    files.push_back(directory + "/sluice/" + kPluginFile);
  }
  files.emplace_back(kPluginFile);
  return files;
}

}  // namespace

Result<const sluice_dpdk_plugin*> load_dpdk_plugin() {
  std::string tried;
  for (const std::string& file : candidates()) {
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      const char* why = ::dlerror();
      tried += (tried.empty() ? "" : "; ") + std::string(why == nullptr ? file.c_str() : why);
      continue;
    }
    const auto* plugin =
        static_cast<const sluice_dpdk_plugin*>(::dlsym(library, SLUICE_DPDK_PLUGIN_SYMBOL));
    if (plugin == nullptr || plugin->abi != SLUICE_DPDK_PLUGIN_ABI) {
      return Status(StatusCode::kNotFound,
                    file + " is not a plug-in of this version of libsluice; install both together");
    }
    return plugin;
  }
  return Status(StatusCode::kNotFound,
                "the DPDK plug-in cannot be opened (" + tried +
                    "); install it beside libsluice.so, set SLUICE_PLUGIN_DIR to its directory, or "
                    "use a udp:// address");
}

}  // namespace sluice::client

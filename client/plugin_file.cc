#include "client/plugin_file.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace sluice::client {
namespace {

// The directory of the file that holds this code; empty when the system does not know.
std::string own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&open_plugin), &info) == 0) return {};
  const std::string file = info.dli_fname == nullptr ? "" : info.dli_fname;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

std::vector<std::string> candidates(const std::string& file) {
  const char* chosen = std::getenv("SLUICE_PLUGIN_DIR");
  if (chosen != nullptr && *chosen != '\0') return {std::string(chosen) + "/" + file};
  std::vector<std::string> files;
  if (const std::string directory = own_directory(); !directory.empty()) {
    files.push_back(directory + "/" + file);
    files.push_back(directory + "/sluice/" + file);
  }
  files.push_back(file);
  return files;
}

}  // namespace

Result<const void*> open_plugin(const std::string& what, const std::string& file,
                                const char* symbol, const std::string& remedy) {
  std::string tried;
  for (const std::string& candidate : candidates(file)) {
    void* const library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library != nullptr) {
      const void* const found = ::dlsym(library, symbol);
      if (found != nullptr) return found;
      return check_plugin_abi(0, 1, candidate);
    }
    const char* why = ::dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(why == nullptr ? candidate.c_str() : why);
  }
  return Status(StatusCode::kNotFound, what + " cannot be opened (" + tried +
                                           "); install it beside libsluice.so, set "
                                           "SLUICE_PLUGIN_DIR to its directory, or " +
                                           remedy);
}

Status check_plugin_abi(std::uint32_t found, std::uint32_t wanted, const std::string& file) {
  if (found == wanted) return {};
  return {StatusCode::kNotFound,
          file + " is not a plug-in of this version of libsluice; install both together"};
}

}  // namespace sluice::client

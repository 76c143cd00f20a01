// The TOML file of a BCube.
#include <exception>
#include <toml.hpp>

#include "client/cube_address.h"

namespace sluice::client {

Result<CubeFile> read_cube_file(const std::string& path) {
  try {
    const toml::value root = toml::parse(path);
    for (const auto& [key, value] : root.as_table())
      if (key != "ports" && key != "levels" && key != "mode" && key != "appliances")
        throw toml::type_error(
            toml::format_error("a BCube's file has ports, levels, mode and appliances", value,
                               "not " + key),
            value.location());
    return CubeFile{
        .switch_ports = toml::find<std::uint32_t>(root, "ports"),
        .levels = toml::find<std::uint32_t>(root, "levels"),
        .mode = toml::find_or<std::string>(root, "mode", "aggregated"),
        .appliances = toml::find<std::vector<std::vector<std::string>>>(root, "appliances")};
  } catch (const std::exception& error) {
    return Status(StatusCode::kInvalidArgument, path + ": " + error.what());
  }
}

}  // namespace sluice::client

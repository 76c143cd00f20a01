// The TOML file of a BCube.
#include <cerrno>
#include <exception>
#include <fstream>
#include <system_error>
#include <toml.hpp>

#include "client/cube_address.h"

namespace sluice::client {

Result<CubeFile> read_cube_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return Status(StatusCode::kInvalidArgument,
                  path + " cannot be read: " + std::generic_category().message(errno) +
                      "; `python3 -m sluice bcube plan` writes such a file");
  try {
    const toml::value root = toml::parse(stream, path);
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

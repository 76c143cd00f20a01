// The TOML file of a BCube.
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "client/cube_address.h"
#include "config/toml/toml.h"

namespace sluice::client {
namespace {

bool read(const TomlValue& value, std::uint32_t& count) {
  if (!value.is<std::int64_t>()) return false;
  count = static_cast<std::uint32_t>(value.as<std::int64_t>());
  return count == value.as<std::int64_t>();
}

bool read(const TomlValue& value, std::string& text) {
  if (value.is<std::string>()) text = value.as<std::string>();
  return value.is<std::string>();
}

template <class Element>
bool read(const TomlValue& value, std::vector<Element>& list) {
  if (!value.is<TomlArray>()) return false;
  for (const TomlValue& each : value.as<TomlArray>())
    if (!read(each, list.emplace_back())) return false;
  return true;
}

}  // namespace

Result<CubeFile> read_cube_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return Status(StatusCode::kInvalidArgument,
                  path + " cannot be read: " + std::generic_category().message(errno) +
                      "; `python3 -m sluice bcube plan` writes such a file");
  const auto parsed = parse_toml(std::string(std::istreambuf_iterator<char>(stream), {}));
  const auto wrong = [&](unsigned line, const std::string& what) {
    return Status(StatusCode::kInvalidArgument, path + ":" + std::to_string(line) + ": " + what);
  };
  if (const auto* mistake = std::get_if<TomlMistake>(&parsed))
    return wrong(mistake->line, mistake->text);
  const TomlTable& root = std::get<TomlValue>(parsed).as<TomlTable>();
  CubeFile file{.mode = "aggregated"};
  for (const auto& [key, value] : root) {
    const char* wanted = nullptr;
    if (key == "ports" || key == "levels") {
      if (!read(value, key == "ports" ? file.switch_ports : file.levels)) wanted = "a number";
    } else if (key == "mode") {
      if (!read(value, file.mode)) wanted = "\"aggregated\" or \"plain\"";
    } else if (key == "appliances") {
      if (!read(value, file.appliances)) wanted = "a list of addresses for each level";
    } else {
      return wrong(value.line, "a BCube's file has ports, levels, mode and appliances, not " + key);
    }
    if (wanted != nullptr) return wrong(value.line, key + " has a wrong value; give " + wanted);
  }
  for (const char* key : {"ports", "levels", "appliances"})
    if (!root.contains(key)) return wrong(1, std::string("no ") + key + "; add " + key + " = ...");
  return file;
}

}  // namespace sluice::client

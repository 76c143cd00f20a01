// A config file in a directory of its own, for the tests of the loader.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "config/loader.h"

namespace sluice::config {

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "sluice-config-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    write("a.toml", text);
  }
  ~ConfigFile() { std::filesystem::remove_all(directory_); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string path = directory_ / name;
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  std::string path() const { return directory_ / "a.toml"; }

  // The errors without the directory, so that tests compare whole lines.
  std::vector<std::string> errors(const HostFacts& host = {.interfaces = {},
                                                           .cpu_count = 4}) const {
    return without_directory(check_config(path(), host).errors);
  }
  std::vector<std::string> warnings(const HostFacts& host = {.interfaces = {},
                                                             .cpu_count = 4}) const {
    return without_directory(check_config(path(), host).warnings);
  }

 private:
  std::vector<std::string> without_directory(std::vector<std::string> lines) const {
    for (std::string& line : lines)
      for (std::size_t at; (at = line.find(directory_.string() + "/")) != std::string::npos;)
        line.erase(at, directory_.string().size() + 1);
    return lines;
  }

  std::filesystem::path directory_;
};

// A port that has nothing wrong, to append to a file under test.
inline const std::string kGoodPort =
    "[[port]]\nname = \"p\"\ntype = \"vhost-user\"\npath = \"p.sock\"\n";

}  // namespace sluice::config

// Reads the appliance's TOML file: every error of the file at once, each with its line and a
// remedy.
//
// Called by main() and by --check-config, on the main thread, before any other thread exists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "config/config.h"

namespace sluice::config {

// What the checks need to know about the machine. Passed in, so that tests can invent machines.
struct HostFacts {
  struct Interface {
    std::string name;
    std::vector<std::array<std::uint8_t, 4>> ipv4;  // the kernel's own addresses on it
    std::vector<std::array<std::uint8_t, 16>> ipv6;
  };
  std::vector<Interface> interfaces;
  std::size_t cpu_count = 1;  // that this process may run on
};

// Asks the kernel. An answer that cannot be had leaves the list empty, and its checks are skipped.
HostFacts read_host_facts();

// The configuration in `path`, or a Status whose message holds one line an error, each of the form
// `file:line: what is wrong: value; what to do`. `secret_file` is read here.
Result<Config> load_config(const std::string& path);
Result<Config> load_config(const std::string& path, const HostFacts& host);

// The same errors as a list, for --check-config; empty when the file is fine.
std::vector<std::string> check_config(const std::string& path);
std::vector<std::string> check_config(const std::string& path, const HostFacts& host);

}  // namespace sluice::config

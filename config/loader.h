// Reads the appliance's TOML file: every error of the file at once, each with its line and a
// remedy.
//
// Called by main() and by --check-config, on the main thread, before any other thread exists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "config/config.h"

namespace sluice::config {

// Memory of the machine; 0: not known.
struct MemoryFacts {
  std::uint64_t usable_mib = 0;     // by this process at most: less than the machine has in a group
                                    // with a limit, or beside reserved hugepages
  std::uint64_t available_mib = 0;  // of it, without taking it from what runs now
  std::optional<std::uint64_t> hugepages_mib{};  // reserved, whoever uses them
};

// What the checks need to know about the machine. Passed in, so that tests can invent machines.
struct HostFacts {
  struct Interface {
    std::string name;
    std::vector<std::array<std::uint8_t, 4>> ipv4;  // the kernel's own addresses on it
    std::vector<std::array<std::uint8_t, 16>> ipv6;
    std::uint32_t mtu = 0;  // 0: not known
  };
  struct PciDevice {  // a network card
    std::string address;
    std::string driver{};  // the kernel's; empty: none
    bool behind_iommu = false;
  };
  std::vector<Interface> interfaces;
  std::size_t cpu_count = 1;  // that this process may run on
  MemoryFacts memory{};
  std::optional<std::vector<PciDevice>> pci{};  // nothing: not known
  // Not set: not asked.
  std::function<bool(const std::string& path)> is_folder{};
  std::function<std::string(const std::string& address)> why_not_listening{};  // empty: it can
};

// Asks the kernel. An answer that cannot be had leaves the list empty, and its checks are skipped.
HostFacts read_host_facts();

// What --check-config says: lines of the form `file:line: what is wrong: value; what to do`.
// Warnings are about what is allowed and probably a slip.
struct Findings {
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
};

// The configuration in `path` with the values in effect: `secret_file` is read, and limits that
// follow the machine or the ports are numbers. Or a Status whose message holds one line an error.
// `warnings`, unless null, gets the others.
Result<Config> load_config(const std::string& path, const HostFacts& host,
                           std::vector<std::string>* warnings = nullptr);
Result<Config> load_config(const std::string& path, std::vector<std::string>* warnings = nullptr);

// The same lines; no errors when the file is fine.
Findings check_config(const std::string& path);
Findings check_config(const std::string& path, const HostFacts& host);

}  // namespace sluice::config

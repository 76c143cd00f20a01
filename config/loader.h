// Reads the appliance's TOML file and reports all its errors at once, each with its line and a
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

// The memory of the machine; 0: not known.
struct MemoryFacts {
  std::uint64_t usable_mib = 0;     // by this process at most: less than the machine has in a group
                                    // with a limit, or beside reserved hugepages
  std::uint64_t available_mib = 0;  // of it, without taking it from what runs now
  std::optional<std::uint64_t> hugepages_mib{};  // reserved, by any process
};

// The facts about the machine that the checks need. They are passed in, so that tests can invent
// machines.
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
  // If a function is not set, its check is skipped.
  std::function<bool(const std::string& path)> is_folder{};
  std::function<std::string(const std::string& address)> why_not_listening{};  // empty: it can
  std::function<std::string(const std::string& certificate)> why_no_tls{};     // empty: it can
};

// Asks the kernel. Facts that cannot be had stay empty, and their checks are skipped.
HostFacts read_host_facts();

// The output of --check-config: lines of the form `file:line: what is wrong: value; what to do`. A
// warning is about a setting that is allowed but probably a mistake.
struct Findings {
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
};

// The configuration in `path` with the values in effect: `secret_file` is read, and limits that
// follow from the machine or the ports are numbers. Or a Status whose message has one line for each
// error. `warnings`, unless null, gets the warnings.
Result<Config> load_config(const std::string& path, const HostFacts& host,
                           std::vector<std::string>* warnings = nullptr);
Result<Config> load_config(const std::string& path, std::vector<std::string>* warnings = nullptr);

// The errors and warnings of the file alone.
Findings check_config(const std::string& path);
Findings check_config(const std::string& path, const HostFacts& host);

}  // namespace sluice::config

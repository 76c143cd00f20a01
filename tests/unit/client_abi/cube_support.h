// A BCube of appliances for tests of whole jobs: their addresses, and the options of its ranks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <regex>
#include <string>

#include "tests/unit/client_abi/job_support.h"

namespace job_test {

struct Cube {
  std::uint32_t n = 2, k = 2;
  std::string name;

  std::uint32_t power(std::uint32_t exponent) const {
    return exponent == 0 ? 1 : n * power(exponent - 1);
  }
  std::uint32_t servers() const { return power(k); }
  std::string shape() const { return "bcube://" + std::to_string(n) + "," + std::to_string(k); }
  // The address of the rank's switch at `level`: the switch is named by the rank's digits without
  // that of the level.
  std::string at(std::uint32_t rank, std::uint32_t level) const {
    const std::uint32_t low = rank % power(level), high = rank / power(level + 1);
    return "inproc://" + name + "-" + std::to_string(level) + "-" +
           std::to_string(high * power(level) + low);
  }
  std::string address(std::uint32_t rank) const {
    std::string text = shape() + "?levels=";
    for (std::uint32_t level = 0; level < k; ++level)
      text += (level == 0 ? "" : ",") + at(rank, level);
    return text;
  }
  // Each server has an appliance at each level. `pattern`: LEVEL and SERVER stand for numbers.
  std::string write_plain_file(std::string pattern = "") const {
    if (pattern.empty()) pattern = "inproc://" + name + "-LEVEL-SERVER";
    const std::string path = testing::TempDir() + "/" + name + ".toml";
    std::ofstream file(path);
    file << "ports = " << n << "\nlevels = " << k << "\nmode = \"plain\"\nappliances = [\n";
    for (std::uint32_t level = 0; level < k; ++level) {
      file << "  [";
      for (std::uint32_t server = 0; server < servers(); ++server)
        file << '"'
             << std::regex_replace(
                    std::regex_replace(pattern, std::regex("LEVEL"), std::to_string(level)),
                    std::regex("SERVER"), std::to_string(server + 1))
             << "\", ";
      file << "],\n";
    }
    file << "]\n";
    return path;
  }
  sluice::Options options(std::uint32_t rank) const {
    sluice::Options options;
    options.address = address(rank);
    options.job_name = name;
    options.rank = rank;
    options.world_size = servers();
    options.run_id = 1;
    // No rank dies in these tests, but nine ranks under a sanitizer wait long for two cores.
    options.timeouts.connect_ms = options.timeouts.silence_ms = 20'000;
    return options;
  }
};

}  // namespace job_test

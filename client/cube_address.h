// A BCube as users write it: bcube://n,k and, after a question mark or in the environment, where
// this worker's appliances are.
//
//   bcube://3,2?levels=udp://10.0.0.1,udp://10.1.0.1   this worker's appliance at each level
//   bcube://3,2?file=/etc/sluice/cube.toml             all workers' (`python3 -m sluice bcube
//   plan`)
//
// Keys: levels, file, mode (aggregated or plain), digits (this worker's, from level 0 on: they say
// its rank, or check it). SLUICE_BCUBE_LEVELS, _FILE, _MODE and _DIGITS stand for keys that are not
// written: where file or levels is, the variable of the other one is not read.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/status.h"
#include "client/bcube/relay.h"

namespace sluice::client {

inline constexpr std::string_view kCubeScheme = "bcube://";
inline constexpr std::uint32_t kRankByDigits = UINT16_MAX;

// What a worker must know of its BCube.
struct CubePlaces {
  Bcube bcube;
  std::uint32_t rank = 0;
  BcubeMode mode{};
  // By level, and there the switch's appliance; plain: those of its servers, by digit.
  std::vector<std::vector<std::string>> appliances;
  // Likewise, those that stand in for lost ones. None without a file, and where there are none.
  std::vector<std::vector<std::string>> stand_ins;
};

// What `python3 -m sluice bcube plan` writes.
struct CubeFile {
  std::uint32_t switch_ports = 0;
  std::uint32_t levels = 0;
  std::string mode;
  // By level, then by switch; plain: by server.
  std::vector<std::vector<std::string>> appliances;
};
// Fails with the file's name, and the line where there is one.
Result<CubeFile> read_cube_file(const std::string& path);

// n and k alone, what the address of any worker of the job says.
Result<Bcube> parse_cube_shape(std::string_view text);

// Fails with the value, and with the variable's name where that is where it comes from.
// `environment`: as std::getenv. `rank`: kRankByDigits if only the digits say it.
Result<CubePlaces> parse_cube_address(std::string_view text, std::uint32_t rank,
                                      const std::function<const char*(const char*)>& environment);

}  // namespace sluice::client

// BCube(n, k): n^k servers with k ports each, and k levels of n^(k-1) switches with n ports.
//
// A server's address is its rank in k digits base n, digit l being its place at the switch of level
// l; that switch joins the n servers which differ in digit l alone. After BCube (SIGCOMM 2009) and
// BML (NeurIPS 2018). Pure values.
#pragma once

#include <cstdint>
#include <string>

#include "aggregator/base/status.h"
#include "aggregator/base/types.h"

namespace sluice::client {

inline constexpr std::uint64_t kMaxBcubeServers = 4096;

class Bcube {
 public:
  // Fails unless n >= 2, k >= 1, and n^k ranks have numbers.
  static Result<Bcube> create(std::uint32_t switch_ports, std::uint32_t levels);

  // A job over it has one worker a server.
  Status check_world(std::size_t world_size) const;

  std::string name() const {
    return "bcube(" + std::to_string(n_) + "," + std::to_string(k_) + ")";
  }
  std::uint32_t switch_ports() const noexcept { return n_; }  // n
  std::uint32_t levels() const noexcept { return k_; }        // k, and the ports of a server
  std::uint32_t servers() const noexcept { return power(k_); }
  std::uint32_t switches_per_level() const noexcept { return power(k_ - 1); }

  // 0 .. n - 1: the rank's place at its switch of this level.
  std::uint32_t digit(std::uint32_t rank, std::uint32_t level) const noexcept {
    return rank / power(level) % n_;
  }
  // 0 .. switches_per_level() - 1: the rank without that digit.
  std::uint32_t switch_of(std::uint32_t rank, std::uint32_t level) const noexcept {
    return rank / power(level + 1) * power(level) + rank % power(level);
  }
  // Who has this place at that switch.
  std::uint32_t server_at(std::uint32_t level, std::uint32_t switch_index,
                          std::uint32_t digit) const noexcept {
    return (switch_index / power(level) * n_ + digit) * power(level) + switch_index % power(level);
  }

  // The gradient travels in k parts, thread e's through the levels e, e + 1 ... (mod k), so that
  // in each stage each thread uses another port.
  std::uint32_t level_of(std::uint32_t thread, std::uint32_t stage) const noexcept {
    return (thread + stage) % k_;
  }
  // Who takes a server's datagrams to another switch of the level than its own: its next neighbour
  // at another level. Those of a switch's n servers are all at one switch. Needs two levels.
  std::uint32_t detour_level(std::uint32_t level) const noexcept { return (level + 1) % k_; }
  std::uint32_t detour_neighbour(std::uint32_t rank, std::uint32_t level) const noexcept {
    const std::uint32_t other = detour_level(level);
    return server_at(other, switch_of(rank, other), (digit(rank, other) + 1) % n_);
  }
  // For how many stages `rank` is half-way owner of what `owner` owns in the end: both have the
  // same digits at that many of the thread's levels. k: it is the owner.
  std::uint32_t stages_owned(std::uint32_t rank, std::uint32_t owner,
                             std::uint32_t thread) const noexcept;

 private:
  Bcube(std::uint32_t switch_ports, std::uint32_t levels) noexcept : n_(switch_ports), k_(levels) {}
  std::uint32_t power(std::uint32_t exponent) const noexcept {
    std::uint32_t value = 1;
    while (exponent-- != 0) value *= n_;
    return value;
  }

  std::uint32_t n_;
  std::uint32_t k_;
};

}  // namespace sluice::client

#include "client/bcube/rendezvous.h"

#include <string>

#include "aggregator/base/check.h"

namespace sluice::client {

// Weights are such that the average is the sum.
Status Rendezvous::begin(Leg& leg, TimeNs now) {
  const std::uint32_t level = leg.address.level;
  const std::uint32_t digit = bcube_.digit(rank_, level);
  std::vector<float>& names = names_[level];
  names.assign(bcube_.switch_ports(), 0);
  names[digit] = name_of(level, rank_);
  return leg.session.submit({.input = names.data(), .output = names.data(), .weight = digit == 0},
                            now);
}

Status Rendezvous::check(const Leg& leg) const {
  const std::uint32_t level = leg.address.level;
  for (std::uint32_t digit = 0; digit < bcube_.switch_ports(); ++digit) {
    const std::uint32_t rank = bcube_.server_at(level, leg.address.switch_index, digit);
    const auto name = static_cast<std::uint32_t>(names_[level][digit]);
    if (names_[level][digit] == name_of(level, rank)) continue;
    CHECK(name != 0);
    const std::uint32_t found_level = (name - 1) / bcube_.servers();
    return {StatusCode::kInvalidArgument,
            leg.session.place() + "level " + std::to_string(level) +
                " leads to another switch than its neighbours': there rank " +
                std::to_string(digit) + " is worker " +
                std::to_string((name - 1) % bcube_.servers()) + " with its level " +
                std::to_string(found_level) + ", not worker " + std::to_string(rank) +
                " with its level " + std::to_string(level) +
                "; check the addresses and cables of both"};
  }
  return {};
}

}  // namespace sluice::client

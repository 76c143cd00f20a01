// How the servers of a switch find out whether the cables of each lead where they should: each
// gives its name at its place in a sum, and compares all names with those that belong there.
//
// Pure; the relay's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "client/bcube/legs.h"

namespace sluice::client {

class Rendezvous {
 public:
  Rendezvous(const Bcube& bcube, std::uint32_t rank)
      : bcube_(bcube), rank_(rank), names_(bcube.levels()), met_(bcube.levels()) {}

  // With the level's rendezvous leg, which runs.
  Status begin(Leg& leg, TimeNs now);
  // Its sum is here: names two workers where a cable leads elsewhere.
  Status check(const Leg& leg) const;

  // Whether the level's servers have met before the first step.
  bool has_met(std::uint32_t level) const noexcept { return met_[level]; }
  void note_met(std::uint32_t level) noexcept { met_[level] = true; }

 private:
  // Of a server at one of its levels, and of no other.
  float name_of(std::uint32_t level, std::uint32_t rank) const noexcept {
    return static_cast<float>(1 + level * bcube_.servers() + rank);  // below 2^24
  }

  const Bcube& bcube_;
  const std::uint32_t rank_;
  std::vector<std::vector<float>> names_;  // by level and place; a leg reads and writes them
  std::vector<bool> met_;
};

}  // namespace sluice::client

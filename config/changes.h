// What differs between two configurations, and which of it can change while the appliance runs.
//
// Pure. Called by a reload and, for is_live(), by the renderer of the reference.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/schema.h"

namespace sluice::config {

// Whether a reload applies the setting; any other needs a restart.
bool is_live(const KeySpec& spec);

struct Change {
  std::string setting;  // "limits.jobs", "port \"rack1\" rate_mbps", "[[rule]]"
  std::string before;   // TOML; never a secret
  std::string after;
  bool live = false;
};

// In the order of the schema. Ports are compared by their place: another name, or another number of
// ports, is one change.
std::vector<Change> changes_between(const Config& before, const Config& after);

// The changes that need a restart, as one message with every setting and both values; empty: none
// does.
std::string why_restart(const std::vector<Change>& changes);

}  // namespace sluice::config

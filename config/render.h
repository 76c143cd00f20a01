// Writes a Config back as TOML, from the schema.
//
// Called once at start for the log, and by the test that compares the shipped appliance.toml.
#pragma once

#include <string>

#include "config/config.h"

namespace sluice::config {

// Every setting with its value in effect, as a file that reads back to the same configuration,
// except that a secret is replaced by a comment with its length.
std::string render_effective(const Config& config);

// The default configuration: that of config.h with one vhost-user port, so that it starts on any
// machine.
Config default_config();

// The shipped appliance.toml: the defaults, each setting with its help and range.
std::string render_reference();

}  // namespace sluice::config

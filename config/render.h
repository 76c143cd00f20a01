// Writes a Config back as TOML, from the schema.
//
// Called once at start for the log, and by the test that compares the shipped appliance.toml.
#pragma once

#include <string>

#include "config/config.h"

namespace sluice::config {

// Every setting with its value in effect, as a file that reads back as the same configuration,
// except that a comment with its length replaces a secret.
std::string render_effective(const Config& config);

// The default configuration: the defaults of config.h and one vhost-user port, so that it starts on
// any machine.
Config default_config();

// The shipped appliance.toml: the defaults, each setting with its help and range.
std::string render_reference();

}  // namespace sluice::config

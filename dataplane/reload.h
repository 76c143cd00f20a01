// The configuration of a running appliance, and its change: read the file again, apply all of it or
// nothing.
//
// reload() and set_log_level() on any thread, one after the other; the appliance outlives the
// object.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "config/config.h"
#include "config/loader.h"
#include "dataplane/dpdk/appliance.h"
#include "dataplane/ops/commands.h"

namespace sluice::dataplane {

class Reloader {
 public:
  // `running`: what `appliance` was started with, from the file `path`. `memory`: of the machine
  // before the start, so that limits that follow from it stay as they were.
  Reloader(std::string path, config::MemoryFacts memory, config::Config running,
           Appliance& appliance);

  // The settings that have changed. A failure changes nothing: its message has every error of the
  // file, or every setting that needs a restart with both values. Blocks for some rounds of the
  // appliance's threads.
  Result<std::vector<SettingChange>> reload();
  // Until the next change of appliance.log_level in the file.
  Status set_log_level(const std::string& level);

 private:
  const std::string path_;
  const config::MemoryFacts memory_;
  std::mutex mutex_;        // guards the rest
  config::Config running_;  // in use
  Appliance& appliance_;
};

}  // namespace sluice::dataplane

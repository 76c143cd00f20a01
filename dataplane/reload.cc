#include "dataplane/reload.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "config/changes.h"
#include "config/text.h"
#include "dataplane/ops/log.h"

namespace sluice::dataplane {
namespace {

Status needs_restart(const std::string& settings) {
  return Status(StatusCode::kRefused, "nothing is changed, since this needs a restart: " +
                                          settings + "; restart sluiced, or undo it in the file");
}

}  // namespace

Reloader::Reloader(std::string path, config::MemoryFacts memory, config::Config running,
                   Appliance& appliance)
    : path_(std::move(path)),
      memory_(memory),
      running_(std::move(running)),
      appliance_(appliance) {}

Result<std::vector<SettingChange>> Reloader::reload() {
  const std::lock_guard lock(mutex_);
  config::HostFacts host = config::read_host_facts();
  host.memory = memory_;
  std::vector<std::string> warnings;
  auto wanted = config::load_config(path_, host, &warnings);
  if (!wanted.ok()) return wanted.status();
  const std::vector<config::Change> changes = config::changes_between(running_, wanted.value());
  if (const std::string settings = config::why_restart(changes); !settings.empty())
    return needs_restart(settings);
  if (Status status = appliance_.change(wanted.value()); !status.ok())
    return needs_restart(status.message());
  running_ = std::move(wanted).value();
  dataplane::set_log_level(config::label_of(running_.appliance.log_level));
  std::vector<SettingChange> applied;
  for (const config::Change& change : changes) {
    spdlog::info("{}: {} is {}, was {}", path_, change.setting, change.after, change.before);
    applied.push_back({change.setting, change.before, change.after});
  }
  for (const std::string& warning : warnings) spdlog::warn("{}", warning);
  return applied;
}

Status Reloader::set_log_level(const std::string& level) {
  const std::lock_guard lock(mutex_);
  const auto names = config::names_of(config::LogLevel{});
  const auto found = std::ranges::find(names, level);
  if (found == names.end() || !dataplane::set_log_level(level)) {
    std::string known;
    for (const std::string_view name : names)
      known += (known.empty() ? "" : ", ") + std::string(name);
    return Status(StatusCode::kInvalidArgument,
                  "no log level \"" + level + "\"; give one of " + known);
  }
  running_.appliance.log_level = static_cast<config::LogLevel>(found - names.begin());
  spdlog::info("the log level is {}", level);
  return Status();
}

}  // namespace sluice::dataplane

#include "config/changes.h"

#include <algorithm>

namespace sluice::config {
namespace {

// Sections whose every setting is live, and single settings of the others. Tables that are sized at
// the start, devices and addresses are not.
constexpr Section kLiveSections[] = {Section::kClass, Section::kRule, Section::kLimits,
                                     Section::kPolicy, Section::kJob};
constexpr std::string_view kLiveKeys[] = {"secret",    "secret_file", "log_level",
                                          "rate_mbps", "queue_kib",   "mark_above_kib"};
constexpr std::string_view kSizedAtStart = "workers_per_job";

std::string shown(const KeySpec& spec, const Field& field) {
  if (spec.secret) {
    const std::string& secret = *std::get<std::string*>(field);
    return secret.empty() ? "none" : std::to_string(secret.size()) + " bytes, not shown";
  }
  const std::string text = literal(spec, field);
  return text.empty() ? "unset" : text;
}

// The rows of one section in both configurations. `place` begins the setting's name.
void compare_section(Section section, const Target& before, const Target& after,
                     const std::string& place, std::vector<Change>& changes) {
  for (const KeySpec& spec : schema()) {
    if (spec.section != section) continue;
    const Field old_field = spec.field(before), new_field = spec.field(after);
    if (literal(spec, old_field) == literal(spec, new_field)) continue;
    changes.push_back({place + std::string(spec.key), shown(spec, old_field),
                       shown(spec, new_field), is_live(spec)});
  }
}

template <class Table>
void compare_list(Section section, const std::vector<Table>& before,
                  const std::vector<Table>& after, std::vector<Change>& changes) {
  if (before == after) return;
  const auto count = [](const std::vector<Table>& tables) {
    return std::to_string(tables.size()) + (tables.size() == 1 ? " table" : " tables");
  };
  changes.push_back({"[[" + std::string(section_name(section)) + "]]", count(before),
                     count(after) + (before.size() == after.size() ? ", changed" : ""), true});
}

std::string names_of_ports(const Config& config) {
  std::string names;
  for (const PortConfig& port : config.ports) names += (names.empty() ? "" : ", ") + port.name;
  return names;
}

void compare_ports(Config& before, Config& after, std::vector<Change>& changes) {
  const std::string old_names = names_of_ports(before), new_names = names_of_ports(after);
  if (old_names != new_names) {
    changes.push_back({"[[port]]", old_names, new_names, false});
    return;
  }
  for (std::size_t index = 0; index < before.ports.size(); ++index)
    for (const Section section : {Section::kPort, Section::kPortFault})
      compare_section(section, {.config = &before, .port = &before.ports[index]},
                      {.config = &after, .port = &after.ports[index]},
                      "port \"" + before.ports[index].name + "\" " +
                          (section == Section::kPortFault ? "fault." : ""),
                      changes);
}

}  // namespace

bool is_live(const KeySpec& spec) {
  if (spec.key == kSizedAtStart) return false;
  return std::ranges::count(kLiveSections, spec.section) != 0 ||
         (std::ranges::count(kLiveKeys, spec.key) != 0);
}

// Fields are places in a configuration that may be written, so copies are walked.
std::vector<Change> changes_between(const Config& left, const Config& right) {
  Config before = left, after = right;
  std::vector<Change> changes;
  for (const Section section : {Section::kAppliance, Section::kLimits, Section::kPolicy,
                                Section::kMetrics, Section::kControl, Section::kForwarding})
    compare_section(section, {.config = &before}, {.config = &after},
                    std::string(section_name(section)) + ".", changes);
  if (before.appliance.older_secrets != after.appliance.older_secrets)
    changes.push_back({"appliance.secret_file's older secrets",
                       std::to_string(before.appliance.older_secrets.size()),
                       std::to_string(after.appliance.older_secrets.size()), true});
  if (before.metrics.password != after.metrics.password)
    changes.push_back({"metrics.password_file's password", "the old one", "another", false});
  compare_ports(before, after, changes);
  compare_list(Section::kClass, before.classes, after.classes, changes);
  compare_list(Section::kRule, before.rules, after.rules, changes);
  compare_list(Section::kJob, before.jobs, after.jobs, changes);
  return changes;
}

std::string why_restart(const std::vector<Change>& changes) {
  std::string settings;
  for (const Change& change : changes)
    if (!change.live)
      settings += (settings.empty() ? "" : ", ") + change.setting + " (" + change.before + " -> " +
                  change.after + ")";
  return settings;
}

}  // namespace sluice::config

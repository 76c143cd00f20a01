#include "config/render.h"

#include <cctype>

#include "config/changes.h"
#include "config/schema.h"
#include "config/text.h"

namespace sluice::config {
namespace {

constexpr std::size_t kColumns = 100;

// `text` as comment lines of at most kColumns.
std::string comment(const std::string& text) {
  std::string result;
  std::string line = "#";
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    const std::string word = text.substr(start, end - start);
    if (line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line = "#";
    }
    line += " " + word;
    start = end + 1;
  }
  return result + line + "\n";
}

std::string capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// A value that means "not set". It is written as a comment, since reading it back would be an error
// or would mean less than leaving it out.
bool is_unset(const KeySpec& spec, const Field& field) {
  const std::string text = literal(spec, field);
  return text.empty() || text == "\"\"";
}

std::string effective_line(const KeySpec& spec, const Target& target) {
  const Field field = spec.field(target);
  const std::string key(spec.key);
  if (spec.secret) {
    const std::string& secret = *std::get<std::string*>(field);
    if (!secret.empty())
      return "# " + key + ": " + std::to_string(secret.size()) + " bytes, not shown\n";
  }
  // The metrics address means something when empty: no endpoint.
  if (is_unset(spec, field) && spec.section != Section::kMetrics) return "";
  return key + " = " + literal(spec, field) + "\n";
}

std::string reference_entry(const KeySpec& spec, const Target& target) {
  const Field field = spec.field(target);
  const std::string text =
      "\n" + comment(std::string(spec.help)) +
      comment(capitalised(describe_type(spec)) + (is_live(spec) ? "; live." : "."));
  if (is_unset(spec, field)) return text + "# " + std::string(spec.key) + " = \"\"\n";
  return text + std::string(spec.key) + " = " + literal(spec, field) + "\n";
}

std::string render_section(Section section, const Target& target,
                           std::string (*entry)(const KeySpec&, const Target&)) {
  const std::string name(section_name(section));
  std::string text = is_list(section) ? "\n[[" + name + "]]\n" : "\n[" + name + "]\n";
  for (const KeySpec& spec : schema())
    if (has_key(section, spec)) text += entry(spec, target);
  return text;
}

// Example tables, of kinds that the defaults do not have.
constexpr std::string_view kJobExample =
    "\n# Another policy for the jobs of one name; a key that is left out is that of [policy].\n"
    "# [[job]]\n"
    "# name = \"digits\"\n"
    "# policy = \"fixed\"\n"
    "# k = 6\n"
    "# late = \"requeue\"\n"
    "#\n"
    "# With policy sync, sums in the order of ranks: equal gradients give equal bits in every "
    "run,\n"
    "# whether or not the workers ask for it. It needs memory for the gradients of all workers.\n"
    "# [[job]]\n"
    "# name = \"letters\"\n"
    "# policy = \"sync\"\n"
    "# reproducible = true\n";

// A table of [[class]] and of [[rule]] with every key, all in comments.
std::string class_and_rule_examples() {
  ClassConfig egress_class{.index = 56, .share = 0.05};
  RuleConfig rule{.egress_class = 12,
                  .dscp = 46,
                  .pcp = 5,
                  .protocol = Protocol::kUdp,
                  .port = 4791,
                  .prefix = Ipv4Prefix{{10, 77, 0, 0}, 24}};
  const Target target{.egress_class = &egress_class, .rule = &rule};
  const auto keys = [&](Section section) {
    std::string text = "# [[" + std::string(section_name(section)) + "]]\n";
    for (const KeySpec& spec : schema()) {
      if (spec.section != section) continue;
      text += comment(std::string(spec.help) + " " + capitalised(describe_type(spec)) + ".");
      text += "# " + std::string(spec.key) + " = " + literal(spec, spec.field(target)) + "\n";
    }
    return text;
  };
  return "\n" +
         comment(
             "Strict priority would let urgent traffic starve the rest: each [[class]] table "
             "guarantees a share to one class. Without any, the least urgent class that waits "
             "gets 1/32, and those between may starve: list what must not.") +
         keys(Section::kClass) + "\n" +
         comment(
             "The class of frames that are forwarded. Each [[rule]] table has one condition or "
             "several that must all hold; the first table that fits decides. What fits none "
             "is classed by chunk priority if it is Sluice's own, else by DSCP or 802.1Q "
             "priority.") +
         keys(Section::kRule);
}

struct Examples {
  std::string classes_and_rules;
  std::string jobs;
};

std::string render(Config config, const Examples& examples,
                   std::string (*entry)(const KeySpec&, const Target&)) {
  std::string text = render_section(Section::kAppliance, {&config}, entry);
  for (PortConfig& port : config.ports) {
    text += render_section(Section::kPort, {&config, &port}, entry);
    text += render_section(Section::kPortFault, {&config, &port}, entry);
  }
  text += examples.classes_and_rules;
  for (ClassConfig& egress_class : config.classes)
    text +=
        render_section(Section::kClass, {.config = &config, .egress_class = &egress_class}, entry);
  for (RuleConfig& rule : config.rules)
    text += render_section(Section::kRule, {.config = &config, .rule = &rule}, entry);
  for (const Section section : {Section::kLimits, Section::kPolicy})
    text += render_section(section, {&config}, entry);
  text += examples.jobs;
  for (JobConfig& job : config.jobs)
    text += render_section(Section::kJob, {.config = &config, .job = &job}, entry);
  for (const Section section : {Section::kMetrics, Section::kControl, Section::kForwarding})
    text += render_section(section, {&config}, entry);
  return text;
}

}  // namespace

std::string render_effective(const Config& config) {
  return render(config, {}, effective_line).substr(1);
}

Config default_config() {
  Config config;
  config.ports.push_back({.name = "port0", .path = "/run/sluice/port0.sock"});
  return config;
}

std::string render_reference() {
  return "# The appliance's settings, all at their defaults. Check a changed file with\n"
         "#   sluiced --check-config --config FILE\n"
         "# Any setting may be left out; each [[port]] table adds a port, each [[job]] table a "
         "policy.\n"
         "# A reload (SIGHUP, sluicectl reload) applies settings that are marked live and all\n"
         "# [[class]], [[rule]] and [[job]] tables; any other change needs a restart.\n" +
         render(default_config(),
                {.classes_and_rules = class_and_rule_examples(), .jobs = std::string(kJobExample)},
                reference_entry);
}

}  // namespace sluice::config

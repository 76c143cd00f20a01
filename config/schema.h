// The table of all settings: key, section, unit, range, form, help, and the field that a setting
// fills.
//
// The reader, the renderer, the shipped appliance.toml and its test all walk this table, so a
// setting that is added here is read, checked, printed and documented. Types follow from the
// fields, defaults from the initialisers in config.h. Constant data, usable on any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "aggregator/base/policy_fields.h"
#include "config/config.h"

namespace sluice::config {

enum class Section : std::uint8_t {
  kAppliance,
  kPort,
  kPortFault,
  kClass,
  kRule,
  kLimits,
  kPolicy,
  kJob,
  kMetrics,
  kControl,
  kForwarding,
};

// The place of a value; the alternative is the setting's type. PolicyOptions: the option that the
// row's key names.
using Field =
    std::variant<bool*, std::uint16_t*, std::uint32_t*, std::uint64_t*, double*, std::string*,
                 Ipv4Prefix*, std::optional<Ipv6Prefix>*, std::optional<MacAddress>*, Polling*,
                 LogLevel*, PortType*, PolicyOptions*, std::optional<std::uint16_t>*,
                 std::optional<Protocol>*, std::optional<IpPrefix>*>;

// The structs that can have a row's field. All but `config` are null outside their own table.
struct Target {
  Config* config = nullptr;
  PortConfig* port = nullptr;
  JobConfig* job = nullptr;
  ClassConfig* egress_class = nullptr;
  RuleConfig* rule = nullptr;
};

// The form of a string, and the words for its error.
struct Form {
  bool (*matches)(std::string_view) = nullptr;
  std::string_view words;
};

struct KeySpec {
  Section section;
  std::string_view key;
  std::string_view unit;  // empty: a plain number, or no number at all
  double min = 0;         // the range of numbers, except a policy's; of strings the length in bytes
  double max = 0;
  std::string_view help;
  Field (*field)(Target);
  Form form;            // strings only
  bool secret = false;  // never printed
};

std::span<const KeySpec> schema();

// The policy option of a row of [policy].
const PolicyField& policy_field(const KeySpec& spec);

// Whether the section has the row's key. A [[job]] also has the keys of [policy].
inline bool has_key(Section section, const KeySpec& spec) {
  return spec.section == section || (section == Section::kJob && spec.section == Section::kPolicy);
}

// Whether the section is a list of tables, as [[port]].
inline bool is_list(Section section) {
  return section == Section::kPort || section == Section::kClass || section == Section::kRule ||
         section == Section::kJob;
}

// "appliance", "port", "port.fault", ... as written between the brackets.
std::string_view section_name(Section section);

// For messages and the reference: "integer 1..16", "string", "one of \"adaptive\", \"busy\"".
std::string describe_type(const KeySpec& spec);

// The value as a TOML literal; empty for an optional value that is not set.
std::string literal(const KeySpec& spec, const Field& field);

}  // namespace sluice::config

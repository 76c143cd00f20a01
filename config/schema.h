// The one table of settings: key, section, unit, range, form, help, and the field that it fills.
//
// The reader, the renderer, the shipped appliance.toml and its test all walk this table; a setting
// added here is read, checked, printed and documented. Types follow from the fields, defaults from
// the initialisers in config.h. Constant data, usable from any thread.
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
  kForwarding,
};

// Where a value is stored; the alternative is the setting's type. PolicyOptions: the one that the
// row's key names.
using Field =
    std::variant<bool*, std::uint16_t*, std::uint32_t*, std::uint64_t*, double*, std::string*,
                 Ipv4Prefix*, std::optional<Ipv6Prefix>*, std::optional<MacAddress>*, Polling*,
                 LogLevel*, PortType*, PolicyOptions*, std::optional<std::uint16_t>*,
                 std::optional<Protocol>*, std::optional<IpPrefix>*>;

// The structs that a row's field may lie in. All but `config` are null outside their own table.
struct Target {
  Config* config = nullptr;
  PortConfig* port = nullptr;
  JobConfig* job = nullptr;
  ClassConfig* egress_class = nullptr;
  RuleConfig* rule = nullptr;
};

// What a string must look like, with the words for its error.
struct Form {
  bool (*matches)(std::string_view) = nullptr;
  std::string_view words;
};

struct KeySpec {
  Section section;
  std::string_view key;
  std::string_view unit;  // empty: a plain number, or no number at all
  double min = 0;         // numbers but a policy's: the value; strings: the length in bytes
  double max = 0;
  std::string_view help;
  Field (*field)(Target);
  Form form;            // strings only
  bool secret = false;  // never printed
};

std::span<const KeySpec> schema();

// Of a row of [policy].
const PolicyField& policy_field(const KeySpec& spec);

// Whether the section has the row's key. The keys of [policy] are those of a [[job]] as well.
inline bool has_key(Section section, const KeySpec& spec) {
  return spec.section == section || (section == Section::kJob && spec.section == Section::kPolicy);
}

// Whether the file holds a list of such tables, as in [[port]].
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

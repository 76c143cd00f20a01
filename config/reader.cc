#include "config/reader.h"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "aggregator/base/policy_text.h"
#include "config/schema.h"
#include "config/text.h"
#include "config/toml/toml.h"

namespace sluice::config {
namespace {

std::string type_name(const TomlValue& value) {
  static constexpr const char* kNames[] = {
      "a date or time", "a boolean", "an integer", "a floating-point number",
      "a string",       "an array",  "a table"};
  return kNames[value.value.index()];
}

// The value as the user wrote it, short enough for one line.
std::string shown(const TomlValue& value, const KeySpec& spec) {
  if (spec.secret) return "(" + type_name(value) + ", not shown)";
  if (value.is<std::string>()) return in_quotes(value.as<std::string>().substr(0, 120));
  return value.written.empty() ? type_name(value) : value.written;
}

// The number in `value`, if it is one and in range.
std::optional<double> number(const TomlValue& value, const KeySpec& spec) {
  std::optional<double> result;
  if (value.is<std::int64_t>()) result = static_cast<double>(value.as<std::int64_t>());
  if (value.is<double>()) result = value.as<double>();
  // Written so that a NaN is out of range.
  if (result && !(*result >= spec.min && *result <= spec.max)) result.reset();
  return result;
}

template <class Enum>
bool store_choice(const std::string& text, Enum* out) {
  const auto names = names_of(Enum{});
  const auto found = std::ranges::find(names, std::string_view(text));
  if (found == names.end()) return false;
  *out = static_cast<Enum>(found - names.begin());
  return true;
}

template <class T>
bool store_parsed(const std::optional<T>& read, T* out) {
  if (read) *out = *read;
  return read.has_value();
}

template <class T>
bool store_integer(const TomlValue& value, const KeySpec& spec, T* out) {
  if (!value.is<std::int64_t>() || !number(value, spec)) return false;
  *out = static_cast<T>(value.as<std::int64_t>());
  return true;
}

template <class T>
bool store_text(const std::string& text, const KeySpec& spec, T* out) {
  if constexpr (std::is_same_v<T, std::string>) {
    const double length = static_cast<double>(text.size());
    if (length < spec.min || length > spec.max || text.find('\0') != std::string::npos ||
        (spec.form.matches && !spec.form.matches(text)))
      return false;
    *out = text;
    return true;
  } else if constexpr (std::is_same_v<T, Ipv4Prefix>) {
    return store_parsed(parse_ipv4_prefix(text), out);
  } else if constexpr (std::is_same_v<T, Ipv6Prefix>) {
    return store_parsed(parse_ipv6_prefix(text), out);
  } else if constexpr (std::is_same_v<T, IpPrefix>) {
    return store_parsed(parse_ip_prefix(text), out);
  } else if constexpr (std::is_same_v<T, MacAddress>) {
    return store_parsed(parse_mac(text), out);
  } else {
    return store_choice(text, out);
  }
}

bool store_policy(const TomlValue& value, const PolicyField& field, PolicyOptions* out) {
  std::optional<std::uint32_t> read;
  if (value.is<std::string>())
    read = policy_word(field, value.as<std::string>());
  else if (value.is<std::int64_t>())
    read = policy_number(field, static_cast<double>(value.as<std::int64_t>()));
  else if (value.is<double>() && field.thousandths)
    read = policy_number(field, value.as<double>());
  if (read) field.set(*out, *read);
  return read.has_value();
}

template <class T>
bool store_value(const TomlValue& value, const KeySpec& spec, T* out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is<bool>()) return false;
    *out = value.as<bool>();
    return true;
  } else if constexpr (std::is_integral_v<T>) {
    return store_integer(value, spec, out);
  } else if constexpr (std::is_same_v<T, double>) {
    return store_parsed(number(value, spec), out);
  } else if constexpr (std::is_same_v<T, PolicyOptions>) {
    return store_policy(value, policy_field(spec), out);
  } else {
    return value.is<std::string>() && store_text(value.as<std::string>(), spec, out);
  }
}

// An optional keeps its old value when the new one is wrong, like everything else.
template <class T>
bool store_value(const TomlValue& value, const KeySpec& spec, std::optional<T>* out) {
  T read{};
  if (!store_value(value, spec, &read)) return false;
  *out = read;
  return true;
}

// Stores `value` where the row says; false when type, range or form is wrong.
bool store(const TomlValue& value, const KeySpec& spec, const Field& field) {
  return std::visit([&](auto* out) { return store_value(value, spec, out); }, field);
}

std::string plural(const std::string& name) { return name + (name.ends_with('s') ? "es" : "s"); }

// What to do about a key that the section does not have.
std::string remedy_for_unknown(const std::string& key, Section section) {
  std::vector<std::string_view> here;
  std::string elsewhere;
  for (const KeySpec& spec : schema()) {
    if (has_key(section, spec))
      here.push_back(spec.key);
    else if (spec.key == key)
      elsewhere +=
          (elsewhere.empty() ? "[" : " or [") + std::string(section_name(spec.section)) + "]";
  }
  if (section == Section::kPort) here.push_back("fault");
  const std::string_view close = nearest(key, here);
  if (!close.empty()) return "did you mean " + in_quotes(close) + "?";
  if (!elsewhere.empty()) return "it belongs in " + elsewhere;
  std::string all;
  for (const std::string_view name : here) all += (all.empty() ? "" : ", ") + std::string(name);
  return "remove it; the keys here are " + all;
}

class Reader {
 public:
  Reader(Config& config, Report& report) : config_(config), report_(report) {}

  void read_root(const TomlValue& root) {
    read_list(root, Section::kPort, kMaxPorts, config_.ports, {}, &Target::port);
    read_list(root, Section::kClass, kClasses, config_.classes, {}, &Target::egress_class);
    read_list(root, Section::kRule, kMaxRules, config_.rules, {}, &Target::rule);
    for (const auto& [key, value] : root.as<TomlTable>()) {
      const auto section = root_section(key);
      if (!section)
        unknown_root(key, value);
      else if (!is_list(*section))
        read_section(value, *section, key, {&config_});
    }
    // Last, because each starts from what [policy] says.
    read_list(root, Section::kJob, kMaxJobTables, config_.jobs, {"", config_.policy}, &Target::job);
  }

 private:
  static constexpr Section kRootSections[] = {
      Section::kAppliance, Section::kPort,      Section::kClass, Section::kRule,
      Section::kLimits,    Section::kPolicy,    Section::kJob,   Section::kMetrics,
      Section::kControl,   Section::kForwarding};

  static std::optional<Section> root_section(std::string_view name) {
    for (const Section section : kRootSections)
      if (section_name(section) == name) return section;
    return std::nullopt;
  }

  // The tables of a list such as [[port]], each starting as a copy of `initial`.
  template <class Table>
  void read_list(const TomlValue& root, Section section, std::size_t max,
                 std::vector<Table>& tables, const Table& initial, Table* Target::*member) {
    const std::string name(section_name(section));
    const auto found = root.as<TomlTable>().find(name);
    if (found == root.as<TomlTable>().end()) return;
    tables.assign(count_tables(name, found->second, max), initial);
    for (std::size_t i = 0; i < tables.size(); ++i) {
      Target target{.config = &config_};
      target.*member = &tables[i];
      read_section(found->second.as<TomlArray>()[i], section, name + "[" + std::to_string(i) + "]",
                   target);
    }
  }

  void unknown_root(const std::string& key, const TomlValue& value) {
    std::vector<std::string_view> names;
    for (const Section section : kRootSections) names.push_back(section_name(section));
    const std::string_view close = nearest(key, names);
    std::string remedy;
    for (const std::string_view name : names)
      remedy += (remedy.empty() ? "remove it; the tables are " : ", ") + std::string(name);
    if (!close.empty()) remedy = "did you mean " + in_quotes(close) + "?";
    for (const KeySpec& spec : schema())
      if (spec.key == key && !value.is<TomlTable>() && !value.is<TomlArray>())
        remedy = "it belongs under [" + std::string(section_name(spec.section)) + "]";
    report_.broken(key, value.line, "unknown table or key: " + in_quotes(key) + "; " + remedy);
  }

  // How many tables a list such as [[port]] holds; 0 after an error.
  std::size_t count_tables(const std::string& name, const TomlValue& value, std::size_t max) {
    if (!value.is<TomlArray>() ||
        (!value.as<TomlArray>().empty() && !value.as<TomlArray>()[0].is<TomlTable>())) {
      report_.broken(
          name, value.line,
          plural(name) + " are a list of tables: " + type_name(value) + "; write [[" + name + "]]");
      return 0;
    }
    const auto& tables = value.as<TomlArray>();
    if (tables.size() > max) {
      report_.broken(name, tables[max].line,
                     "too many " + plural(name) + ": " + std::to_string(tables.size()) +
                         "; at most " + std::to_string(max));
      return 0;
    }
    return tables.size();
  }

  void read_section(const TomlValue& table, Section section, const std::string& name,
                    Target target) {
    report_.place(name, table.line);
    if (!table.is<TomlTable>()) {
      report_.broken(name, table.line,
                     in_quotes(section_name(section)) + " must be a table: " + type_name(table) +
                         "; write [" + std::string(section_name(section)) + "]");
      return;
    }
    for (const auto& [key, value] : table.as<TomlTable>()) {
      if (section == Section::kPort && key == "fault")
        read_section(value, Section::kPortFault, name + ".fault", target);
      else
        read_value(key, value, section, name, target);
    }
  }

  void read_value(const std::string& key, const TomlValue& value, Section section,
                  const std::string& table_name, Target target) {
    const std::string name = table_name + "." + key;
    const auto rows = schema();
    const auto spec = std::ranges::find_if(
        rows, [&](const KeySpec& row) { return has_key(section, row) && row.key == key; });
    if (spec == rows.end()) {
      report_.broken(name, value.line,
                     "unknown key in [" + std::string(section_name(section)) +
                         "]: " + in_quotes(key) + "; " + remedy_for_unknown(key, section));
      return;
    }
    report_.place(name, value.line);
    if (!store(value, *spec, spec->field(target)))
      report_.broken(
          name, value.line,
          key + " has a wrong value: " + shown(value, *spec) + "; give " + describe_type(*spec));
  }

  Config& config_;
  Report& report_;
};

}  // namespace

void Report::broken(const std::string& name, unsigned line, const std::string& text) {
  broken_.insert(name);
  errors_.emplace_back(line, text);
}

// A setting is broken too when the table around it is.
bool Report::is_broken(const std::string& name) const {
  for (const std::string& broken : broken_)  // the empty name is the whole file
    if (broken.empty() || name == broken || name.starts_with(broken + ".") ||
        name.starts_with(broken + "["))
      return true;
  return false;
}

bool Report::sound(const std::string& name) const {
  return !is_broken(name) && std::ranges::none_of(broken_, [&](const std::string& broken) {
    return broken.starts_with(name + ".");
  });
}

void Report::conflict(std::initializer_list<std::string> names, const std::string& text) {
  add(errors_, names, text);
}

void Report::warn(std::initializer_list<std::string> names, const std::string& text) {
  add(warnings_, names, text);
}

void Report::add(Lines& lines, std::initializer_list<std::string> names, const std::string& text) {
  unsigned line = 0;
  for (const std::string& name : names) {
    if (is_broken(name)) return;
    const auto found = lines_.find(name);
    if (line == 0 && found != lines_.end()) line = found->second;
  }
  // A setting that is missing is an error of the table around it.
  for (const std::string& name : names) {
    const auto table = lines_.find(name.substr(0, name.rfind('.')));
    if (line == 0 && table != lines_.end()) line = table->second;
  }
  lines.emplace_back(std::max(line, 1u), text);
}

std::vector<std::string> Report::take(Lines& lines) {
  std::ranges::stable_sort(lines, {}, &std::pair<unsigned, std::string>::first);
  std::vector<std::string> texts;
  for (const auto& [line, text] : lines)
    texts.push_back(file_ + ":" + std::to_string(line) + ": " + text);
  return texts;
}

Config read_toml(const std::string& text, Report& report) {
  Config config;
  const auto parsed = parse_toml(text);
  if (const auto* mistake = std::get_if<TomlMistake>(&parsed))
    report.broken("", mistake->line, mistake->text);
  else
    Reader(config, report).read_root(std::get<TomlValue>(parsed));
  return config;
}

}  // namespace sluice::config

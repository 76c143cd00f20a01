#include "config/reader.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <type_traits>

#include "aggregator/base/policy_text.h"
#include "config/schema.h"
#include "config/text.h"
#include "config/toml.h"

namespace sluice::config {
namespace {

std::string type_name(const toml::value& value) {
  switch (value.type()) {
    case toml::value_t::boolean: return "a boolean";
    case toml::value_t::integer: return "an integer";
    case toml::value_t::floating: return "a floating-point number";
    case toml::value_t::string: return "a string";
    case toml::value_t::array: return "an array";
    case toml::value_t::table: return "a table";
    default: return "a date or time";
  }
}

// The value as the user wrote it, short enough for one line.
std::string shown(const toml::value& value, const KeySpec& spec) {
  if (spec.secret) return "(" + type_name(value) + ", not shown)";
  if (value.is_table()) return "a table";
  if (value.is_array()) return "an array";
  if (value.is_string()) return in_quotes(text_of(value).substr(0, 120));
  std::ostringstream text;
  text << value;
  return text.str();
}

// The number in `value`, if it is one and in range.
std::optional<double> number(const toml::value& value, const KeySpec& spec) {
  std::optional<double> result;
  if (value.is_integer()) result = static_cast<double>(value.as_integer());
  if (value.is_floating()) result = value.as_floating();
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
bool store_integer(const toml::value& value, const KeySpec& spec, T* out) {
  if (!value.is_integer() || !number(value, spec)) return false;
  *out = static_cast<T>(value.as_integer());
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

bool store_policy(const toml::value& value, const PolicyField& field, PolicyOptions* out) {
  std::optional<std::uint32_t> read;
  if (value.is_string())
    read = policy_word(field, text_of(value));
  else if (value.is_integer())
    read = policy_number(field, static_cast<double>(value.as_integer()));
  else if (value.is_floating() && field.thousandths)
    read = policy_number(field, value.as_floating());
  if (read) field.set(*out, *read);
  return read.has_value();
}

template <class T>
bool store_value(const toml::value& value, const KeySpec& spec, T* out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return false;
    *out = value.as_boolean();
    return true;
  } else if constexpr (std::is_integral_v<T>) {
    return store_integer(value, spec, out);
  } else if constexpr (std::is_same_v<T, double>) {
    return store_parsed(number(value, spec), out);
  } else if constexpr (std::is_same_v<T, PolicyOptions>) {
    return store_policy(value, policy_field(spec), out);
  } else {
    return value.is_string() && store_text(text_of(value), spec, out);
  }
}

// An optional keeps its old value when the new one is wrong, like everything else.
template <class T>
bool store_value(const toml::value& value, const KeySpec& spec, std::optional<T>* out) {
  T read{};
  if (!store_value(value, spec, &read)) return false;
  *out = read;
  return true;
}

// Stores `value` where the row says; false when type, range or form is wrong.
bool store(const toml::value& value, const KeySpec& spec, const Field& field) {
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

  void read_root(const toml::value& root) {
    read_list(root, Section::kPort, kMaxPorts, config_.ports, {}, &Target::port);
    read_list(root, Section::kClass, kClasses, config_.classes, {}, &Target::egress_class);
    read_list(root, Section::kRule, kMaxRules, config_.rules, {}, &Target::rule);
    for (const auto& [key, value] : root.as_table()) {
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
      Section::kAppliance, Section::kPort, Section::kClass,   Section::kRule,      Section::kLimits,
      Section::kPolicy,    Section::kJob,  Section::kMetrics, Section::kForwarding};

  static std::optional<Section> root_section(std::string_view name) {
    for (const Section section : kRootSections)
      if (section_name(section) == name) return section;
    return std::nullopt;
  }

  // The tables of a list such as [[port]], each starting as a copy of `initial`.
  template <class Table>
  void read_list(const toml::value& root, Section section, std::size_t max,
                 std::vector<Table>& tables, const Table& initial, Table* Target::*member) {
    const std::string name(section_name(section));
    const auto found = root.as_table().find(name);
    if (found == root.as_table().end()) return;
    tables.assign(count_tables(name, found->second, max), initial);
    for (std::size_t i = 0; i < tables.size(); ++i) {
      Target target{.config = &config_};
      target.*member = &tables[i];
      read_section(found->second.as_array()[i], section, name + "[" + std::to_string(i) + "]",
                   target);
    }
  }

  void unknown_root(const std::string& key, const toml::value& value) {
    std::vector<std::string_view> names;
    for (const Section section : kRootSections) names.push_back(section_name(section));
    const std::string_view close = nearest(key, names);
    std::string remedy;
    for (const std::string_view name : names)
      remedy += (remedy.empty() ? "remove it; the tables are " : ", ") + std::string(name);
    if (!close.empty()) remedy = "did you mean " + in_quotes(close) + "?";
    for (const KeySpec& spec : schema())
      if (spec.key == key && !value.is_table() && !value.is_array())
        remedy = "it belongs under [" + std::string(section_name(spec.section)) + "]";
    report_.broken(key, line_of(value), "unknown table or key: " + in_quotes(key) + "; " + remedy);
  }

  // How many tables a list such as [[port]] holds; 0 after an error.
  std::size_t count_tables(const std::string& name, const toml::value& value, std::size_t max) {
    if (!value.is_array() || (!value.as_array().empty() && !value.as_array()[0].is_table())) {
      report_.broken(
          name, line_of(value),
          plural(name) + " are a list of tables: " + type_name(value) + "; write [[" + name + "]]");
      return 0;
    }
    const auto& tables = value.as_array();
    if (tables.size() > max) {
      report_.broken(name, line_of(tables[max]),
                     "too many " + plural(name) + ": " + std::to_string(tables.size()) +
                         "; at most " + std::to_string(max));
      return 0;
    }
    return tables.size();
  }

  void read_section(const toml::value& table, Section section, const std::string& name,
                    Target target) {
    report_.place(name, line_of(table));
    if (!table.is_table()) {
      report_.broken(name, line_of(table),
                     in_quotes(section_name(section)) + " must be a table: " + type_name(table) +
                         "; write [" + std::string(section_name(section)) + "]");
      return;
    }
    for (const auto& [key, value] : table.as_table()) {
      if (section == Section::kPort && key == "fault")
        read_section(value, Section::kPortFault, name + ".fault", target);
      else
        read_value(key, value, section, name, target);
    }
  }

  void read_value(const std::string& key, const toml::value& value, Section section,
                  const std::string& table_name, Target target) {
    const std::string name = table_name + "." + key;
    const auto rows = schema();
    const auto spec = std::ranges::find_if(
        rows, [&](const KeySpec& row) { return has_key(section, row) && row.key == key; });
    if (spec == rows.end()) {
      report_.broken(name, line_of(value),
                     "unknown key in [" + std::string(section_name(section)) +
                         "]: " + in_quotes(key) + "; " + remedy_for_unknown(key, section));
      return;
    }
    report_.place(name, line_of(value));
    if (!store(value, *spec, spec->field(target)))
      report_.broken(
          name, line_of(value),
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

Config read_toml(const std::string& text, const std::string& file, Report& report) {
  Config config;
  std::istringstream stream(text);
  try {
    Reader(config, report).read_root(toml::parse(stream, file));
  } catch (const toml::syntax_error& error) {
    const Mistake mistake = mistake_of(error);
    std::string source = mistake.source.substr(0, 120);
    std::erase_if(source, [](unsigned char c) { return c < 0x20; });
    const bool has_note = !mistake.note.empty() && mistake.note != "here";
    report.broken("", mistake.line,
                  "not valid TOML (" + mistake.text + (has_note ? ", " + mistake.note : "") +
                      "): " + source + "; correct this line");
  } catch (const std::exception& error) {
    // toml11 lets errors of the standard library through for some malformed numbers and dates.
    report.broken("", 1,
                  std::string("not valid TOML: ") + error.what() + "; check the file's syntax");
  }
  return config;
}

}  // namespace sluice::config

// Turns TOML text into a Config by walking the schema, and remembers where each setting stood.
//
// Not the checks of combinations (checks.h), no files, no host. Called by the loader.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace sluice::config {

// Errors and warnings of one file, sorted by line when taken. A place is a setting's full name,
// such as "limits.jobs" or "port[1].path"; "port[1]" is the whole table.
class Report {
 public:
  explicit Report(std::string file) : file_(std::move(file)) {}

  void place(const std::string& name, unsigned line) { lines_[name] = line; }
  // Whether the file says anything about `name`.
  bool has(const std::string& name) const { return lines_.contains(name); }
  // Whether nothing in the table `name`, nor around it, was an error of reading.
  bool sound(const std::string& name) const;

  // An error of reading: later checks that look at `name` would only repeat it, and stay silent.
  void broken(const std::string& name, unsigned line, const std::string& text);

  // An error of a combination, at the line of the first of `names` that the file holds.
  void conflict(std::initializer_list<std::string> names, const std::string& text);

  // Likewise of what can work and is probably not meant.
  void warn(std::initializer_list<std::string> names, const std::string& text);

  std::vector<std::string> take_errors() { return take(errors_); }
  std::vector<std::string> take_warnings() { return take(warnings_); }

 private:
  using Lines = std::vector<std::pair<unsigned, std::string>>;
  bool is_broken(const std::string& name) const;
  void add(Lines& lines, std::initializer_list<std::string> names, const std::string& text);
  std::vector<std::string> take(Lines& lines);

  std::string file_;
  std::map<std::string, unsigned> lines_;
  std::set<std::string> broken_;
  Lines errors_;
  Lines warnings_;
};

// What could be read; the rest keeps its default. Every problem goes to `report`.
Config read_toml(const std::string& text, const std::string& file, Report& report);

}  // namespace sluice::config

// Turns TOML text into a Config by walking the schema, and remembers the line of each setting.
//
// It checks no combinations (checks.h), and reads no files and no facts of the host. Called by the
// loader.
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

// The errors and warnings of one file, sorted by line when they are taken. A setting is named in
// full, such as "limits.jobs" or "port[1].path"; "port[1]" is a whole table.
class Report {
 public:
  explicit Report(std::string file) : file_(std::move(file)) {}

  void place(const std::string& name, unsigned line) { lines_[name] = line; }
  // Whether the file has `name`.
  bool has(const std::string& name) const { return lines_.contains(name); }
  // Whether reading found no error in the table `name`, nor in a table around it.
  bool sound(const std::string& name) const;

  // Adds an error of reading. Later checks that involve `name` stay silent: they would only repeat
  // it.
  void broken(const std::string& name, unsigned line, const std::string& text);

  // Adds an error of a combination, at the line of the first of `names` that the file has.
  void conflict(std::initializer_list<std::string> names, const std::string& text);

  // Adds a warning, at the line of the first of `names` that the file has.
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

// The settings that could be read; the others keep their defaults. Every problem is added to
// `report`.
Config read_toml(const std::string& text, Report& report);

}  // namespace sluice::config

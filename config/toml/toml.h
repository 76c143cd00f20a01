// A TOML document as a tree of values. Its source alone includes toml11, which takes a compiler
// longer than all the rest of a folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace sluice {

struct TomlValue;
using TomlArray = std::vector<TomlValue>;
using TomlTable = std::map<std::string, TomlValue>;

struct TomlValue {
  // std::monostate: a date or time.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, TomlArray, TomlTable> value;
  std::string written;  // a number, boolean, date or time as TOML; else empty
  unsigned line = 1;    // in an array, a value that is no table has the array's

  template <class T>
  bool is() const noexcept {
    return std::holds_alternative<T>(value);
  }
  // Only if is<T>().
  template <class T>
  const T& as() const {
    return std::get<T>(value);
  }
};

// The first error of a text that is not TOML.
struct TomlMistake {
  std::string text;  // one line, with what to do
  unsigned line = 1;
};

// The root is a table. Any bytes give one of the two.
std::variant<TomlValue, TomlMistake> parse_toml(const std::string& text);

}  // namespace sluice

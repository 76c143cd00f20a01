// Hides toml11, and the differences between its versions 3 (Debian 12) and 4 (Debian 13).
#include "config/toml/toml.h"

#include <exception>
#include <sstream>
#include <toml.hpp>

namespace sluice {
namespace {

template <class Location>
unsigned line_at(const Location& location) {
  if constexpr (requires { location.line(); })
    return static_cast<unsigned>(location.line());
  else
    return static_cast<unsigned>(location.first_line_number());
}

template <class String>
const std::string& text_in(const String& string) {
  if constexpr (requires { string.str; })
    return string.str;
  else
    return string;
}

// toml11 counts lines from the text's beginning, so that the elements of a long array are not asked
// for theirs.
TomlValue tree_of(const toml::value& from, unsigned line) {
  TomlValue to{.value = {}, .written = {}, .line = line};
  switch (from.type()) {
    case toml::value_t::string: to.value = text_in(from.as_string()); return to;
    case toml::value_t::array: {
      TomlArray& array = to.value.emplace<TomlArray>();
      for (const toml::value& each : from.as_array())
        array.push_back(tree_of(each, each.is_table() ? line_at(each.location()) : line));
      return to;
    }
    case toml::value_t::table: {
      TomlTable& table = to.value.emplace<TomlTable>();
      for (const auto& [key, each] : from.as_table())
        table.emplace(key, tree_of(each, line_at(each.location())));
      return to;
    }
    case toml::value_t::boolean: to.value = from.as_boolean(); break;
    case toml::value_t::integer: to.value = std::int64_t{from.as_integer()}; break;
    case toml::value_t::floating: to.value = double{from.as_floating()}; break;
    default: break;
  }
  std::ostringstream written;
  written << from;
  to.written = written.str();
  return to;
}

// A syntax error: the parser's message in one sentence, its note at the caret, and the line.
struct Mistake {
  std::string text;
  std::string note;
  std::string source;
  unsigned line = 1;
};

// Takes the first line and the note at the caret out of version 3's message, which is a drawing.
Mistake read_drawing(std::string text) {
  Mistake mistake;
  if (const std::size_t caret = text.rfind("^---"); caret != std::string::npos) {
    mistake.note = text.substr(caret + 4);
    mistake.note = mistake.note.substr(0, mistake.note.find('\n'));
    while (mistake.note.starts_with(' ') || mistake.note.starts_with('-')) mistake.note.erase(0, 1);
  }
  mistake.text = text.substr(0, text.find('\n'));
  if (mistake.text.starts_with("[error] ")) mistake.text.erase(0, 8);
  return mistake;
}

template <class Error>
Mistake mistake_of(const Error& error) {
  Mistake mistake;
  if constexpr (requires { error.location(); }) {
    mistake = read_drawing(error.what());
    mistake.source = error.location().line_str();
    mistake.line = line_at(error.location());
  } else {
    for (const auto& first : error.errors()) {
      mistake.text = first.title();
      for (const auto& [location, note] : first.locations()) {
        mistake.note = note;
        mistake.line = line_at(location);
        if (location.num_lines() != 0) mistake.source = location.first_line();
        break;
      }
      break;
    }
  }
  if (const std::size_t colon = mistake.text.find(": ");
      mistake.text.find("parse_") < colon || mistake.text.starts_with("toml::"))
    mistake.text.erase(0, colon + 2);
  return mistake;
}

}  // namespace

std::variant<TomlValue, TomlMistake> parse_toml(const std::string& text) {
  std::istringstream stream(text);
  try {
    return tree_of(toml::parse(stream, "the text"), 1);
  } catch (const toml::syntax_error& error) {
    const Mistake mistake = mistake_of(error);
    std::string source = mistake.source.substr(0, 120);
    std::erase_if(source, [](unsigned char c) { return c < 0x20; });
    const bool has_note = !mistake.note.empty() && mistake.note != "here";
    return TomlMistake{"not valid TOML (" + mistake.text + (has_note ? ", " + mistake.note : "") +
                           "): " + source + "; correct this line",
                       mistake.line};
  } catch (const std::exception& error) {
    // toml11 lets errors of the standard library through for some malformed numbers and dates.
    return TomlMistake{std::string("not valid TOML: ") + error.what() + "; check the file's syntax",
                       1};
  }
}

}  // namespace sluice

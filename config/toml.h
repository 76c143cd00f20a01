// Hides the differences between toml11 3 (Debian 12) and 4 (Debian 13). For reader.cc alone.
#pragma once

#include <string>
#include <string_view>
#include <toml.hpp>

namespace sluice::config {

template <class Location>
unsigned line_at(const Location& location) {
  if constexpr (requires { location.line(); })
    return static_cast<unsigned>(location.line());
  else
    return static_cast<unsigned>(location.first_line_number());
}

inline unsigned line_of(const toml::value& value) { return line_at(value.location()); }

template <class String>
const std::string& text_in(const String& string) {
  if constexpr (requires { string.str; })
    return string.str;
  else
    return string;
}

inline const std::string& text_of(const toml::value& value) { return text_in(value.as_string()); }

// A syntax error: the parser's message in one sentence, its note at the caret, and the line.
struct Mistake {
  std::string text;
  std::string note;
  std::string source;
  unsigned line = 1;
};

// Takes the first line and the note at the caret out of version 3's message, which is a drawing.
inline Mistake read_drawing(std::string text) {
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

}  // namespace sluice::config

// Writes JSON (RFC 8259): one object, key by key.
//
// Pure.
#pragma once

#include <charconv>
#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::dataplane {

// A string in quotes. Bytes that are no ASCII become the code point of the same number, so that any
// bytes of a wire give valid JSON.
inline std::string json_string(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result.append({'\\', letter});
    } else if (byte < 0x20 || byte > 0x7E) {
      result += "\\u00";
      result.append({kDigits[byte >> 4], kDigits[byte & 15]});
    } else {
      result += letter;
    }
  }
  return result + "\"";
}

// `items` are JSON already.
inline std::string json_array(std::span<const std::string> items) {
  std::string result = "[";
  for (const std::string& item : items) result += (result.size() > 1 ? "," : "") + item;
  return result + "]";
}

inline std::string json_strings(std::span<const std::string> texts) {
  std::vector<std::string> items;
  for (const std::string& text : texts) items.push_back(json_string(text));
  return json_array(items);
}

class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view value) {
    return add_json(key, json_string(value));
  }
  JsonObject& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  JsonObject& add(std::string_view key, std::integral auto value) {
    if constexpr (std::same_as<decltype(value), bool>)
      return add_json(key, value ? "true" : "false");
    return add_json(key, std::to_string(value));
  }
  // A finite number, in the shortest form that reads back as the same.
  JsonObject& add(std::string_view key, double value) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return add_json(key, std::string(text, end));
  }
  JsonObject& add_json(std::string_view key, std::string_view json) {
    text_ += (text_.empty() ? "" : ",") + json_string(key) + ":";
    text_ += json;
    return *this;
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

}  // namespace sluice::dataplane

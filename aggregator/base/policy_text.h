// A policy's options in the words, shares and numbers that users write and read, by the table of
// policy_fields.h. Cold; pure.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "aggregator/base/policy_fields.h"

namespace sluice {

// "fixed", "0.5", "one-in-32", "7".
inline std::string policy_text(const PolicyField& field, std::uint32_t value) {
  for (const PolicyWord& word : field.words)
    if (word.value == value) return std::string(word.text);
  if (!field.thousandths) return std::to_string(value);
  std::string digits = std::to_string(1000 + value % 1000).substr(1);
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return std::to_string(value / 1000) + "." + digits;
}

inline std::optional<std::uint32_t> policy_word(const PolicyField& field, std::string_view text) {
  for (const PolicyWord& word : field.words)
    if (word.text == text) return word.value;
  return std::nullopt;
}

// The value of a number as written. The default is always valid, so that an unset option can be
// written out.
inline std::optional<std::uint32_t> policy_number(const PolicyField& field, double written) {
  const double scaled = field.thousandths ? written * 1000 : written;
  const double whole = std::round(scaled);
  if (!(whole >= 0 && whole <= UINT32_MAX) || std::abs(scaled - whole) > 1e-6) return std::nullopt;
  const auto value = static_cast<std::uint32_t>(whole);
  const bool numbers = field.least <= field.most;
  const bool fits = field.least <= value && value <= field.most;
  if (numbers && (fits || value == field.get(PolicyOptions{}))) return value;
  return std::nullopt;
}

// The value of a word or a number.
inline std::optional<std::uint32_t> policy_value(const PolicyField& field, std::string_view text) {
  if (const auto value = policy_word(field, text)) return value;
  double written = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), written);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return policy_number(field, written);
}

// The valid values, to be put behind "give": as users write them, or as the numbers of the C
// interface. `world_size` is that of the job, or 0 if it is not known.
inline std::string policy_range(const PolicyField& field, std::uint32_t world_size,
                                bool as_numbers) {
  std::string range;
  if (field.least <= field.most) {
    const bool share = field.thousandths && !as_numbers;
    const bool of_job = field.is_k() && world_size != 0;
    const auto border = [&](std::uint32_t value) {
      return share ? policy_text(field, value) : std::to_string(value);
    };
    range = std::string(share ? "a number" : "an integer") + " from " + border(field.least) +
            " to " + border(of_job ? world_size : field.most);
    if (of_job) range += ", the world size";
    if (share) range += " in steps of 0.001";
  }
  std::string words;
  for (const PolicyWord& word : field.words) {
    const std::string text(word.text);
    words += words.empty() ? "" : ", ";
    words += as_numbers ? std::to_string(word.value) + " (" + text + ")" : "\"" + text + "\"";
  }
  if (words.empty()) return range;
  return range.empty() ? "one of " + words : range + ", or " + words;
}

}  // namespace sluice

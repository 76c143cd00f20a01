#include "client/cube_address.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "client/address.h"

namespace sluice::client {
namespace {

struct Key {
  const char* name;
  const char* variable;
};
constexpr Key kKeys[] = {{"levels", "SLUICE_BCUBE_LEVELS"},
                         {"file", "SLUICE_BCUBE_FILE"},
                         {"mode", "SLUICE_BCUBE_MODE"},
                         {"digits", "SLUICE_BCUBE_DIGITS"}};

Status bad(std::string_view text, const std::string& why) {
  return {StatusCode::kInvalidArgument,
          "address \"" + std::string(text) + "\": " + why +
              "; expected bcube://n,k?levels=ADDRESS,... with an address a level, or "
              "bcube://n,k?file=/path/of/cube.toml"};
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
  return parts;
}

bool number(std::string_view text, std::uint32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// A key's text. `variable`: the environment's variable that it comes from, null if it is written in
// the address.
struct Value {
  std::string text;
  const char* variable = nullptr;
};
using Keys = std::map<std::string, Value>;

// The beginning of an error that this key has caused.
std::string source_of(const Value& value) {
  return value.variable == nullptr ? "" : value.variable + std::string(": ");
}

// The other key of the two that give the appliances' places.
const char* other_of(const std::string& name) {
  return name == "file" ? "levels" : name == "levels" ? "file" : "";
}

// Reads the keys behind the question mark, and the missing ones from the environment.
Result<Keys> read_keys(std::string_view text, std::string_view query,
                       const std::function<const char*(const char*)>& environment) {
  Keys keys;
  for (const std::string& part : split(query, '&')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (equals == std::string::npos ||
        std::ranges::none_of(kKeys, [&](const Key& key) { return key.name == name; }))
      return bad(text, "there is no key \"" + name + "\": levels, file, mode and digits are");
    keys[name] = {.text = part.substr(equals + 1)};
  }
  const Keys written = keys;
  for (const Key& key : kKeys) {
    if (written.contains(key.name) || written.contains(other_of(key.name))) continue;
    if (const char* const value = environment(key.variable); value != nullptr && *value != 0)
      keys[key.name] = {.text = value, .variable = key.variable};
  }
  return keys;
}

std::string digits_of(const Bcube& bcube, std::uint32_t rank) {
  std::string digits;
  for (std::uint32_t level = 0; level < bcube.levels(); ++level)
    digits += (level == 0 ? "" : ",") + std::to_string(bcube.digit(rank, level));
  return digits;
}

// The digits give the rank if `rank` is kRankByDigits; otherwise they must agree with it.
Status check_digits(const Bcube& bcube, const std::string& digits, std::uint32_t& rank) {
  const std::vector<std::string> parts = split(digits, ',');
  if (parts.size() != bcube.levels())
    return {StatusCode::kInvalidArgument, "digits " + digits + ": " + bcube.name() + " has " +
                                              std::to_string(bcube.levels()) + " levels"};
  std::uint32_t named = 0;
  for (std::uint32_t level = bcube.levels(); level-- != 0;) {
    std::uint32_t digit = 0;
    if (!number(parts[level], digit) || digit >= bcube.switch_ports())
      return {StatusCode::kInvalidArgument, "digits " + digits + ": digit " + parts[level] +
                                                " of level " + std::to_string(level) +
                                                " must be 0 to " +
                                                std::to_string(bcube.switch_ports() - 1)};
    named = named * bcube.switch_ports() + digit;
  }
  if (rank == kRankByDigits) rank = named;
  if (named == rank) return {};
  return {StatusCode::kInvalidArgument, "digits " + digits + " are those of rank " +
                                            std::to_string(named) + ", but this is rank " +
                                            std::to_string(rank) + ", whose digits are " +
                                            digits_of(bcube, rank)};
}

// Each place has its own address, of a kind that lanes can go to. `what`: the name of the places at
// a level; null: one place at each level.
Status check_addresses(const std::vector<std::vector<std::string>>& appliances, const char* what) {
  std::map<std::string, std::string> seen;
  for (std::size_t level = 0; level < appliances.size(); ++level)
    for (std::size_t index = 0; index < appliances[level].size(); ++index) {
      std::string place = "level " + std::to_string(level);
      if (what != nullptr) place += std::string(", ") + what + " " + std::to_string(index);
      const std::string& text = appliances[level][index];
      const Result<Address> address = parse_address(text);
      if (!address.ok())
        return {StatusCode::kInvalidArgument, place + ": " + address.status().message()};
      if (address.value().scheme == Address::Scheme::kVhost)
        return {StatusCode::kInvalidArgument,
                place + ": " + text + ": over a BCube addresses are udp:// or inproc://"};
      const auto [found, fresh] = seen.try_emplace(text, place);
      if (!fresh)
        return {StatusCode::kInvalidArgument,
                found->second + " and " + place + " have the same address, " + text};
    }
  return {};
}

// Picks this worker's appliances from all in the file.
Status take_from_file(const CubeFile& file, CubePlaces& places) {
  const Bcube& bcube = places.bcube;
  const bool plain = places.mode == BcubeMode::kPlain;
  const std::uint32_t expected = plain ? bcube.servers() : bcube.switches_per_level();
  if (file.switch_ports != bcube.switch_ports() || file.levels != bcube.levels())
    return {StatusCode::kInvalidArgument, "it is of bcube(" + std::to_string(file.switch_ports) +
                                              "," + std::to_string(file.levels) +
                                              "), but the address says " + bcube.name()};
  if (file.appliances.size() != bcube.levels())
    return {StatusCode::kInvalidArgument, "appliances: " + std::to_string(file.appliances.size()) +
                                              " levels, but " + bcube.name() + " has " +
                                              std::to_string(bcube.levels())};
  for (std::uint32_t level = 0; level < bcube.levels(); ++level) {
    const std::vector<std::string>& row = file.appliances[level];
    if (row.size() != expected)
      return {StatusCode::kInvalidArgument,
              "appliances of level " + std::to_string(level) + ": " + std::to_string(row.size()) +
                  " addresses, but it has " + std::to_string(expected) +
                  (plain ? " servers" : " switches")};
    const auto of_switch = [&](std::uint32_t index) {
      if (!plain) return std::vector{row[index]};
      std::vector<std::string> hosts;
      for (std::uint32_t digit = 0; digit < bcube.switch_ports(); ++digit)
        hosts.push_back(row[bcube.server_at(level, index, digit)]);
      return hosts;
    };
    places.appliances.push_back(of_switch(bcube.switch_of(places.rank, level)));
    if (bcube.levels() > 1)
      places.stand_ins.push_back(
          of_switch(bcube.switch_of(bcube.detour_neighbour(places.rank, level), level)));
  }
  return check_addresses(file.appliances, plain ? "server" : "switch");
}

Status set_mode(const std::string& mode, CubePlaces& places) {
  if (mode != "aggregated" && mode != "plain")
    return {StatusCode::kInvalidArgument,
            "mode \"" + mode + "\" does not exist: aggregated and plain do"};
  places.mode = mode == "plain" ? BcubeMode::kPlain : BcubeMode::kAggregated;
  return {};
}

}  // namespace

Result<Bcube> parse_cube_shape(std::string_view text) {
  std::string_view rest = text.substr(kCubeScheme.size());
  const std::vector<std::string> shape = split(rest.substr(0, rest.find('?')), ',');
  std::uint32_t switch_ports = 0, levels = 0;
  if (shape.size() != 2 || !number(shape[0], switch_ports) || !number(shape[1], levels))
    return bad(text, "n, the ports of a switch, and k, the levels, are two numbers");
  Result<Bcube> bcube = Bcube::create(switch_ports, levels);
  if (!bcube.ok()) return bad(text, bcube.status().message());
  return bcube;
}

Result<CubePlaces> parse_cube_address(std::string_view text, std::uint32_t rank,
                                      const std::function<const char*(const char*)>& environment) {
  const Result<Bcube> bcube = parse_cube_shape(text);
  if (!bcube.ok()) return bcube.status();
  if (rank >= bcube.value().servers() && rank != kRankByDigits)
    return bad(text, "rank " + std::to_string(rank) + ", but there are " +
                         std::to_string(bcube.value().servers()) + " servers");
  const std::size_t question = text.find('?');
  auto read = read_keys(text, question == std::string_view::npos ? "" : text.substr(question + 1),
                        environment);
  if (!read.ok()) return read.status();
  Keys keys = std::move(read).value();
  if (keys.contains("file") == keys.contains("levels"))
    return bad(text, keys.contains("file") ? source_of(keys["file"]) + "file " + keys["file"].text +
                                                 " and " + source_of(keys["levels"]) + "levels " +
                                                 keys["levels"].text + " are both given"
                                           : "where the appliances are is not said");
  CubePlaces places{.bcube = bcube.value(), .rank = rank};
  const auto blame = [&](const char* key, const std::string& why) {
    return bad(text, source_of(keys[key]) + why);
  };
  if (keys.contains("digits"))
    if (Status status = check_digits(places.bcube, keys["digits"].text, places.rank); !status.ok())
      return blame("digits", status.message());
  if (places.rank == kRankByDigits)
    return bad(text, "neither a rank nor digits=... say which of its " +
                         std::to_string(places.bcube.servers()) + " workers this is");
  if (keys.contains("mode"))
    if (Status status = set_mode(keys["mode"].text, places); !status.ok())
      return blame("mode", status.message());
  if (keys.contains("file")) {
    const std::string& path = keys["file"].text;
    const auto blame_file = [&](const Status& status) {
      return Status(status.code(), source_of(keys["file"]) + status.message());
    };
    const Result<CubeFile> file = read_cube_file(path);
    if (!file.ok()) return blame_file(file.status());
    if (keys.contains("mode") && keys["mode"].text != file.value().mode)
      return blame("mode",
                   "mode " + keys["mode"].text + ", but " + path + " says " + file.value().mode);
    Status status = set_mode(file.value().mode, places);
    if (status.ok()) status = take_from_file(file.value(), places);
    if (!status.ok()) return blame_file({status.code(), path + ": " + status.message()});
    return places;
  }
  if (places.mode == BcubeMode::kPlain)
    return blame("mode", "mode plain needs a file, since each server has appliances");
  const std::string& list = keys["levels"].text;
  for (std::string& address : split(list, ',')) places.appliances.push_back({std::move(address)});
  if (places.appliances.size() != bcube.value().levels())
    return blame("levels", "levels " + list + ": " + std::to_string(places.appliances.size()) +
                               " addresses, but " + bcube.value().name() + " has " +
                               std::to_string(bcube.value().levels()) + " levels");
  if (Status status = check_addresses(places.appliances, nullptr); !status.ok())
    return blame("levels", status.message());
  return places;
}

}  // namespace sluice::client

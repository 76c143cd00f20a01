#include "config/loader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "config/checks.h"
#include "config/machine.h"
#include "config/reader.h"
#include "config/text.h"

namespace sluice::config {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxSecretBytes = 256;
constexpr std::size_t kMaxSecrets = 4;  // the one in use, and older ones

// The file's bytes, at most one more than `max_bytes`; nothing when it can't be read (see errno).
std::optional<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  if (S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return std::nullopt;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(max_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// A process that can read the secret can join as a worker.
void check_secret_place(const Config& config, const std::string& path, Report& report) {
  struct stat info;
  if (config.appliance.secret.empty() || !report.has("appliance.secret") ||
      stat(path.c_str(), &info) != 0 || !(info.st_mode & S_IROTH))
    return;
  report.conflict({"appliance.secret"},
                  "the secret stands in a file that everyone on this host can read: " +
                      in_quotes(path) + "; chmod o-r it, or give a secret_file");
}

// The lines that are not empty.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

// A file of secrets, which a setting names.
struct SecretFile {
  std::string section, key, path;
  std::string content;  // what to write into it

  void fail(const std::string& what, const std::string& remedy, Report& report) const {
    report.conflict({section + "." + key}, key + what + ": " + in_quotes(path) + "; " + remedy);
  }
  // Its lines, or nothing and an error.
  std::optional<std::vector<std::string>> read(Report& report) const {
    struct stat info;
    const auto text = read_file(path, kMaxSecrets * (kMaxSecretBytes + 2));
    if (!text || stat(path.c_str(), &info) != 0)
      fail(std::string(" can't be read (") + std::strerror(errno) + ")",
           "create it with " + content, report);
    else if (info.st_mode & S_IROTH)
      fail(" can be read by everyone on this host", "chmod o-r it", report);
    else
      return lines_of(*text);
    return std::nullopt;
  }
};

void read_password(Config& config, Report& report) {
  const SecretFile file{"metrics", "password_file", config.metrics.password_file,
                        "one line, USER:PASSWORD"};
  if (file.path.empty()) return;
  const auto lines = file.read(report);
  if (!lines) return;
  if (lines->size() != 1 || lines->front().size() > kMaxSecretBytes ||
      lines->front().find(':') == std::string::npos)
    return file.fail(" holds something else than a user and a password", "write " + file.content,
                     report);
  config.metrics.password = lines->front();
}

// Replaces the empty secrets by the lines of secret_file.
void read_secret(Config& config, Report& report) {
  const SecretFile file{"appliance", "secret_file", config.appliance.secret_file,
                        "the secret on one line"};
  if (file.path.empty()) return;
  auto lines = file.read(report);
  if (!lines) return;
  std::vector<std::string>& secrets = *lines;
  const bool too_long = std::ranges::any_of(
      secrets, [](const std::string& secret) { return secret.size() > kMaxSecretBytes; });
  if (secrets.empty() || secrets.size() > kMaxSecrets || too_long)
    return file.fail(" holds " + std::string(secrets.empty() ? "nothing" : "too much"),
                     "write 1 to " + std::to_string(kMaxSecretBytes) +
                         " bytes into it, and at most " + std::to_string(kMaxSecrets - 1) +
                         " older secrets on lines of their own",
                     report);
  config.appliance.secret = std::move(secrets.front());
  secrets.erase(secrets.begin());
  config.appliance.older_secrets = std::move(secrets);
}

// A vhost-user port is as safe as the socket's folder; a network is not.
void check_open_door(const Config& config, Report& report) {
  if (!config.appliance.secret.empty() || !config.appliance.secret_file.empty()) return;
  const auto open = std::ranges::find_if(
      config.ports, [](const PortConfig& port) { return port.type != PortType::kVhostUser; });
  if (open == config.ports.end()) return;
  report.warn({"port[" + std::to_string(open - config.ports.begin()) + "].type"},
              "no secret, and workers come from a network: " + in_quotes(open->name) +
                  "; whoever reaches the port may join and spoil a job: set secret_file in "
                  "[appliance]");
}

Config load(const std::string& path, const HostFacts& host, Findings& findings) {
  Report report(path);
  Config config;
  if (const auto text = read_file(path, kMaxFileBytes); !text) {
    report.broken("", 1,
                  std::string("the config file can't be read (") + std::strerror(errno) +
                      "): " + in_quotes(path) + "; give an existing TOML file");
  } else if (text->size() > kMaxFileBytes) {
    report.broken("", 1,
                  "the config file is too long: more than " + std::to_string(kMaxFileBytes) +
                      " bytes; give a file of settings");
  } else {
    config = read_toml(*text, report);
    check_combinations(config, host, report);
    check_memory(config, host, report);
    config.limits = resolved_limits(config, host);
    check_secret_place(config, path, report);
    check_open_door(config, report);
    read_secret(config, report);
    read_password(config, report);
  }
  findings = {.errors = report.take_errors(), .warnings = report.take_warnings()};
  return config;
}

}  // namespace

Result<Config> load_config(const std::string& path, const HostFacts& host,
                           std::vector<std::string>* warnings) {
  Findings findings;
  Config config = load(path, host, findings);
  if (warnings != nullptr) *warnings = std::move(findings.warnings);
  if (findings.errors.empty()) return config;
  std::string message;
  for (const std::string& error : findings.errors) message += (message.empty() ? "" : "\n") + error;
  return Status(StatusCode::kInvalidArgument, message);
}

Result<Config> load_config(const std::string& path, std::vector<std::string>* warnings) {
  return load_config(path, read_host_facts(), warnings);
}

Findings check_config(const std::string& path, const HostFacts& host) {
  Findings findings;
  load(path, host, findings);
  return findings;
}

Findings check_config(const std::string& path) { return check_config(path, read_host_facts()); }

}  // namespace sluice::config

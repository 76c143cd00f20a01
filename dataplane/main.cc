// sluiced: configuration, appliance, metrics, signals.

#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "config/loader.h"
#include "config/render.h"
#include "dataplane/dpdk/appliance.h"
#include "dataplane/ops/endpoint.h"

namespace {

using sluice::config::LogLevel;

constexpr int kFailed = 1;

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return spdlog::level::trace;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

void start_log(LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>("sluiced",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l: %v");
  logger->set_level(spdlog_level(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

// Blocked before any thread exists, so that every thread inherits it and only this one sees
// signals.
int open_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

// Returns when the process shall end.
void serve_signals(int signals) {
  for (;;) {
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGHUP) {
      spdlog::warn(
          "SIGHUP refused: the configuration is read once, at start; restart sluiced to apply a "
          "new one");
      continue;
    }
    spdlog::info("{} received: telling the workers and ending",
                 info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    return;
  }
}

int check_config(const std::string& path) {
  sluice::config::HostFacts host = sluice::config::read_host_facts();
  host.why_not_listening = sluice::dataplane::why_not_listening;
  const sluice::config::Findings findings = sluice::config::check_config(path, host);
  for (const std::string& error : findings.errors) std::fprintf(stderr, "%s\n", error.c_str());
  for (const std::string& warning : findings.warnings)
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  if (!findings.errors.empty()) return kFailed;
  std::printf("%s: no errors\n", path.c_str());
  return 0;
}

int print_ports(const std::string& path) {
  const auto config = sluice::config::load_config(path);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().message().c_str());
    return kFailed;
  }
  start_log(LogLevel::kWarning);
  const auto table = sluice::dataplane::Appliance::describe_ports(config.value());
  if (!table.ok()) {
    std::fprintf(stderr, "%s\n", table.status().message().c_str());
    return kFailed;
  }
  std::printf("%s", table.value().c_str());
  return 0;
}

sluice::dataplane::MetricsSource metrics_source(const sluice::dataplane::Appliance& appliance) {
  return {.blocks = appliance.counters(),
          .buffers = [&appliance] { return appliance.buffers(); },
          .inspect = [&appliance](const auto& look) { return appliance.inspect(look); }};
}

int run(const std::string& path) {
  std::vector<std::string> warnings;
  const auto config = sluice::config::load_config(path, &warnings);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().message().c_str());
    return kFailed;
  }
  start_log(config.value().appliance.log_level);
  std::printf("# the configuration in effect, from %s\n%s\n", path.c_str(),
              sluice::config::render_effective(config.value()).c_str());
  std::fflush(stdout);
  for (const std::string& warning : warnings) spdlog::warn("{}", warning);

  const int signals = open_signals();
  auto appliance = sluice::dataplane::Appliance::start(config.value());
  if (!appliance.ok()) {
    spdlog::error("{}", appliance.status().message());
    return kFailed;
  }
  std::unique_ptr<sluice::dataplane::MetricsEndpoint> metrics;
  if (const std::string& address = config.value().metrics.address; !address.empty()) {
    auto started =
        sluice::dataplane::MetricsEndpoint::start(address, metrics_source(*appliance.value()));
    if (!started.ok()) {
      spdlog::error("{}", started.status().message());
      return kFailed;
    }
    metrics = std::move(started).value();
  }
  std::printf("ready: %s\n", appliance.value()->summary().c_str());
  std::fflush(stdout);
  serve_signals(signals);
  if (metrics != nullptr) metrics->forget_source();
  appliance.value().reset();  // before the metrics' server, which takes its time to end
  metrics.reset();
  spdlog::info("ended");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("sluiced: a software switch that sums gradients");
  std::string path;
  bool check_only = false;
  bool ports_only = false;
  app.add_option("--config", path, "TOML file with ports, address and limits")->required();
  app.add_flag("--check-config", check_only, "check the file, print every error, and end");
  app.add_flag("--ports", ports_only,
               "open the ports, print what their devices offer and what of it is used, and end");
  app.set_version_flag("--version", "sluiced " SLUICE_VERSION);
  CLI11_PARSE(app, argc, argv);
  if (check_only) return check_config(path);
  return ports_only ? print_ports(path) : run(path);
}

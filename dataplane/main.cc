// sluiced: configuration, appliance, metrics, signals.

#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "config/loader.h"
#include "config/render.h"
#include "config/text.h"
#include "dataplane/capabilities.h"
#include "dataplane/dpdk/appliance.h"
#include "dataplane/ops/commands.h"
#include "dataplane/ops/control_socket.h"
#include "dataplane/ops/endpoint.h"
#include "dataplane/ops/health.h"
#include "dataplane/ops/log.h"
#include "dataplane/ops/pulse.h"
#include "dataplane/ops/service_manager.h"
#include "dataplane/ops/tls.h"
#include "dataplane/reload.h"

namespace {

using sluice::dataplane::Appliance;
using sluice::dataplane::ControlSocket;
using sluice::dataplane::Reloader;
using sluice::dataplane::ServiceManager;

constexpr int kFailed = 1;

// Blocked before any thread exists, so that every thread inherits it and only this one sees
// signals.
int open_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

constexpr auto kLookEvery = std::chrono::milliseconds(100);

// Waits for the next signal, but no longer than `timeout`. 0: none came.
int next_signal(int signals, std::chrono::milliseconds timeout) {
  pollfd descriptor{.fd = signals, .events = POLLIN, .revents = 0};
  signalfd_siginfo info{};
  if (poll(&descriptor, 1, static_cast<int>(timeout.count())) != 1 ||
      read(signals, &info, sizeof info) != sizeof info)
    return 0;
  return static_cast<int>(info.ssi_signo);
}

// What `systemctl status` shows.
std::string status_of(const Appliance& appliance) {
  const std::string why =
      sluice::dataplane::join_reasons(why_not_ready(appliance.counters(), appliance.is_draining()));
  return why.empty() ? "ready: " + appliance.summary() : "not ready: " + why;
}

// Returns when the process shall end: by a signal, or drained, which sluicectl may ask for too.
void serve(int signals, Appliance& appliance, Reloader& reloader, const ServiceManager& manager) {
  sluice::dataplane::Pulse pulse(appliance.counters(), [&appliance] {
    return appliance.inspect([](const sluice::agg::Jobs&, sluice::TimeNs) {});
  });
  std::string status = status_of(appliance);
  manager.ready(status);
  auto alive_at = std::chrono::steady_clock::now();
  while (!appliance.is_drained()) {
    const int number = next_signal(signals, kLookEvery);
    if (number == SIGUSR1) {
      spdlog::info("SIGUSR1 received: asking the workers to move, and ending when they have");
      appliance.drain();
    }
    if (number == SIGHUP) {
      manager.reloading();
      const auto changes = reloader.reload();
      if (!changes.ok())
        spdlog::error("SIGHUP: {}", changes.status().message());
      else
        spdlog::info("SIGHUP: settings that have changed: {}", changes.value().size());
      manager.ready(status = status_of(appliance));
    }
    if (number == SIGTERM || number == SIGINT) {
      spdlog::info("{} received: telling the workers and ending",
                   number == SIGTERM ? "SIGTERM" : "SIGINT");
      manager.stopping();
      return;
    }
    if (!manager.listens()) continue;
    if (std::string now = status_of(appliance); now != status)
      manager.status(status = std::move(now));
    const auto now = std::chrono::steady_clock::now();
    if (manager.alive_every() == std::chrono::microseconds(0) || now < alive_at) continue;
    if (pulse.beats()) manager.alive();
    alive_at = now + manager.alive_every();
  }
}

int check_config(const std::string& path) {
  sluice::config::HostFacts host = sluice::config::read_host_facts();
  host.why_not_listening = sluice::dataplane::why_not_listening;
  host.why_no_tls = sluice::dataplane::why_no_tls;
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
  sluice::dataplane::start_log("warning");
  const auto table = Appliance::describe_ports(config.value());
  if (!table.ok()) {
    std::fprintf(stderr, "%s\n", table.status().message().c_str());
    return kFailed;
  }
  std::printf("%s", table.value().c_str());
  return 0;
}

sluice::dataplane::MetricsSource metrics_source(const Appliance& appliance) {
  return {.blocks = appliance.counters(),
          .buffers = [&appliance] { return appliance.buffers(); },
          .inspect = [&appliance](const auto& look) { return appliance.inspect(look); },
          .draining = [&appliance] { return appliance.is_draining(); }};
}

// control.sock in the folder that the service manager has made, where the file names no socket.
sluice::dataplane::ControlSocketOptions control_options(
    const sluice::config::ControlConfig& control) {
  std::string path = control.socket;
  if (const char* folder = std::getenv("RUNTIME_DIRECTORY"); path.empty() && folder != nullptr)
    path = std::string(folder) + "/control.sock";
  return {.path = std::move(path),
          .owner = control.owner,
          .group = control.group,
          .mode = static_cast<unsigned>(std::stoul(control.mode, nullptr, 8))};
}

// Null: nobody wants a socket.
sluice::Result<std::unique_ptr<ControlSocket>> open_control(
    const sluice::config::ControlConfig& control, Appliance& appliance, Reloader& reloader) {
  const sluice::dataplane::ControlSocketOptions options = control_options(control);
  if (options.path.empty()) return std::unique_ptr<ControlSocket>();
  sluice::dataplane::Box box{
      .blocks = appliance.counters(),
      .summary = appliance.summary(),
      .buffers = [&appliance] { return appliance.buffers(); },
      .visit = [&appliance](const auto& visit) { return appliance.operate(visit); },
      .draining = [&appliance] { return appliance.is_draining(); },
      .drain =
          [&appliance] {
            spdlog::info("asked to drain: asking the workers to move, and ending when they have");
            appliance.drain();
            return sluice::Status();
          },
      .reload = [&reloader] { return reloader.reload(); },
      .set_log_level = [&reloader](const auto& level) { return reloader.set_log_level(level); }};
  return ControlSocket::start(options, [box = std::move(box)](const auto& words) {
    return sluice::dataplane::answer_command(box, words);
  });
}

// What the open devices still need: at the end libxdp takes its program off an af_xdp port's
// interface, and DPDK the promiscuous mode. No port is opened a second time.
sluice::dataplane::CapabilitySet needed_by(const std::vector<sluice::config::PortConfig>& ports) {
  const bool af_xdp = std::ranges::any_of(
      ports, [](const auto& port) { return port.type == sluice::config::PortType::kAfXdp; });
  return af_xdp ? std::uint64_t{1} << CAP_NET_ADMIN : 0;
}

int run(const std::string& path) {
  std::vector<std::string> warnings;
  const sluice::config::HostFacts host = sluice::config::read_host_facts();
  const auto config = sluice::config::load_config(path, host, &warnings);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().message().c_str());
    return kFailed;
  }
  sluice::dataplane::start_log(sluice::config::label_of(config.value().appliance.log_level));
  spdlog::info("sluiced {} starts with {}", sluice::dataplane::version(), path);
  std::istringstream lines(sluice::config::render_effective(config.value()));
  for (std::string line; std::getline(lines, line);) spdlog::debug("{}", line);
  for (const std::string& warning : warnings) spdlog::warn("{}", warning);

  const int signals = open_signals();
  const auto manager = ServiceManager::from_environment();
  auto appliance = Appliance::start(config.value());
  if (!appliance.ok()) {
    spdlog::error("{}", appliance.status().message());
    return kFailed;
  }
  std::unique_ptr<sluice::dataplane::MetricsEndpoint> metrics;
  if (const auto& settings = config.value().metrics; !settings.address.empty()) {
    auto started = sluice::dataplane::MetricsEndpoint::start(
        {settings.address, settings.certificate, settings.password},
        metrics_source(*appliance.value()));
    if (!started.ok()) {
      spdlog::error("{}", started.status().message());
      return kFailed;
    }
    metrics = std::move(started).value();
  }
  Reloader reloader(path, host.memory, config.value(), *appliance.value());
  auto control = open_control(config.value().control, *appliance.value(), reloader);
  if (!control.ok()) {
    spdlog::error("{}", control.status().message());
    return kFailed;
  }
  if (const auto status = sluice::dataplane::keep_capabilities(needed_by(config.value().ports));
      !status.ok()) {
    spdlog::error("{}", status.message());
    return kFailed;
  }
  std::printf("ready: %s\n", appliance.value()->summary().c_str());
  std::fflush(stdout);
  serve(signals, *appliance.value(), reloader, manager);
  control.value().reset();  // its commands need the appliance
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
  app.footer("signals: SIGTERM ends it, SIGUSR1 drains it: it ends once all workers have moved");
  app.set_version_flag("--version", "sluiced " SLUICE_VERSION);
  CLI11_PARSE(app, argc, argv);
  if (check_only) return check_config(path);
  return ports_only ? print_ports(path) : run(path);
}

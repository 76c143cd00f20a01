#include "bench/generator.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "bench/cutoff_workers.h"

namespace sluice::bench {
namespace {

constexpr DurationNs kQuietNs = 3 * kMillisecond;  // in which a process stops or goes on

}  // namespace

void give_up(const std::string& why) {
  std::fprintf(stderr, "generator: %s\n", why.c_str());
  std::exit(1);
}

GeneratorOptions::GeneratorOptions(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::size_t equals = argument.find('=');
    if (!argument.starts_with("--") || equals == std::string_view::npos)
      give_up(std::string(argument) + ": give --NAME=VALUE");
    texts_.emplace(argument.substr(2, equals - 2), argument.substr(equals + 1));
  }
}

long GeneratorOptions::number(std::string_view name, long fallback) const {
  const auto found = texts_.find(name);
  return found == texts_.end() ? fallback : std::atol(found->second.c_str());
}

const char* GeneratorOptions::text(std::string_view name) const {
  const auto found = texts_.find(name);
  return found == texts_.end() ? "" : found->second.c_str();
}

void spin_for(DurationNs duration_ns, const std::function<void()>& poll) {
  const TimeNs end = clock_ns() + duration_ns;
  while (clock_ns() < end) poll();
}

Sides::Sides(const GeneratorOptions& options)
    : appliance_(static_cast<pid_t>(options.number("appliance_pid", 0))),
      echo_(static_cast<pid_t>(options.number("echo_pid", 0))) {
  if (appliance_ <= 0 || echo_ <= 0) give_up("--appliance_pid and --echo_pid are needed");
}

void Sides::run(pid_t side) const {
  kill(side == appliance_ ? echo_ : appliance_, SIGSTOP);
  kill(side, SIGCONT);
  spin_for(kQuietNs, [] {});
}

void Sides::run_all() const {
  kill(appliance_, SIGCONT);
  kill(echo_, SIGCONT);
}

sluice_dpdk_port* open_port(const sluice_dpdk_plugin& plugin, const char* socket,
                            std::uint8_t last_of_mac) {
  const sluice_dpdk_options options{.socket_path = socket,
                                    .mac = {0x02, 0, 0, 0, 1, last_of_mac},
                                    .mtu_bytes = 1500,
                                    .log = nullptr};
  sluice_dpdk_port* port = plugin.open(&options);
  if (port == nullptr) give_up(std::string(socket) + ": " + plugin.error());
  return port;
}

void pin(long cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  if (pthread_setaffinity_np(pthread_self(), sizeof(one), &one) != 0)
    give_up("cpu " + std::to_string(cpu) + " is not for this process");
}

}  // namespace sluice::bench

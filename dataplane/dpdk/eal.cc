#include "dataplane/dpdk/eal.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <stdio.h>

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "dataplane/core/log_rate.h"
#include "dataplane/dpdk/worker.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint32_t kMostLines = 20;  // more than any failing start writes

// A stdio stream whose lines become log messages: DPDK can only write to a FILE. A vhost-user peer
// can cause some lines as fast as it connects. The stream's lock is held.
ssize_t write_log(void* rate, const char* text, std::size_t bytes) {
  std::string_view line(text, bytes);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.empty()) return static_cast<ssize_t>(bytes);
  if (rte_log_cur_msg_loglevel() > static_cast<int>(RTE_LOG_ERR)) {
    spdlog::debug("dpdk: {}", line);
  } else if (const auto untold = static_cast<LogRate*>(rate)->line(true, now_ns())) {
    spdlog::warn("dpdk: {}{}", line,
                 *untold == 0 ? "" : "; and " + std::to_string(*untold) + " lines before it");
  }
  return static_cast<ssize_t>(bytes);
}

void redirect_log() {
  cookie_io_functions_t functions{};
  functions.write = write_log;
  functions.close = [](void* rate) {
    delete static_cast<LogRate*>(rate);
    return 0;
  };
  auto rate = std::make_unique<LogRate>(kMostLines);
  FILE* stream = fopencookie(rate.get(), "w", functions);
  if (stream == nullptr) return;  // then DPDK goes on writing to stderr
  rate.release();
  setvbuf(stream, nullptr, _IOLBF, 0);
  rte_openlog_stream(stream);
}

// "0@(0,1,5)": one EAL lcore that may run on every CPU of this process. The workers are other
// threads, which register themselves.
std::string lcore_map() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::string cpus;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) cpus += (cpus.empty() ? "" : ",") + std::to_string(cpu);
  return "--lcores=0@(" + (cpus.empty() ? "0" : cpus) + ")";
}

std::vector<std::string> eal_arguments(const config::Config& config) {
  const std::string memory = std::to_string(config.appliance.memory_mib);
  std::vector<std::string> arguments{"sluiced", lcore_map(), "--no-telemetry", "--no-shconf",
                                     "--log-level=*:warning"};
  if (config.appliance.hugepages) {
    arguments.push_back("--socket-mem=" + memory);
    arguments.push_back("--huge-unlink");
  } else {
    arguments.insert(arguments.end(), {"--no-huge", "-m", memory});
  }
  bool any_pci = false;
  for (const config::PortConfig& port : config.ports) {
    if (port.type != config::PortType::kPci) continue;
    any_pci = true;
    arguments.insert(arguments.end(), {"-a", port.pci});
  }
  if (!any_pci) arguments.push_back("--no-pci");
  return arguments;
}

}  // namespace

Status start_eal(const config::Config& config) {
  std::vector<std::string> arguments = eal_arguments(config);
  std::string shown;
  for (const std::string& argument : arguments) shown += (shown.empty() ? "" : " ") + argument;
  spdlog::debug("starting DPDK: {}", shown);

  int result = 0;
  int error = 0;
  std::thread([&] {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    redirect_log();
    result = rte_eal_init(static_cast<int>(arguments.size()), argv.data());
    error = rte_errno;
  }).join();
  if (result >= 0) return Status();
  return Status(StatusCode::kIoError,
                "DPDK did not start: " + std::string(rte_strerror(error)) +
                    " (arguments: " + shown +
                    "); is appliance.memory_mib = " + std::to_string(config.appliance.memory_mib) +
                    " available" + (config.appliance.hugepages ? " in hugepages?" : "?") +
                    " log_level = \"debug\" shows DPDK's own messages");
}

void stop_eal() { rte_eal_cleanup(); }

}  // namespace sluice::dataplane

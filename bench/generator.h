// The common part of the generators behind a vhost-user port (bench_cutoff, bench_local): options,
// the port, the core, and the two processes that they measure in turns.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "aggregator/base/time.h"
#include "client/transport/dpdk/plugin.h"

namespace sluice::bench {

// Ends the process with a message.
[[noreturn]] void give_up(const std::string& why);

// --NAME=VALUE.
class GeneratorOptions {
 public:
  GeneratorOptions(int argc, char** argv);
  long number(std::string_view name, long fallback) const;
  const char* text(std::string_view name) const;

 private:
  std::map<std::string, std::string, std::less<>> texts_;
};

// Polls for `duration_ns`.
void spin_for(DurationNs duration_ns, const std::function<void()>& poll);

// Lets one of the two processes run and stops the other, so that each has the shared core alone in
// its turn. Their ids come with --appliance_pid and --echo_pid.
class Sides {
 public:
  explicit Sides(const GeneratorOptions& options);
  pid_t appliance() const noexcept { return appliance_; }
  pid_t echo() const noexcept { return echo_; }
  void run(pid_t side) const;
  void run_all() const;

 private:
  pid_t appliance_;
  pid_t echo_;
};

sluice_dpdk_port* open_port(const sluice_dpdk_plugin& plugin, const char* socket,
                            std::uint8_t last_of_mac);

// Binds the calling thread to one processor. Called after DPDK has made its own threads.
void pin(long cpu);

}  // namespace sluice::bench

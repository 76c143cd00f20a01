// The running appliance: DPDK, ports, workers and the control thread, from one Config.
//
// start() and stop() on the main thread. This header includes no DPDK, so that main.cc, the metrics
// endpoint and tests can use it. One appliance a process, since DPDK's environment is one a
// process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "aggregator/core/shard.h"
#include "aggregator/jobs/jobs.h"
#include "config/config.h"
#include "dataplane/core/counters.h"

namespace sluice::dataplane {

class Appliance {
 public:
  static Result<std::unique_ptr<Appliance>> start(const config::Config& config);
  // Sends notices to all members, then ends every thread and closes every port.
  ~Appliance();
  Appliance(const Appliance&) = delete;
  Appliance& operator=(const Appliance&) = delete;

  // What each port's device does and what is left to us; the ports are opened for it and closed.
  static Result<std::string> describe_ports(const config::Config& config);

  // "2 ports, 1 shard, 10.77.0.1:7700, MAC ...": for the ready line.
  std::string summary() const;

  // Readable from any thread while the appliance lives.
  CounterBlocks counters() const;
  BufferUse buffers() const;

  // Runs `inspection` on the control thread, which owns the jobs, and returns when it is done;
  // false when the appliance is ending. Take copies: nothing may be kept but values.
  bool inspect(const std::function<void(const agg::Jobs&, TimeNs)>& inspection) const;

 private:
  struct State;
  explicit Appliance(std::unique_ptr<State> state);
  static Status begin(const config::Config& config, State& state);  // DPDK's environment
  std::unique_ptr<State> state_;
};

}  // namespace sluice::dataplane

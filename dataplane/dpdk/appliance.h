// The running appliance: DPDK, ports, workers and the control thread, from one Config.
//
// Started and destroyed on the main thread. This header includes no DPDK, so that main.cc, the
// metrics endpoint and tests can use it. A process has one appliance, since it has one environment
// of DPDK.
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

  // The table of the ports' plans (core/port_plan.h). Opens the ports for it and closes them.
  static Result<std::string> describe_ports(const config::Config& config);

  // "2 ports, 1 shard, 10.77.0.1:7700, MAC ...": for the ready line.
  std::string summary() const;

  // Readable from any thread while the appliance lives.
  CounterBlocks counters() const;
  BufferUse buffers() const;

  // The appliance is to end once nobody needs it. New jobs are refused from now on. Members of
  // synchronous jobs are asked to move to the next of their addresses at the end of their step;
  // jobs with k < n, and stores, are waited for. Any thread; does not block; again has no effect.
  void drain();
  // Since drain() no worker is a member of any job, or five seconds have passed and only
  // synchronous jobs are left, which have no other address and wait for the next process: this one
  // may end.
  bool is_drained() const;
  // drain() was called: no new job is taken.
  bool is_draining() const;

  // Runs `inspection` on the control thread, which owns the jobs, and returns when it is done.
  // False: the appliance is ending. The inspection may keep copies of values only.
  bool inspect(const std::function<void(const agg::Jobs&, TimeNs)>& inspection) const;
  // The same for what an operator changes about jobs.
  bool operate(const std::function<void(agg::Jobs&, TimeNs)>& operation);

  // Takes over the settings of `config` that can change while frames pass: rules, classes, rates
  // and queues of ports, secrets, limits, policies of jobs to come. The caller has seen to it that
  // no other setting differs. All or nothing: a failure names what needs a restart. Returns when
  // every worker goes by the new settings, one round later; no frame is lost. One thread at a time,
  // while the appliance lives.
  Status change(const config::Config& config);

 private:
  struct State;
  explicit Appliance(std::unique_ptr<State> state);
  static Status begin(const config::Config& config, State& state);  // DPDK's environment
  std::unique_ptr<State> state_;
};

}  // namespace sluice::dataplane

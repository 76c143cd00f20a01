// Starts DPDK's environment, once in a process, without root or hugepages if no NIC needs them.
//
// rte_eal_init() pins its caller to a CPU, so it runs on a thread of its own that ends afterwards.
// DPDK's log lines are written to the appliance's log. Called by Appliance::start() on the main
// thread.
#pragma once

#include "aggregator/base/status.h"
#include "config/config.h"

namespace sluice::dataplane {

// Starting a second time in one process is an error.
Status start_eal(const config::Config& config);
void stop_eal();

}  // namespace sluice::dataplane

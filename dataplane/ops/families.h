// Turns counter blocks and samples into Prometheus families. Names are
// `sluice_<area>_<what>_<unit>`, with `_total` on counters. Labels are port, class, reason, use,
// lcore, job, rank and layer; an info metric also has policy and late.
//
// Pure: reads what it is given. Called by the metrics thread.
#pragma once

#include <vector>

#include "dataplane/core/counters.h"
#include "dataplane/ops/family_builder.h"
#include "dataplane/ops/sample.h"

namespace sluice::dataplane {

void add_port_families(const CounterBlocks& blocks, Families& families);
// `busy_shares`: the busy share of each lcore's time since the previous scrape.
void add_lcore_families(const CounterBlocks& blocks, const std::vector<double>& busy_shares,
                        Families& families);
// The verdicts of all packets for the appliance, of lcores, shards and the control thread together.
void add_packet_families(const CounterBlocks& blocks, const ControlSample& control,
                         Families& families);
// Datagrams of the appliance itself that never reached a port, of lcores and the control thread.
void add_own_drop_family(const CounterBlocks& blocks, Families& families);
void add_job_families(const ControlSample& control, Families& families);
void add_buffer_families(const BufferUse& use, Families& families);

}  // namespace sluice::dataplane

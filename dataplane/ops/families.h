// Counter blocks and samples turned into Prometheus families. Names are
// `sluice_<area>_<what>_<unit>` with `_total` on counters; labels are port, class, reason, lcore,
// job, rank, and of an info metric policy and late.
//
// Pure: reads what it is given. Called by the metrics thread.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <string_view>
#include <vector>

#include "aggregator/core/shard.h"
#include "dataplane/core/counters.h"
#include "dataplane/ops/sample.h"

namespace sluice::dataplane {

using Families = std::vector<prometheus::MetricFamily>;

// Blocks that live as long as the appliance.
struct PortRow {
  std::string name;
  const PortCounters* counters = nullptr;
};
struct LcoreRow {
  const LcoreCounters* counters = nullptr;
  const agg::Shard* shard = nullptr;  // only its counters are read
};
struct BufferUse {
  std::uint64_t in_use = 0;
  std::uint64_t capacity = 0;
};

void add_port_families(const std::vector<PortRow>& ports, Families& families);
// `busy_shares`: of each lcore's time since the previous scrape.
void add_lcore_families(const std::vector<LcoreRow>& lcores, const std::vector<double>& busy_shares,
                        Families& families);
// What became of every packet for the appliance, by lcores, shards and the control thread together.
// `control_junk`: control packets that did not parse.
void add_packet_families(const std::vector<LcoreRow>& lcores, const VerdictCounters* control_junk,
                         const ControlSample& control, Families& families);
// Datagrams of the appliance itself that never reached a port, by lcores and the control thread.
void add_own_drop_family(const std::vector<LcoreRow>& lcores, const DropCounters* control_drops,
                         Families& families);
void add_job_families(const ControlSample& control, Families& families);
void add_buffer_families(const BufferUse& use, Families& families);

}  // namespace sluice::dataplane

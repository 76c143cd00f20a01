#include "dataplane/ops/families.h"

#include "dataplane/ops/family_builder.h"

namespace sluice::dataplane {
namespace {

struct PortMetric {
  bool is_counter;
  const char* name;
  const char* help;
  Counter PortCounters::*value;
};

constexpr PortMetric kPortMetrics[] = {
    {true, "sluice_port_rx_packets_total", "Frames received.", &PortCounters::rx_packets},
    {true, "sluice_port_rx_bytes_total", "Bytes of frames received.", &PortCounters::rx_bytes},
    {true, "sluice_port_rx_missed_packets_total",
     "Frames lost in the device because the appliance did not fetch them in time or no packet "
     "buffer was free.",
     &PortCounters::rx_missed},
    {true, "sluice_port_tx_packets_total", "Frames sent.", &PortCounters::tx_packets},
    {true, "sluice_port_tx_bytes_total", "Bytes of frames sent.", &PortCounters::tx_bytes},
    {true, "sluice_port_forwarded_packets_total",
     "Frames that came in here and left by another port.", &PortCounters::forwarded},
    {true, "sluice_port_flooded_packets_total",
     "Forwarded frames that went to all ports: broadcast, or an address not seen yet.",
     &PortCounters::flooded},
    {true, "sluice_port_fault_duplicated_packets_total",
     "Frames doubled on purpose: the port's fault injection is on.",
     &PortCounters::fault_duplicated},
    {true, "sluice_port_fault_reordered_packets_total",
     "Frames held back on purpose: the port's fault injection is on.",
     &PortCounters::fault_reordered},
    {true, "sluice_port_link_changes_total", "Times the link or the peer came or went.",
     &PortCounters::link_changes},
    {false, "sluice_port_link_up", "1 while the link or the peer is up.", &PortCounters::link_up},
    {false, "sluice_port_queue_packets",
     "Frames in the egress queue now: the port is offered more than it can send.",
     &PortCounters::queue_packets},
    {false, "sluice_port_queue_bytes", "Bytes in the egress queue now.",
     &PortCounters::queue_bytes},
};

struct LcoreMetric {
  bool is_counter;
  const char* name;
  const char* help;
  Counter LcoreCounters::*value;
};

constexpr LcoreMetric kLcoreMetrics[] = {
    {true, "sluice_lcore_loops_total", "Rounds of the polling loop.", &LcoreCounters::loops},
    {true, "sluice_lcore_naps_total", "Times that adaptive polling slept for want of work.",
     &LcoreCounters::naps},
    {true, "sluice_lcore_handed_over_packets_total",
     "Frames passed to another lcore: their port steers worse than their shard wants.",
     &LcoreCounters::handed_over},
    {false, "sluice_lcore_mac_entries", "Learnt addresses in the lcore's table.",
     &LcoreCounters::mac_entries},
};

struct ClassMetric {
  bool is_counter;
  const char* name;
  const char* help;
  Counter ClassCounters::*value;
};

constexpr ClassMetric kClassMetrics[] = {
    {true, "sluice_port_tx_class_packets_total",
     "Frames sent, by egress class; 0 is the most urgent.", &ClassCounters::tx_packets},
    {true, "sluice_port_tx_class_bytes_total", "Bytes of frames sent, by egress class.",
     &ClassCounters::tx_bytes},
    {true, "sluice_port_dropped_class_packets_total",
     "Frames dropped at egress because the queue was full, by class: the port is offered more of "
     "classes as urgent or more urgent than it sends.",
     &ClassCounters::drops},
    {true, "sluice_port_marked_class_packets_total",
     "Frames given the congestion mark, by egress class: their senders should slow down.",
     &ClassCounters::marked},
    {false, "sluice_port_queue_class_packets", "Frames in the egress queue now, by class.",
     &ClassCounters::queue_packets},
    {false, "sluice_port_queue_class_bytes", "Bytes in the egress queue now, by class.",
     &ClassCounters::queue_bytes},
};

bool was_used(const ClassCounters& counters) noexcept {
  return (counters.tx_packets.read() | counters.drops.read() | counters.queue_packets.read()) != 0;
}

// Classes that were never used would be 64 rows a port of zeros.
template <class ValueOf>
void add_class_family(const std::vector<PortRow>& ports, FamilyBuilder family, ValueOf&& value_of,
                      Families& families) {
  for (const PortRow& port : ports) {
    for (std::size_t index = 0; index < kClassCount; ++index) {
      const ClassCounters& counters = port.counters->classes[index];
      if (was_used(counters))
        family.row({{"port", port.name}, {"class", std::to_string(index)}}, value_of(counters));
    }
  }
  families.push_back(family.take());
}

}  // namespace

void add_port_families(const std::vector<PortRow>& ports, Families& families) {
  for (const PortMetric& metric : kPortMetrics) {
    FamilyBuilder family =
        metric.is_counter ? counter(metric.name, metric.help) : gauge(metric.name, metric.help);
    for (const PortRow& port : ports)
      family.row({{"port", port.name}}, (port.counters->*metric.value).read());
    families.push_back(family.take());
  }
  FamilyBuilder drops = counter("sluice_port_dropped_packets_total",
                                help_of("Frames dropped, by reason.", kDropReasonInfo));
  for (const PortRow& port : ports)
    for (std::size_t reason = 0; reason < kDropReasonCount; ++reason)
      drops.row({{"port", port.name}, {"reason", std::string(kDropReasonInfo[reason].label)}},
                port.counters->drops.by_reason[reason].read());
  families.push_back(drops.take());
  for (const ClassMetric& metric : kClassMetrics) {
    FamilyBuilder family =
        metric.is_counter ? counter(metric.name, metric.help) : gauge(metric.name, metric.help);
    add_class_family(
        ports, std::move(family),
        [&](const ClassCounters& counters) { return (counters.*metric.value).read(); }, families);
  }
  add_class_family(
      ports,
      histogram("sluice_port_wait_seconds",
                "How long frames that were sent had waited in the egress queue, by class: long "
                "waits of the least urgent mean a full port, of the most urgent a fault."),
      [](const ClassCounters& counters) -> const WaitHistogram& { return counters.waits; },
      families);
}

void add_lcore_families(const std::vector<LcoreRow>& lcores, const std::vector<double>& busy_shares,
                        Families& families) {
  const auto each = [&](FamilyBuilder family, auto&& value_of) {
    for (std::size_t index = 0; index < lcores.size(); ++index)
      family.row({{"lcore", std::to_string(index)}}, value_of(index));
    families.push_back(family.take());
  };
  for (const LcoreMetric& metric : kLcoreMetrics)
    each(metric.is_counter ? counter(metric.name, metric.help) : gauge(metric.name, metric.help),
         [&](std::size_t index) { return (lcores[index].counters->*metric.value).read(); });
  each(counter("sluice_lcore_busy_seconds_total", "Time in polling rounds that found work."),
       [&](std::size_t i) {
         return static_cast<double>(lcores[i].counters->busy_ns.read()) * 1e-9;
       });
  each(counter("sluice_lcore_idle_seconds_total", "Time in polling rounds that found none."),
       [&](std::size_t i) {
         return static_cast<double>(lcores[i].counters->idle_ns.read()) * 1e-9;
       });
  each(gauge("sluice_lcore_busy_ratio",
             "Share of the time since the previous scrape that found work: near 1 the lcore is the "
             "bottleneck."),
       [&](std::size_t index) { return busy_shares[index]; });
  each(counter(
           "sluice_shard_replies_dropped_total",
           "Probes dropped because their member had asked about 32 other blocks; it asks again."),
       [&](std::size_t index) { return lcores[index].shard->replies_dropped(); });
  each(counter("sluice_shard_results_overwritten_total",
               "Queued result copies dropped because their step left the window; workers pull them "
               "while it is retained."),
       [&](std::size_t index) { return lcores[index].shard->results_overwritten(); });
}

void add_packet_families(const std::vector<LcoreRow>& lcores, const VerdictCounters* control_junk,
                         const ControlSample& control, Families& families) {
  FamilyBuilder family =
      counter("sluice_packets_total",
              help_of("Packets for the appliance, by what became of them.", kVerdictInfo));
  for (std::size_t index = 0; index < kVerdictCount; ++index) {
    std::uint64_t total = control.verdicts[index];
    if (control_junk != nullptr) total += control_junk->by_verdict[index].read();
    for (const LcoreRow& lcore : lcores)
      total += lcore.counters->verdicts.by_verdict[index].read() +
               lcore.shard->verdicts().by_verdict[index].read();
    const VerdictInfo& info = kVerdictInfo[index];
    family.row({{"reason", std::string(info.label)}, {"use", std::string(label(info.use))}}, total);
  }
  families.push_back(family.take());
}

void add_own_drop_family(const std::vector<LcoreRow>& lcores, const DropCounters* control_drops,
                         Families& families) {
  FamilyBuilder family =
      counter("sluice_own_dropped_packets_total",
              help_of("The appliance's own datagrams lost before they reached a port, by reason; "
                      "their receivers ask again.",
                      kDropReasonInfo));
  for (std::size_t reason = 0; reason < kDropReasonCount; ++reason) {
    std::uint64_t total = control_drops == nullptr ? 0 : control_drops->by_reason[reason].read();
    for (const LcoreRow& lcore : lcores) total += lcore.counters->drops.by_reason[reason].read();
    family.row({{"reason", std::string(kDropReasonInfo[reason].label)}}, total);
  }
  families.push_back(family.take());
}

void add_buffer_families(const BufferUse& use, Families& families) {
  families.push_back(gauge("sluice_buffers_in_use_packets", "Packet buffers in use now.")
                         .row({}, use.in_use)
                         .take());
  families.push_back(gauge("sluice_buffers_capacity_packets",
                           "Packet buffers in all; when all are in use, frames are lost.")
                         .row({}, use.capacity)
                         .take());
}

}  // namespace sluice::dataplane

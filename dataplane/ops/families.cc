#include "dataplane/ops/families.h"

#include "aggregator/core/shard.h"

namespace sluice::dataplane {
namespace {

// Of all lanes together.
template <auto kCounter>
constexpr auto port_sum_of = [](const PortView& port) -> double {
  return static_cast<double>(
      port.sum([](const PortCounters& lane) { return (lane.*kCounter).read(); }));
};

// An egress class of a port. Also the histogram of its waits.
struct PortClass {
  static constexpr std::size_t kBuckets = WaitHistogram::kBuckets;
  static constexpr auto bound_ns(std::size_t bucket) { return WaitHistogram::bound_ns(bucket); }
  const PortView& port;
  std::size_t index;

  template <class Read>
  std::uint64_t sum(Read&& read) const {
    return port.sum([&](const PortCounters& lane) { return read(lane.classes[index]); });
  }
  std::uint64_t bucket(std::size_t at) const {
    return sum([&](const ClassCounters& lane) { return lane.waits.bucket(at); });
  }
  std::uint64_t sum_ns() const {
    return sum([](const ClassCounters& lane) { return lane.waits.sum_ns(); });
  }
  bool was_used() const {
    return sum([](const ClassCounters& lane) {
             return lane.tx_packets.read() | lane.drops.read() | lane.queue_packets.read();
           }) != 0;
  }
};
template <auto kCounter>
constexpr auto class_sum_of = [](const PortClass& of) -> double {
  return static_cast<double>(
      of.sum([](const ClassCounters& lane) { return (lane.*kCounter).read(); }));
};

constexpr Metric<PortView> kPortMetrics[] = {
    {"sluice_port_rx_packets_total", "Frames received.", port_sum_of<&PortCounters::rx_packets>},
    {"sluice_port_rx_bytes_total", "Bytes of frames received.",
     port_sum_of<&PortCounters::rx_bytes>},
    {"sluice_port_rx_missed_packets_total",
     "Frames lost in the device because the appliance did not fetch them in time or no packet "
     "buffer was free.",
     port_sum_of<&PortCounters::rx_missed>},
    {"sluice_port_tx_packets_total", "Frames sent.", port_sum_of<&PortCounters::tx_packets>},
    {"sluice_port_tx_bytes_total", "Bytes of frames sent.", port_sum_of<&PortCounters::tx_bytes>},
    {"sluice_port_forwarded_packets_total", "Frames that came in here and left by another port.",
     port_sum_of<&PortCounters::forwarded>},
    {"sluice_port_flooded_packets_total",
     "Forwarded frames that went to all ports: broadcast, or an address not seen yet.",
     port_sum_of<&PortCounters::flooded>},
    {"sluice_port_fault_duplicated_packets_total",
     "Frames doubled on purpose: the port's fault injection is on.",
     port_sum_of<&PortCounters::fault_duplicated>},
    {"sluice_port_fault_reordered_packets_total",
     "Frames held back on purpose: the port's fault injection is on.",
     port_sum_of<&PortCounters::fault_reordered>},
    {"sluice_port_link_changes_total", "Times the link or the peer came or went.",
     port_sum_of<&PortCounters::link_changes>},
    {"sluice_port_link_up", "1 while the link or the peer is up.",
     port_sum_of<&PortCounters::link_up>},
    {"sluice_port_queue_packets",
     "Frames in the egress queue now: the port is offered more than it can send.",
     port_sum_of<&PortCounters::queue_packets>},
    {"sluice_port_queue_bytes", "Bytes in the egress queue now.",
     port_sum_of<&PortCounters::queue_bytes>},
};

constexpr Metric<PortClass> kClassMetrics[] = {
    {"sluice_port_tx_class_packets_total", "Frames sent, by egress class; 0 is the most urgent.",
     class_sum_of<&ClassCounters::tx_packets>},
    {"sluice_port_tx_class_bytes_total", "Bytes of frames sent, by egress class.",
     class_sum_of<&ClassCounters::tx_bytes>},
    {"sluice_port_dropped_class_packets_total",
     "Frames dropped at egress because the queue was full, by class: the port is offered more of "
     "classes as urgent or more urgent than it sends.",
     class_sum_of<&ClassCounters::drops>},
    {"sluice_port_marked_class_packets_total",
     "Frames given the congestion mark, by egress class: their senders should slow down.",
     class_sum_of<&ClassCounters::marked>},
    {"sluice_port_queue_class_packets", "Frames in the egress queue now, by class.",
     class_sum_of<&ClassCounters::queue_packets>},
    {"sluice_port_queue_class_bytes", "Bytes in the egress queue now, by class.",
     class_sum_of<&ClassCounters::queue_bytes>},
};

struct LcoreRow {
  const LcoreCounters& counters;
  const agg::Shard& shard;
  double busy_share;
};

template <auto kCounter>
constexpr auto lcore_count_of = [](const LcoreRow& row) -> double {
  return static_cast<double>((row.counters.*kCounter).read());
};
template <auto kCounter>
constexpr auto lcore_seconds_of = [](const LcoreRow& row) -> double {
  return static_cast<double>((row.counters.*kCounter).read()) * 1e-9;
};

constexpr Metric<LcoreRow> kLcoreMetrics[] = {
    {"sluice_lcore_loops_total", "Rounds of the polling loop.",
     lcore_count_of<&LcoreCounters::loops>},
    {"sluice_lcore_naps_total", "Times that adaptive polling slept for want of work.",
     lcore_count_of<&LcoreCounters::naps>},
    {"sluice_lcore_wakes_total", "Naps of adaptive polling that a packet at a port ended.",
     lcore_count_of<&LcoreCounters::wakes>},
    {"sluice_lcore_handed_over_packets_total",
     "Frames passed to another lcore: their port steers worse than their shard wants.",
     lcore_count_of<&LcoreCounters::handed_over>},
    {"sluice_lcore_mac_entries", "Learnt addresses in the lcore's table.",
     lcore_count_of<&LcoreCounters::mac_entries>},
    {"sluice_lcore_busy_seconds_total", "Time in polling rounds that found work.",
     lcore_seconds_of<&LcoreCounters::busy_ns>},
    {"sluice_lcore_idle_seconds_total", "Time in polling rounds that found none.",
     lcore_seconds_of<&LcoreCounters::idle_ns>},
    {"sluice_lcore_busy_ratio",
     "Share of the time since the previous scrape that found work: near 1 the lcore is the "
     "bottleneck.",
     [](const LcoreRow& row) { return row.busy_share; }},
    {"sluice_shard_replies_dropped_total",
     "Probes dropped because their member had asked about 32 other blocks; it asks again.",
     [](const LcoreRow& row) { return static_cast<double>(row.shard.replies_dropped()); }},
    {"sluice_shard_results_overwritten_total",
     "Queued result copies dropped because their step left the window; workers pull them while it "
     "is retained.",
     [](const LcoreRow& row) { return static_cast<double>(row.shard.results_overwritten()); }},
};

constexpr Metric<BufferUse> kBufferMetrics[] = {
    {"sluice_buffers_in_use_packets", "Packet buffers in use now.",
     [](const BufferUse& use) { return static_cast<double>(use.in_use); }},
    {"sluice_buffers_capacity_packets",
     "Packet buffers in all; when all are in use, frames are lost.",
     [](const BufferUse& use) { return static_cast<double>(use.capacity); }},
};

}  // namespace

void add_port_families(const CounterBlocks& blocks, Families& families) {
  const auto each_port = [&](auto&& add) {
    for (const PortView& port : blocks.ports) add(Labels{{"port", port.name}}, port);
  };
  // Classes that were never used would be 64 rows a port of zeros.
  const auto each_class = [&](auto&& add) {
    for (const PortView& port : blocks.ports)
      for (std::size_t index = 0; index < kClassCount; ++index)
        if (const PortClass used{port, index}; used.was_used())
          add(Labels{{"port", port.name}, {"class", std::to_string(index)}}, used);
  };
  add_families<PortView>(kPortMetrics, each_port, families);
  FamilyBuilder drops("sluice_port_dropped_packets_total",
                      help_of("Frames dropped, by reason.", kDropReasonInfo));
  for (const PortView& port : blocks.ports)
    for (std::size_t reason = 0; reason < kDropReasonCount; ++reason)
      drops.row({{"port", port.name}, {"reason", std::string(kDropReasonInfo[reason].label)}},
                static_cast<double>(port.sum([&](const PortCounters& lane) {
                  return lane.drops.by_reason[reason].read();
                })));
  families.push_back(drops.take());
  add_families<PortClass>(kClassMetrics, each_class, families);
  add_histogram(
      "sluice_port_wait_seconds",
      "How long frames that were sent had waited in the egress queue, by class: long waits of the "
      "least urgent mean a full port, of the most urgent a fault.",
      each_class, [](const PortClass& of) -> auto& { return of; }, families);
}

void add_lcore_families(const CounterBlocks& blocks, const std::vector<double>& busy_shares,
                        Families& families) {
  const auto each_lcore = [&](auto&& add) {
    for (std::size_t index = 0; index < blocks.lcores.size(); ++index)
      add(Labels{{"lcore", std::to_string(index)}},
          LcoreRow{*blocks.lcores[index].counters, *blocks.lcores[index].shard,
                   busy_shares[index]});
  };
  add_families<LcoreRow>(kLcoreMetrics, each_lcore, families);
}

void add_packet_families(const CounterBlocks& blocks, const ControlSample& control,
                         Families& families) {
  FamilyBuilder family("sluice_packets_total",
                       help_of("Packets for the appliance, by what became of them.", kVerdictInfo));
  for (std::size_t index = 0; index < kVerdictCount; ++index) {
    std::uint64_t total = control.verdicts[index];
    if (blocks.control_junk != nullptr) total += blocks.control_junk->by_reason[index].read();
    for (const LcoreView& lcore : blocks.lcores)
      total += lcore.counters->verdicts.by_reason[index].read() +
               lcore.shard->verdicts().by_reason[index].read();
    const VerdictInfo& info = kVerdictInfo[index];
    family.row({{"reason", std::string(info.label)}, {"use", std::string(label(info.use))}},
               static_cast<double>(total));
  }
  families.push_back(family.take());
}

void add_own_drop_family(const CounterBlocks& blocks, Families& families) {
  FamilyBuilder family(
      "sluice_own_dropped_packets_total",
      help_of("The appliance's own datagrams lost before they reached a port, by reason; "
              "their receivers ask again.",
              kDropReasonInfo));
  for (std::size_t reason = 0; reason < kDropReasonCount; ++reason) {
    std::uint64_t total =
        blocks.control_drops == nullptr ? 0 : blocks.control_drops->by_reason[reason].read();
    for (const LcoreView& lcore : blocks.lcores)
      total += lcore.counters->drops.by_reason[reason].read();
    family.row({{"reason", std::string(kDropReasonInfo[reason].label)}},
               static_cast<double>(total));
  }
  families.push_back(family.take());
}

void add_buffer_families(const BufferUse& use, Families& families) {
  add_families<BufferUse>(
      kBufferMetrics, [&](auto&& add) { add(Labels{}, use); }, families);
}

}  // namespace sluice::dataplane

#include "dataplane/ops/collector.h"

#include "dataplane/ops/health.h"

namespace sluice::dataplane {

MetricsCollector::MetricsCollector(MetricsSource source)
    : start_time_s_(process_start_time_s()),
      source_(std::move(source)),
      previous_(source_.blocks.lcores.size()) {}

Families MetricsCollector::Collect() const {
  const std::lock_guard lock(mutex_);
  Families families;
  if (!source_.inspect) return families;
  ControlSample control;
  source_.inspect([&](const agg::Jobs& jobs, TimeNs now) { control = sample_jobs(jobs, now); });
  add_box_families(why_not_ready(source_.blocks, source_.draining && source_.draining()).empty(),
                   start_time_s_, families);
  add_port_families(source_.blocks, families);
  add_lcore_families(source_.blocks, busy_shares(), families);
  add_packet_families(source_.blocks, control, families);
  add_own_drop_family(source_.blocks, families);
  add_job_families(control, families);
  if (source_.buffers) add_buffer_families(source_.buffers(), families);
  return families;
}

void MetricsCollector::forget_source() {
  const std::lock_guard lock(mutex_);
  source_ = {};
}

std::vector<std::string> MetricsCollector::reasons() const {
  const std::lock_guard lock(mutex_);
  if (!source_.inspect) return {"the box is ending"};
  return why_not_ready(source_.blocks, source_.draining && source_.draining());
}

bool MetricsCollector::answers() const {
  const std::lock_guard lock(mutex_);
  return source_.inspect && source_.inspect([](const agg::Jobs&, TimeNs) {});
}

// Two scrapes in a row may see no time pass.
std::vector<double> MetricsCollector::busy_shares() const {
  std::vector<double> shares;
  for (std::size_t index = 0; index < source_.blocks.lcores.size(); ++index) {
    const LcoreCounters& counters = *source_.blocks.lcores[index].counters;
    Times& before = previous_[index];
    const std::uint64_t busy_ns = counters.busy_ns.read();
    const std::uint64_t idle_ns = counters.idle_ns.read();
    const std::uint64_t passed_ns = busy_ns - before.busy_ns + idle_ns - before.idle_ns;
    if (passed_ns != 0)
      before = {busy_ns, idle_ns,
                static_cast<double>(busy_ns - before.busy_ns) / static_cast<double>(passed_ns)};
    shares.push_back(before.share);
  }
  return shares;
}

}  // namespace sluice::dataplane

// Builds the page of metrics at each scrape from counter blocks, which live as long as the
// appliance, and from copies of the jobs' values, which the control thread makes for it. It writes
// nothing that the data path reads. Thread-safe: scrapes are answered one after the other.
#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "dataplane/ops/families.h"

namespace sluice::dataplane {

// The source of the values. Everything in it must live until the collector's forget_source(), and
// be callable from any thread.
struct MetricsSource {
  using Inspection = std::function<void(const agg::Jobs&, TimeNs)>;

  CounterBlocks blocks;
  std::function<BufferUse()> buffers;
  // Runs an inspection on the control thread and returns when it is done; false: it has ended.
  std::function<bool(const Inspection&)> inspect;
  std::function<bool()> draining{};  // whether the box takes no new job; not set: it takes them
};

class MetricsCollector : public prometheus::Collectable {
 public:
  explicit MetricsCollector(MetricsSource source);
  Families Collect() const override;
  // The source is not read any more, and the page is empty from now on.
  void forget_source();
  // See health.h. The reason of a box whose source is forgotten is that it ends.
  std::vector<std::string> reasons() const;
  // Whether the control thread answers; waits for it without a bound.
  bool answers() const;

 private:
  struct Times {
    std::uint64_t busy_ns = 0;
    std::uint64_t idle_ns = 0;
    double share = 0;
  };
  std::vector<double> busy_shares() const;

  const double start_time_s_;
  mutable std::mutex mutex_;             // guards the rest
  MetricsSource source_;                 // empty once it is forgotten
  mutable std::vector<Times> previous_;  // of each lcore, at the scrape before
};

}  // namespace sluice::dataplane

// The metrics endpoint: answers GET /metrics for Prometheus on its own thread.
//
// It reads counter blocks, which live as long as the appliance, and asks the control thread for
// copies of what belongs to jobs; it writes nothing that the data path reads. start() and the
// destructor on the main thread; destroy it before the appliance. Includes no DPDK.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "dataplane/ops/families.h"

namespace sluice::dataplane {

// Where the numbers come from. Everything must outlive the endpoint and be callable from its
// thread.
struct MetricsSource {
  using Inspection = std::function<void(const agg::Jobs&, TimeNs)>;

  std::vector<PortRow> ports;
  std::vector<LcoreRow> lcores;
  const VerdictCounters* control_junk = nullptr;  // control packets that did not parse; may be null
  const DropCounters* control_drops = nullptr;    // of the control thread's datagrams; may be null
  std::function<BufferUse()> buffers;
  // Runs an inspection on the control thread and returns when it is done; false: it has ended.
  std::function<bool(const Inspection&)> inspect;
};

class MetricsEndpoint {
 public:
  // `address`: "host:port" of the configuration; port 0 lets the system choose. Fails with kIoError
  // when it cannot be bound.
  static Result<std::unique_ptr<MetricsEndpoint>> start(const std::string& address,
                                                        MetricsSource source);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  std::uint16_t port() const;
  // What a scrape would show now.
  Families collect() const;

 private:
  struct State;
  explicit MetricsEndpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice::dataplane

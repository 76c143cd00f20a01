// The box's HTTP server, on threads of its own: /metrics for Prometheus, /healthz and /readyz for
// whoever watches the box, and a page with links (pages.h).
//
// All calls on the main thread; forget_source() before the appliance is destroyed. No DPDK.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "dataplane/ops/collector.h"

class CivetServer;

namespace sluice::dataplane {

class Page;
class PasswordCheck;

// Why a server can not listen at this address now; empty: it can.
std::string why_not_listening(const std::string& address);

struct EndpointOptions {
  std::string address;      // "host:port"; port 0 lets the system choose
  std::string certificate;  // a file; empty: HTTP without TLS
  std::string password;     // "USER:PASSWORD", for /metrics and /; empty: for everybody
};

class MetricsEndpoint {
 public:
  // Fails with kIoError when the address cannot be bound, or the certificate not be used.
  static Result<std::unique_ptr<MetricsEndpoint>> start(const EndpointOptions& options,
                                                        MetricsSource source);
  // Takes up to two seconds: the server checks its stop flag no more often.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  void forget_source() { collector_.forget_source(); }
  std::uint16_t port() const;

 private:
  explicit MetricsEndpoint(MetricsSource source);

  MetricsCollector collector_;
  std::unique_ptr<PasswordCheck> password_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::unique_ptr<CivetServer> server_;
};

}  // namespace sluice::dataplane

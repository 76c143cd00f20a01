// The pages of the box's HTTP server: what is asked, and the answer.
//
// Called by the server's threads.
#pragma once

#include <CivetServer.h>

#include <memory>
#include <string>
#include <vector>

#include "dataplane/ops/collector.h"

namespace sluice::dataplane {

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// For Prometheus, in its text format.
HttpAnswer metrics_page(const MetricsCollector& collector);
// 200 while the process and its control thread live. A caller with a time limit learns of a control
// thread that hangs.
HttpAnswer health_page(const MetricsCollector& collector);
// 200 while the box can serve, else 503 with a reason a line (health.h).
HttpAnswer ready_page(const MetricsCollector& collector);
// For people: the release, the readiness, and links to the others.
HttpAnswer landing_page(const MetricsCollector& collector);

// One page as a handler of the server. The collector outlives it.
class Page : public CivetHandler {
 public:
  using Make = HttpAnswer (*)(const MetricsCollector&);
  Page(Make make, const MetricsCollector& collector) : make_(make), collector_(collector) {}
  bool handleGet(CivetServer* server, mg_connection* connection) override;

 private:
  const Make make_;
  const MetricsCollector& collector_;
};

// Asks for a user and a password by HTTP basic authentication (RFC 7617).
class PasswordCheck : public CivetAuthHandler {
 public:
  explicit PasswordCheck(const std::string& password);  // "USER:PASSWORD"
  bool authorize(CivetServer* server, mg_connection* connection) override;

 private:
  std::string expected_;  // the header's value
};

}  // namespace sluice::dataplane

#include "dataplane/ops/endpoint.h"

#include <prometheus/exposer.h>

#include <exception>

namespace sluice::dataplane {

MetricsEndpoint::MetricsEndpoint(MetricsSource source)
    : collector_(std::make_shared<MetricsCollector>(std::move(source))) {}
MetricsEndpoint::~MetricsEndpoint() = default;

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::start(const std::string& address,
                                                                MetricsSource source) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint(std::move(source)));
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
    endpoint->exposer_->RegisterCollectable(endpoint->collector_);
  } catch (const std::exception& error) {
    return Status(StatusCode::kIoError, "the metrics endpoint cannot listen on " + address +
                                            " (metrics.address): " + error.what() +
                                            "; choose a free port, or \"\" for no endpoint");
  }
  return endpoint;
}

std::uint16_t MetricsEndpoint::port() const {
  return static_cast<std::uint16_t>(exposer_->GetListeningPorts().at(0));
}

}  // namespace sluice::dataplane

#include "dataplane/ops/endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>

#include "dataplane/ops/pages.h"
#include "dataplane/ops/tls.h"

namespace sluice::dataplane {
namespace {

// A scrape and a probe that waits for the control thread must not hold up each other.
constexpr const char* kThreads = "2";

constexpr const char* kFromTls12 = "4";

struct Route {
  const char* uri;  // "$" ends a uri that others begin with
  Page::Make make;
  bool for_all = false;  // probes have no password
};
constexpr Route kRoutes[] = {{"/metrics", metrics_page},
                             {"/healthz", health_page, true},
                             {"/readyz", ready_page, true},
                             {"/$", landing_page}};

}  // namespace

std::string why_not_listening(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (failed != 0) return gai_strerror(failed);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const int probe = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;  // as the server asks, so that connections that have ended don't count
  setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool can = bind(probe, found->ai_addr, found->ai_addrlen) == 0 && listen(probe, 1) == 0;
  const std::string why = can ? "" : std::strerror(errno);
  close(probe);
  return why;
}

MetricsEndpoint::MetricsEndpoint(MetricsSource source) : collector_(std::move(source)) {}
MetricsEndpoint::~MetricsEndpoint() = default;

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::start(const EndpointOptions& options,
                                                                MetricsSource source) {
  const std::string& address = options.address;
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint(std::move(source)));
  std::vector<std::string> settings{"num_threads", kThreads, "listening_ports", address};
  if (!options.certificate.empty()) {
    if (const std::string why = why_no_tls(options.certificate); !why.empty())
      return Status(StatusCode::kIoError, "the metrics endpoint cannot use the certificate " +
                                              options.certificate +
                                              " (metrics.certificate): " + why);
    settings.back() += 's';
    settings.insert(settings.end(), {"ssl_certificate", options.certificate, "ssl_short_trust",
                                     "yes", "ssl_protocol_version", kFromTls12});
  }
  try {
    endpoint->server_ = std::make_unique<CivetServer>(settings);
    if (!options.password.empty())
      endpoint->password_ = std::make_unique<PasswordCheck>(options.password);
    for (const Route& route : kRoutes) {
      endpoint->pages_.push_back(std::make_unique<Page>(route.make, endpoint->collector_));
      endpoint->server_->addHandler(route.uri, *endpoint->pages_.back());
      if (endpoint->password_ != nullptr && !route.for_all)
        endpoint->server_->addAuthHandler(route.uri, *endpoint->password_);
    }
  } catch (const std::exception& error) {
    const std::string why = why_not_listening(address);
    return Status(StatusCode::kIoError,
                  "the metrics endpoint cannot listen on " + address +
                      " (metrics.address): " + (why.empty() ? error.what() : why) +
                      "; choose a free port, or \"\" for no endpoint");
  }
  return endpoint;
}

std::uint16_t MetricsEndpoint::port() const {
  return static_cast<std::uint16_t>(server_->getListeningPorts().at(0));
}

}  // namespace sluice::dataplane

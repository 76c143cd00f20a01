#include "dataplane/ops/endpoint.h"

#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

namespace sluice::dataplane {
namespace {

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(MetricsSource source)
      : source_(std::move(source)), previous_(source_.lcores.size()) {}

  Families Collect() const override {
    Families families;
    ControlSample control;
    source_.inspect([&](const agg::Jobs& jobs, TimeNs now) { control = sample_jobs(jobs, now); });
    add_port_families(source_.ports, families);
    add_lcore_families(source_.lcores, busy_shares(), families);
    add_packet_families(source_.lcores, source_.control_junk, control, families);
    add_own_drop_family(source_.lcores, source_.control_drops, families);
    add_job_families(control, families);
    if (source_.buffers) add_buffer_families(source_.buffers(), families);
    return families;
  }

 private:
  struct Times {
    std::uint64_t busy_ns = 0;
    std::uint64_t idle_ns = 0;
    double share = 0;
  };

  // Scrapes may overlap, and two in a row may see no time pass.
  std::vector<double> busy_shares() const {
    const std::lock_guard lock(mutex_);
    std::vector<double> shares;
    for (std::size_t index = 0; index < source_.lcores.size(); ++index) {
      const LcoreCounters& counters = *source_.lcores[index].counters;
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

  const MetricsSource source_;
  mutable std::mutex mutex_;
  mutable std::vector<Times> previous_;  // an lcore, under mutex_
};

// One connection without a request. Failure is of no interest.
void knock(const std::string& host, std::uint16_t port) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    static_cast<void>(connect(fd, found->ai_addr, found->ai_addrlen));
    close(fd);
  }
  freeaddrinfo(found);
}

// The numeric host of "host:port" or "[host]:port"; the loopback when it means "all addresses".
std::string host_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = colon == std::string::npos ? "" : address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host.empty() || host == "0.0.0.0" || host == "::" ? "127.0.0.1" : host;
}

}  // namespace

struct MetricsEndpoint::State {
  std::string host;
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;

  // The server looks at its stop flag only every two seconds or when somebody connects: so somebody
  // connects.
  ~State() {
    if (exposer == nullptr) return;
    const auto ports = exposer->GetListeningPorts();
    std::atomic<bool> stopped{false};
    std::thread waker([&] {
      while (!stopped.load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        for (const int port : ports) knock(host, static_cast<std::uint16_t>(port));
      }
    });
    exposer.reset();
    stopped.store(true);
    waker.join();
  }
};

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
MetricsEndpoint::~MetricsEndpoint() = default;

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::start(const std::string& address,
                                                                MetricsSource source) {
  auto state = std::make_unique<State>();
  state->host = host_of(address);
  state->collector = std::make_shared<Collector>(std::move(source));
  try {
    state->exposer = std::make_unique<prometheus::Exposer>(address, 1);
    state->exposer->RegisterCollectable(state->collector);
  } catch (const std::exception& error) {
    return Status(StatusCode::kIoError, "the metrics endpoint cannot listen on " + address +
                                            " (metrics.address): " + error.what() +
                                            "; choose a free port, or \"\" for no endpoint");
  }
  return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(state)));
}

std::uint16_t MetricsEndpoint::port() const {
  return static_cast<std::uint16_t>(state_->exposer->GetListeningPorts().at(0));
}

Families MetricsEndpoint::collect() const { return state_->collector->Collect(); }

}  // namespace sluice::dataplane

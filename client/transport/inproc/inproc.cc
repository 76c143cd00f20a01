#include "client/transport/inproc/inproc.h"

#include <poll.h>

#include <array>
#include <new>
#include <utility>
#include <vector>

#include "aggregator/wire/inet.h"
#include "client/transport/inproc/hub.h"

namespace sluice::client {
namespace {

// The appliance's housekeeping runs on its workers' threads: none may sleep longer than this.
constexpr DurationNs kLongestSleep = 50 * kMillisecond;
// Received datagrams land here, not in the queue's slots: the queue belongs to the hub's mutex.
constexpr std::size_t kSlotBytes = kMaxDatagramBytes;

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(const InprocOptions& options)
      : hub_(Hub::find(options.name, options.secret)), queue_(hub_->attach(options.mtu_bytes)) {
    facts_.local_address = queue_->address;
    facts_.path_datagram_bytes = options.mtu_bytes - wire::kIpv4Bytes - wire::kUdpBytes;
    facts_.receive_credit_packets = static_cast<std::uint32_t>(queue_->slots() * 7 / 8);
  }
  ~InprocTransport() override {
    try_to([&] { hub_->detach(queue_, last_now_ns_); });
  }

  TransportFacts facts() const override { return facts_; }

  std::span<const Incoming> receive(TimeNs now) noexcept override {
    last_now_ns_ = now;
    std::size_t count = 0;
    try_to([&] { count = hub_->receive(*queue_, bytes_.data(), kSlotBytes, sizes_, now); });
    for (std::size_t i = 0; i < count; ++i) {
      incoming_[i].bytes = {bytes_.data() + i * kSlotBytes, sizes_[i]};
    }
    return {incoming_.data(), count};
  }

  std::size_t send(std::span<const Outgoing> datagrams, TimeNs now) noexcept override {
    try_to([&] { hub_->send(queue_, datagrams, now); });
    return datagrams.size();
  }

  bool poll_path_event(PathEvent& event) noexcept override {
    if (!std::exchange(broken_, false)) return false;
    event = {.kind = PathEvent::Kind::kBroken, .status = {StatusCode::kExhausted, "out of memory"}};
    return true;
  }

  void wait(int wake_fd, DurationNs timeout_ns) noexcept override {
    std::array<pollfd, 2> fds{{{queue_->ready.get(), POLLIN, 0}, {wake_fd, POLLIN, 0}}};
    const DurationNs bounded = timeout_ns < kLongestSleep ? timeout_ns : kLongestSleep;
    const timespec timeout{0, bounded};
    ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
  }

  int poll_fd() const noexcept override { return queue_->ready.get(); }

  TransportCounters counters() const noexcept override { return {}; }

 private:
  // The appliance runs on this thread too and may find no memory; this worker's transport is broken
  // then.
  template <class Body>
  void try_to(Body body) noexcept {
    try {
      body();
    } catch (const std::bad_alloc&) {
      broken_ = true;
    }
  }

  std::shared_ptr<Hub> hub_;
  std::shared_ptr<InprocQueue> queue_;
  TransportFacts facts_;
  TimeNs last_now_ns_ = 0;
  bool broken_ = false;
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(kBurst * kSlotBytes);
  std::array<std::size_t, kBurst> sizes_{};
  std::array<Incoming, kBurst> incoming_{};
};

}  // namespace

Result<std::unique_ptr<Transport>> open_inproc(const InprocOptions& options) {
  constexpr std::size_t kSmallestMtu = 256;
  if (options.mtu_bytes < kSmallestMtu) {
    return Status(StatusCode::kInvalidArgument,
                  "mtu " + std::to_string(options.mtu_bytes) + " is too small; use 256 or more");
  }
  return std::unique_ptr<Transport>(std::make_unique<InprocTransport>(options));
}

}  // namespace sluice::client

#include "client/transport/inproc/served.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/appliance/intake.h"
#include "client/clock.h"
#include "client/fork.h"
#include "client/transport/inproc/hub.h"
#include "client/transport/udp/socket.h"
#include "client/transport/udp/trains.h"

namespace sluice::client {
namespace {

constexpr DurationNs kQuiet =
    500 * kMillisecond;  // a member that lacks something asks within this time
constexpr std::size_t kTxBufferBytes = kTxHeadroomBytes + kMaxDatagramBytes;

agg::PathKey key_of(const SocketAddress& address) noexcept {
  agg::PathKey key{};
  static_assert(sizeof(sockaddr_in6) <= sizeof key);
  std::memcpy(key.data(), &address.storage, std::min<std::size_t>(address.bytes, key.size()));
  return key;
}

// The host's address alone: a flooder may use any ports.
std::uint64_t host_of(const SocketAddress& address) noexcept {
  SocketAddress host = address;
  host.set_port(0);
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&host.storage), host.bytes});
}

// The application's threads handle its signals.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

class UdpServed final : public Served {
 public:
  UdpServed(ServedOptions options, const Log& log)
      : options_(std::move(options)),
        log_(log),
        appliance_(options_inside(options_.secret)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        bytes_(kBurst * kTxBufferBytes) {
    for (std::size_t at = 0; at < kBurst; ++at)
      tx_buffers_[at].buffer = {&bytes_[at * kTxBufferBytes + kTxHeadroomBytes], kMaxDatagramBytes};
  }

  ~UdpServed() override {
    end();
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    Result<SocketAddress> address = resolve(options_.host, options_.port, AF_UNSPEC, 0);
    if (!address.ok()) return address.status();
    for (const auto& [socket, offset] : {std::pair(&control_, 0), std::pair(&data_, 1)}) {
      address.value().set_port(static_cast<std::uint16_t>(options_.port + offset));
      if (Status status = listen(*socket, address.value()); !status.ok()) return status;
    }
    TrainReceiver::switch_on(data_.get());
    if (!TrainSender::offered(control_.get())) sender_.give_up();
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    return {};
  }

  void end() noexcept override {
    ending_.store(true, std::memory_order_relaxed);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  std::uint64_t verdicts(Verdict verdict) const noexcept override {
    return unparsed_.read(verdict) + appliance_.verdicts(verdict);
  }

  std::uint64_t flooded() const noexcept override {
    return flooded_.load(std::memory_order_relaxed);
  }

  // ---- what a round of the appliance asks of its drivers (aggregator/appliance/rounds.h) ----
  std::span<std::uint8_t> tx_buffer() noexcept { return reply_; }
  void send(const agg::Transmit& transmit) noexcept {
    const auto path = paths_.find({transmit.job.value, transmit.rank.value});
    if (path != paths_.end()) reply(addresses_[path->second], transmit.bytes);
  }
  std::span<agg::Transmit> tx_buffers() noexcept {
    return std::span(tx_buffers_).subspan(tx_count_);
  }
  void send(std::span<const agg::Transmit> burst) noexcept {
    for (const agg::Transmit& transmit : burst) {
      const auto path = paths_.find({transmit.job.value, transmit.rank.value});
      if (path == paths_.end()) continue;
      const std::span<std::uint8_t> from = transmit.datagram();
      // The next datagram takes the buffer of one that has no receiver.
      agg::Transmit& to = tx_buffers_[tx_count_];
      if (to.buffer.data() != from.data()) std::memcpy(to.buffer.data(), from.data(), from.size());
      tx_[tx_count_++] = {
          .data = to.buffer.data(), .bytes = from.size(), .port_offset = path->second};
    }
  }

 private:
  Status listen(OwnedFd& socket, const SocketAddress& address) {
    socket = OwnedFd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return io_error("cannot open a UDP socket");
    mark_datagrams(socket.get(), address.family());
    grow_receive_buffer(socket.get());
    if (::bind(socket.get(), address.get(), address.bytes) == 0) return {};
    const std::string what = "cannot serve neighbours at " + address.text();
    if (errno == EADDRINUSE)
      return io_error(what +
                      ", where gradients come to the port after that of the address: end "
                      "what listens there (another worker of this rank?), or give another "
                      "port in the file");
    if (errno == EADDRNOTAVAIL)
      return io_error(what +
                      ", which must be an address of this machine: give it to the port that "
                      "leads to this switch (ip address add), or correct the file or the "
                      "rank");
    return io_error(what);
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "sluice-served");
    for (TimeNs now = monotonic_now(); is_needed(now); now = monotonic_now()) {
      bool worked = receive_control(now);
      worked |= receive_data(now);
      worked |= appliance_.serve_control(*this, now) != 0;
      // One order at a time: it may take long, and the members of other jobs wait.
      if (agg::MemoryOrder order; appliance_.jobs().poll_memory(order)) {
        agg::carry_out(order);
        now = monotonic_now();
        appliance_.jobs().handle_memory(std::move(order), now);
        worked = true;
      }
      worked |= appliance_.serve_shard(0, *this, now) != 0;
      worked |= transmit();
      if (!worked) sleep(now);
    }
    report();
  }

  // A member may need a sum once more that others have.
  bool is_needed(TimeNs now) {
    if (!ending_.load(std::memory_order_relaxed)) return true;
    if (end_ns_ == 0) end_ns_ = asked_ns_ = now;
    if (now - asked_ns_ >= kQuiet || now - end_ns_ >= options_.linger_ns) return false;
    return std::ranges::any_of(appliance_.jobs().views(), [](const agg::JobView& job) {
      return job.state != wire::JobState::kEnded && job.joined_count != 0;
    });
  }

  bool receive_control(TimeNs now) {
    std::size_t count = 0;
    for (; count < kBurst; ++count) {
      SocketAddress from;
      from.bytes = sizeof from.storage;
      const ssize_t bytes = ::recvfrom(control_.get(), request_.data(), request_.size(), MSG_TRUNC,
                                       reinterpret_cast<sockaddr*>(&from.storage), &from.bytes);
      if (bytes < 0) break;
      const auto length = static_cast<std::size_t>(bytes);
      if (length > request_.size())
        unparsed_.count(Verdict::kBadLength);
      else
        handle_control(std::span(request_).first(length), from, now);
    }
    return count != 0;
  }

  void handle_control(std::span<const std::uint8_t> bytes, const SocketAddress& from, TimeNs now) {
    wire::Packet packet;
    const Verdict why = wire::parse(bytes, packet);
    if (!may_be_heard(ok(why) ? &packet : nullptr, from, now)) {
      flooded_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (!ok(why)) {
      unparsed_.count(why);
      if (const std::size_t refusal = agg::refuse_version(bytes, reply_); refusal != 0)
        reply(from, refusal);
      return;
    }
    const std::string text = from.text();
    const agg::Origin origin{
        .path = key_of(from), .address = text, .max_datagram_bytes = kMaxDatagramBytes};
    const agg::ControlResult result = appliance_.handle_control(packet, origin, reply_, now);
    note_late(packet.common(), result.verdict);
    if (result.bind) bind(result, from);
    if (result.reply_bytes != 0) reply(from, result.reply_bytes);
  }

  // As at the ports of sluiced (dataplane/dpdk), a sender has its share of each kind of packet.
  // Null: the packet is none of this protocol's version.
  bool may_be_heard(const wire::Packet* packet, const SocketAddress& from, TimeNs now) noexcept {
    if (packet == nullptr)
      return intake_.admit(agg::PuntReason::kUnauthenticated, host_of(from), now);
    if (packet->type() == wire::PacketType::kJoin)
      return intake_.admit(agg::PuntReason::kJoin, host_of(from), now);
    if (appliance_.shards().shard(0).is_member(packet->common()))
      return intake_.admit(agg::PuntReason::kMember, packet->common().cookie, now);
    return intake_.admit(agg::PuntReason::kUnauthenticated, host_of(from), now);
  }

  void bind(const agg::ControlResult& member, const SocketAddress& from) {
    const auto [path, fresh] = paths_.try_emplace({member.job.value, member.rank.value},
                                                  static_cast<std::uint16_t>(addresses_.size()));
    if (fresh) addresses_.emplace_back();
    addresses_[path->second] = from;
  }

  // A member's last packets of data may be read after its leave, which comes to another socket.
  void note_late(const wire::CommonHeader& common, Verdict verdict) noexcept {
    if (verdict == Verdict::kUnknownJob && paths_.contains({common.job, common.rank})) ++late_;
  }

  bool receive_data(TimeNs now) noexcept {
    if (!receiver_.fetch(data_.get())) return false;
    const std::size_t count =
        receiver_.take(incoming_, [](const sockaddr_storage&) { return true; });
    unparsed_.count(Verdict::kBadLength, receiver_.take_too_long());
    for (const Incoming& datagram : std::span(incoming_).first(count)) {
      wire::Packet packet;
      Verdict verdict = wire::parse(datagram.bytes, packet);
      if (!ok(verdict)) {
        unparsed_.count(verdict);
        continue;
      }
      verdict = appliance_.handle_data(0, packet, false, now);
      note_late(packet.common(), verdict);
      const PacketUse use = use_of(verdict);
      if (use == PacketUse::kUseful || use == PacketUse::kUseless) asked_ns_ = now;
    }
    return count != 0;
  }

  // A reply is lost if the kernel does not take it; the member asks once more.
  void reply(const SocketAddress& to, std::size_t bytes) noexcept {
    (void)::sendto(control_.get(), reply_.data(), bytes, MSG_DONTWAIT, to.get(), to.bytes);
  }

  // A datagram that the kernel does not take yet waits, and so do the shard's other results.
  bool transmit() noexcept {
    if (tx_count_ == 0) return false;
    // Datagrams to one member leave in trains.
    std::ranges::stable_sort(std::span(tx_).subspan(tx_first_, tx_count_ - tx_first_), {},
                             &Outgoing::port_offset);
    while (tx_first_ < tx_count_) {
      const std::span<mmsghdr> messages = sender_.prepare(
          std::span<const Outgoing>(tx_).subspan(tx_first_, tx_count_ - tx_first_),
          [this](const Outgoing& datagram) -> auto& { return addresses_[datagram.port_offset]; });
      const int sent = ::sendmmsg(control_.get(), messages.data(),
                                  static_cast<unsigned>(messages.size()), MSG_DONTWAIT);
      for (int i = 0; i < sent; ++i) tx_first_ += sender_.train(static_cast<std::size_t>(i));
      if (sent > 0 || errno == EINTR) continue;
      if (errno == EAGAIN || errno == ENOBUFS) return false;
      if (sender_.train(0) > 1 && (errno == EINVAL || errno == EIO))
        give_up_trains(errno);
      else
        ++tx_first_;  // lost, as on any network
    }
    tx_first_ = tx_count_ = 0;
    return true;
  }

  // This device or path has no segmentation.
  void give_up_trains(int error) noexcept {
    sender_.give_up();
    log_.write(SLUICE_LOG_WARN, refused_trains("from " + options_.host, error));
  }

  void sleep(TimeNs now) noexcept {
    const DurationNs until_tick = std::max<DurationNs>(0, appliance_.next_tick_ns() - now);
    const short room = tx_count_ != 0 ? POLLOUT : 0;
    std::array<pollfd, 3> fds{
        {{control_.get(), static_cast<short>(POLLIN | room), 0},
         {data_.get(), POLLIN, 0},
         {ending_.load(std::memory_order_relaxed) ? -1 : wake_.get(), POLLIN, 0}}};
    const timespec timeout{until_tick / kSecond, until_tick % kSecond};
    ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
  }

  // There is no page of metrics here.
  void report() {
    std::string text;
    for (std::size_t index = 0; index < kVerdictCount; ++index) {
      const auto verdict = static_cast<Verdict>(index);
      const PacketUse use = use_of(verdict);
      const std::uint64_t late = verdict == Verdict::kUnknownJob ? late_ : 0;
      const std::uint64_t count = verdicts(verdict) - late;
      if (count == 0 || use == PacketUse::kUseful || use == PacketUse::kUseless) continue;
      text +=
          (text.empty() ? "" : ", ") + std::to_string(count) + " " + std::string(label(verdict));
    }
    if (const std::uint64_t count = flooded(); count != 0)
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " beyond a sender's share";
    if (!text.empty())
      log_.write(SLUICE_LOG_INFO, "packets of strangers at " + options_.host + ":" +
                                      std::to_string(options_.port) + ": " + text);
  }

  const ServedOptions options_;
  const Log log_;
  agg::Appliance appliance_;  // the thread's, but for counters
  VerdictCounters unparsed_;  // the thread's, but for counters
  OwnedFd control_;
  OwnedFd data_;
  const OwnedFd wake_;
  std::atomic<bool> ending_{false};
  std::atomic<std::uint64_t> flooded_{0};
  // ---- the thread's ----
  agg::Intake intake_{std::random_device{}()};
  TimeNs end_ns_ = 0;       // when it saw ending_
  std::uint64_t late_ = 0;  // packets of members whose job is over
  TimeNs asked_ns_ = 0;     // arrival of the last gradient or question of a member
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::uint16_t> paths_;  // in addresses_
  std::vector<SocketAddress> addresses_;                                    // of members
  std::vector<std::uint8_t> request_ = std::vector<std::uint8_t>(kMaxDatagramBytes);
  std::vector<std::uint8_t> reply_ = std::vector<std::uint8_t>(kMaxDatagramBytes);
  TrainReceiver receiver_;
  std::array<Incoming, kBurst> incoming_{};
  TrainSender sender_{true};
  std::vector<std::uint8_t> bytes_;
  std::array<agg::Transmit, kBurst> tx_buffers_{};
  std::array<Outgoing, kBurst> tx_{};
  std::size_t tx_first_ = 0;
  std::size_t tx_count_ = 0;  // tx_[tx_first_, tx_count_) waits to be sent
  std::thread thread_;        // last: uses all of the above
};

}  // namespace

Result<std::shared_ptr<Served>> Served::open(ServedOptions options, const Log& log) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::uint16_t>, std::weak_ptr<Served>> opened;
  const std::lock_guard lock(mutex);
  std::erase_if(opened, [](const auto& other) { return other.second.expired(); });
  std::weak_ptr<Served>& entry = opened[{options.host, options.port}];
  if (std::shared_ptr<Served> served = entry.lock()) return served;
  auto served = std::make_shared<UdpServed>(std::move(options), log);
  if (Status status = served->start(); !status.ok()) return status;
  entry = served;
  return std::shared_ptr<Served>(std::move(served));
}

}  // namespace sluice::client

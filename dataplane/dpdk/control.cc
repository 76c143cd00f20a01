// The control thread's loop, its packets and its datagrams. watch.cc watches and logs.

#include "dataplane/dpdk/control.h"

#include <arpa/inet.h>
#include <rte_ring_elem.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "dataplane/dpdk/send.h"
#include "dataplane/host/unreachable.h"

namespace sluice::dataplane {
namespace {

constexpr DurationNs kWatchInterval = 200 * kMillisecond;
// Limits of unauthenticated packets of all ports together: a join takes about 3 us, so they cost at
// most a fifth of a core. A burst is as many as arrive at these rates during a nap.
constexpr agg::RateLimit kJoinLimit{.interval_ns = kSecond / 60'000, .burst = 64};
constexpr agg::RateLimit kUnauthenticatedLimit{.interval_ns = kSecond / 20'000, .burst = 32};
constexpr std::size_t kBigJobBytes = std::size_t{256} << 20;  // about 0.3 s to make
constexpr auto kNap = std::chrono::microseconds(1000);
constexpr DurationNs kNoticeDrain = 100 * kMillisecond;

std::string address_text(const wire::IpAddress& address, std::uint16_t port) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool ipv4 = address.family == wire::Family::kIpv4;
  inet_ntop(ipv4 ? AF_INET : AF_INET6, address.bytes.data(), text, sizeof text);
  return (ipv4 ? std::string(text) : "[" + std::string(text) + "]") + ":" + std::to_string(port);
}

// The UDP payload that the port's MTU carries.
std::size_t datagram_limit(const Context& context, const Port& port, wire::Family family) noexcept {
  const std::size_t headers =
      wire::kUdpBytes + (family == wire::Family::kIpv4 ? wire::kIpv4Bytes : wire::kIpv6Bytes);
  return std::min<std::size_t>(port.config().mtu - headers, context.max_datagram_bytes);
}

}  // namespace

Control::Control(Context& context, agg::JobsOptions options)
    : context_(context),
      jobs_(std::move(options)),
      backlog_(context.workers.size()),
      link_changes_(context.ports.size()) {
  for (std::size_t port = 0; port < context.ports.size(); ++port)
    link_changes_[port] = context.ports[port]->link_changes();
}

Control::~Control() { stop(); }

void Control::start() {
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
  }
  small_jobs_.start();
  big_jobs_.start();
  thread_ = std::thread([this] { run(); });
}

void Control::stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
  small_jobs_.stop();
  big_jobs_.stop();
}

void Control::run() {
  while (!stop_.load(std::memory_order_relaxed))
    if (loop(now_ns()) == 0) std::this_thread::sleep_for(kNap);
  drain_notices();
  finish_inspections();
}

// The workers still run: the notices leave through their ports.
void Control::drain_notices() {
  const TimeNs begin = now_ns();
  jobs_.shutdown(begin);
  bool sent_any = false;
  for (TimeNs now = begin; now < begin + kNoticeDrain; now = now_ns()) {
    const bool sent = serve(now) != 0;
    sent_any |= sent;
    if (!sent && !sent_any) return;  // nobody to tell
    if (!sent) std::this_thread::sleep_for(kNap);
  }
}

std::size_t Control::loop(TimeNs now) {
  std::size_t work = poll_packets(now);
  watch_ports(now);
  work += serve(now);
  if (now >= next_watch_ns_) {
    for (const auto& port : context_.ports) port->refresh(now);
    watch_jobs(now);
    watch_address(now);
    next_watch_ns_ = now + kWatchInterval;
  }
  if (drain_.load(std::memory_order_relaxed)) watch_drain(now);
  run_inspections(now);
  return work;
}

// Handles all packets that were in the members' ring when the loop began: members are judged right
// after, so no packet of theirs may wait. Packets that arrive meanwhile are left for the next loop,
// so that a flood does not keep this one from ending. Unauthenticated packets do not count as work:
// the thread naps after them.
std::size_t Control::poll_packets(TimeNs now) {
  rte_ring& members = *context_.from_members;
  const std::size_t handled = take_packets(members, rte_ring_count(&members), now);
  poll_unauthenticated(*context_.joins, kJoinLimit, join_budget_, now);
  poll_unauthenticated(*context_.unauthenticated, kUnauthenticatedLimit, unauthenticated_budget_,
                       now);
  return handled;
}

void Control::poll_unauthenticated(rte_ring& ring, const agg::RateLimit& limit, agg::Budget& budget,
                                   TimeNs now) {
  const std::size_t taken = take_packets(ring, budget.available(limit, now), now);
  budget.spend(limit, static_cast<std::uint32_t>(taken), now);
}

std::size_t Control::take_packets(rte_ring& ring, std::size_t most, TimeNs now) {
  std::array<void*, kBurst> packets;
  std::size_t taken = 0;
  while (taken < most) {
    const auto wanted = static_cast<unsigned>(std::min(most - taken, packets.size()));
    const unsigned count = rte_ring_dequeue_burst(&ring, packets.data(), wanted, nullptr);
    if (count == 0) break;
    for (unsigned at = 0; at < count; ++at) handle_packet(static_cast<rte_mbuf*>(packets[at]), now);
    taken += count;
  }
  return taken;
}

void Control::handle_packet(rte_mbuf* packet, TimeNs now) {
  Port& port = *context_.ports[meta_of(packet).port];
  wire::Frame frame;
  // The worker has checked this frame already; parsing again is cheaper than carrying the views.
  if (ok(wire::parse_frame(bytes_of(packet), wire::UdpChecksums::kTrust, frame))) {
    switch (meta_of(packet).kind) {
      case PacketMeta::Kind::kControl: handle_control(frame, port, now); break;
      case PacketMeta::Kind::kUnreachable: handle_unreachable(frame, now); break;
      case PacketMeta::Kind::kConflict: handle_conflict(frame, port, now); break;
      case PacketMeta::Kind::kEgress:
      case PacketMeta::Kind::kShard: break;
    }
  }
  rte_pktmbuf_free(packet);
}

void Control::handle_control(const wire::Frame& frame, Port& port, TimeNs now) {
  wire::Packet packet;
  const MemberPath path{
      .udp = wire::reply_path(frame, context_.own.mac), .port = port.index(), .bound = true};
  if (const Verdict why = wire::parse(frame.payload, packet); !ok(why)) {
    verdicts_.count(why);
    const std::size_t refusal_bytes = agg::refuse_version(frame.payload, reply_);
    if (refusal_bytes != 0) send(path, wire::Bytes(reply_).first(refusal_bytes));
    return;
  }
  const std::string address = address_text(frame.src, frame.src_port);
  const agg::Origin origin{.path = agg::path_key(path.udp, path.port),
                           .address = address,
                           .max_datagram_bytes = datagram_limit(context_, port, frame.src.family)};
  const agg::ControlResult result = jobs_.handle(packet, origin, reply_, now);
  if (result.bind && !(context_.paths->read(result.job, result.rank) == path))
    context_.paths->bind(result.job, result.rank, path);
  if (result.reply_bytes != 0) send(path, wire::Bytes(reply_).first(result.reply_bytes));
  note_result(result, address, now);
}

void Control::send(const MemberPath& path, wire::Bytes datagram) {
  rte_mbuf* packet = rte_pktmbuf_alloc(context_.pool.get());
  const auto drop = [&](DropReason reason) {  // like any lost datagram: its receiver asks again
    drops_.count(reason);
    rte_pktmbuf_free(packet);
  };
  if (packet == nullptr) return drop(DropReason::kNoBuffer);
  const wire::MutableBytes room = datagram_room(packet);
  if (room.size() < datagram.size()) return drop(DropReason::kTooLong);
  std::copy(datagram.begin(), datagram.end(), room.begin());
  wire::UdpHeaders headers(path.udp);
  if (!path.bound || !put_headers(packet, headers, datagram.size(), wire::sum_bytes(datagram),
                                  context_.ports[path.port]->plan().tx))
    return drop(DropReason::kNoPath);
  meta_of(packet) = {.kind = PacketMeta::Kind::kEgress,
                     .port = path.port,
                     .egress_class = Classifier::of_control()};
  if (!context_.owner_of(path.port).hand_over(packet)) drop(DropReason::kHandover);
}

// Connects the control side to the workers, the members, and the threads that allocate memory.
struct Control::Driver {
  Control& control;

  bool take_event(agg::ShardEvent& event) {
    for (const auto& worker : control.context_.workers)
      if (worker->poll_event(event)) return true;
    return false;
  }
  std::size_t pass_memory(agg::Jobs& jobs, TimeNs now) {
    std::size_t work = 0;
    agg::MemoryOrder order;
    for (MemoryThread* helper : {&control.small_jobs_, &control.big_jobs_})
      for (; helper->poll(order); ++work) jobs.handle_memory(std::move(order), now);
    for (; jobs.poll_memory(order); ++work)
      (order.bytes < kBigJobBytes ? control.small_jobs_ : control.big_jobs_).post(std::move(order));
    return work;
  }
  wire::MutableBytes tx_buffer() { return control.reply_; }
  void send(const agg::Transmit& transmit) {
    control.send(control.context_.paths->read(transmit.job, transmit.rank),
                 wire::Bytes(control.reply_).first(transmit.bytes));
  }
  void give_command(const agg::ShardCommand& command) {
    for (auto& queue : control.backlog_) queue.push_back(command);
  }
};

std::size_t Control::serve(TimeNs now) {
  Driver driver{*this};
  const std::size_t work = agg::serve_control(jobs_, next_tick_ns_, driver, now);
  for (std::size_t index = 0; index < backlog_.size(); ++index) {
    auto& queue = backlog_[index];
    while (!queue.empty() && context_.workers[index]->post(queue.front())) queue.pop_front();
  }
  return work;
}

bool Control::inspect(const Inspection& inspection) {
  std::unique_lock lock(mutex_);
  if (!running_) return false;
  const std::uint64_t ticket = next_ticket_++;
  inspections_.emplace_back(ticket, inspection);
  done_.wait(lock, [&] { return done_ticket_ >= ticket; });
  return true;
}

void Control::run_inspections(TimeNs now) {
  const std::lock_guard lock(mutex_);
  answer_inspections(now);
}

void Control::answer_inspections(TimeNs now) {
  if (inspections_.empty()) return;
  for (; !inspections_.empty(); inspections_.pop_front()) {
    inspections_.front().second(jobs_, now);  // its caller waits, so nothing is gained by unlocking
    done_ticket_ = inspections_.front().first;
  }
  done_.notify_all();
}

void Control::finish_inspections() {
  const std::lock_guard lock(mutex_);  // none may be queued between the last look and the end
  answer_inspections(now_ns());
  running_ = false;
}

}  // namespace sluice::dataplane

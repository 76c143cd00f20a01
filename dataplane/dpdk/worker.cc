// The worker's thread: set-up, the loop and its polling.

#include "dataplane/dpdk/worker.h"

#include <rte_lcore.h>
#include <rte_random.h>
#include <rte_ring_elem.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include "aggregator/base/check.h"
#include "dataplane/dpdk/send.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint32_t kCommands = 1024;
constexpr std::uint32_t kEvents = 1024;
constexpr std::uint32_t kMacUpdates = 1024;
constexpr std::size_t kMacUpdatesPerLoop =
    64;  // a flood of new addresses elsewhere must not stop this lcore

// Frames whose bytes are prefetched while the frames before them are handled.
constexpr std::size_t kPrefetchFrames = 2;

// For fewer frames one more buffer costs as much as the copies.
constexpr std::uint16_t kLeastFramesThatShare = 3;

void pin_to_cpu_number(std::uint16_t index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  int wanted = count == 0 ? 0 : index % count;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || wanted-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

}  // namespace

TimeNs now_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Worker::Worker(Context& context, std::uint16_t index)
    : context_(context),
      index_(index),
      traffic_(context.traffic.load()),
      adopted_(traffic_),
      shard_(ShardId{index}),
      routes_(*context.paths, static_cast<std::uint16_t>(context.own.port + 1 + index)),
      macs_(context.mac_entries, context.mac_age_ns) {
  for (const auto& port : context.ports) {
    intakes_.emplace_back(rte_rand(), port->plan().queues);
    if (Lane* lane = port->lane_of(index); lane != nullptr) lanes_.push_back(lane);
  }
}

Result<std::unique_ptr<Worker>> Worker::create(Context& context, std::uint16_t index) {
  std::unique_ptr<Worker> worker(new Worker(context, index));
  const std::string suffix = std::to_string(index);
  auto inbox = make_ring("inbox" + suffix, kInboxPackets, sizeof(rte_mbuf*));
  if (!inbox.ok()) return inbox.status();
  auto commands = make_ring("commands" + suffix, kCommands, sizeof(agg::ShardCommand));
  if (!commands.ok()) return commands.status();
  auto events = make_ring("events" + suffix, kEvents, sizeof(agg::ShardEvent), Producers::kOne);
  if (!events.ok()) return events.status();
  auto mac_updates = make_ring("mac_updates" + suffix, kMacUpdates, sizeof(MacUpdate));
  if (!mac_updates.ok()) return mac_updates.status();
  worker->inbox_ = std::move(inbox).value();
  worker->commands_ = std::move(commands).value();
  worker->events_ = std::move(events).value();
  worker->mac_updates_ = std::move(mac_updates).value();
  return worker;
}

Worker::~Worker() {
  stop();
  void* packet;
  while (inbox_ != nullptr && rte_ring_dequeue(inbox_.get(), &packet) == 0)
    rte_pktmbuf_free(static_cast<rte_mbuf*>(packet));
  rte_pktmbuf_free_bulk(&spares_[used_], static_cast<unsigned>(spares_.size() - used_));
}

void Worker::start() {
  thread_ = std::thread([this] { run(); });
}

void Worker::stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

bool Worker::hand_over(rte_mbuf* packet) noexcept {
  if (rte_ring_enqueue(inbox_.get(), packet) != 0) return false;
  idle_wait_.call();
  return true;
}

bool Worker::post(const agg::ShardCommand& command) noexcept {
  if (rte_ring_enqueue_elem(commands_.get(), const_cast<agg::ShardCommand*>(&command),
                            sizeof command) != 0)
    return false;
  idle_wait_.call();
  return true;
}

bool Worker::poll_event(agg::ShardEvent& event) noexcept {
  return rte_ring_dequeue_elem(events_.get(), &event, sizeof event) == 0;
}

void Worker::tell(const MacTable::Key& key, PortIndex port) noexcept {
  MacUpdate update{key, port, {}};
  // A full ring only means that this worker floods until the address is told again.
  (void)rte_ring_enqueue_elem(mac_updates_.get(), &update, sizeof update);
}

void Worker::run() {
  if (rte_thread_register() != 0)
    spdlog::warn("lcore {} runs without a buffer cache: DPDK has no free lcore id", index_);
  const bool busy = context_.polling == config::Polling::kBusy;
  if (busy) pin_to_cpu_number(index_);
  for (Lane* lane : lanes_) idle_wait_.watch(*lane);
  if (!busy) ask_for_short_slices();
  IdlePolicy idle(busy);
  idle.wake_by(idle_wait_.woken(), idle_wait_.arms());
  TimeNs now = now_ns();
  TimeNs next_housekeeping = now;
  while (!stop_.load(std::memory_order_relaxed)) {
    const std::size_t work = loop(now);
    if (now >= next_housekeeping) {
      notice_links();
      macs_.sweep(now, 16);
      counters_.mac_entries.set(macs_.size());
      next_housekeeping = now + 10 * kMillisecond;
    }
    const IdlePolicy::Decision decision = idle.after_loop(work, now, due());
    TimeNs later = now_ns();
    (work != 0 ? counters_.busy_ns : counters_.idle_ns)
        .add(static_cast<std::uint64_t>(later - now));
    if (work != 0) idle_wait_.note_work();
    if (decision.action == IdlePolicy::Action::kArm) {
      idle_wait_.arm();
    } else if (decision.action != IdlePolicy::Action::kGoOn) {
      counters_.naps.add(1);
      if (idle_wait_.rest(decision, std::exchange(now, later))) counters_.wakes.add(1);
      idle.wake_by(idle_wait_.woken(), idle_wait_.arms());
      later = now_ns();
      counters_.idle_ns.add(static_cast<std::uint64_t>(later - now));
    }
    counters_.loops.add(1);
    now = later;
  }
  rte_thread_unregister();
}

std::size_t Worker::poll_lane(Lane& lane, TimeNs now) noexcept {
  const Port& port = lane.port();
  const std::size_t count = lane.receive(burst_, now);
  wire::Datagram datagram;
  ShardId shard;
  for (std::size_t at = 0; at < count; ++at) {
    if (at + kPrefetchFrames < count) wire::prefetch(bytes_of(burst_[at + kPrefetchFrames]));
    rte_mbuf* packet = burst_[at];
    if (flows_.find(bytes_of(packet), port.index(), udp_checksums_of(port.plan().rx, packet), macs_,
                    now, datagram, shard))
      to_shard(lane, datagram, shard, packet, now);
    else
      handle_frame(lane, packet, now);
  }
  finish_arrivals(now);
  return count;
}

std::size_t Worker::poll_inbox(TimeNs now) noexcept {
  std::array<void*, kBurst> packets;
  const unsigned count =
      rte_ring_dequeue_burst(inbox_.get(), packets.data(), packets.size(), nullptr);
  for (unsigned at = 0; at < count; ++at) {
    auto* packet = static_cast<rte_mbuf*>(packets[at]);
    const PacketMeta meta = meta_of(packet);
    if (meta.kind == PacketMeta::Kind::kEgress)
      context_.ports[meta.port]->lane_of(index_)->enqueue(packet, meta.egress_class);
    else
      arrive({bytes_of(packet).subspan(meta.payload_offset, meta.payload_bytes), meta.marked},
             packet, now);
  }
  finish_arrivals(now);
  return count;
}

// Takes ownership of the packet.
void Worker::arrive(const wire::Datagram& datagram, rte_mbuf* packet, TimeNs now) noexcept {
  if (arrived_count_ == arrived_.size()) finish_arrivals(now);
  arrived_[arrived_count_++] = packet;
  arrivals_.add(datagram, now);
}

void Worker::finish_arrivals(TimeNs now) noexcept {
  arrivals_.flush(now);
  rte_pktmbuf_free_bulk(arrived_.data(), static_cast<unsigned>(arrived_count_));
  arrived_count_ = 0;
}

std::size_t Worker::poll_mac_updates(TimeNs now) noexcept {
  MacUpdate update;
  std::size_t count = 0;
  for (; count < kMacUpdatesPerLoop; ++count) {
    if (rte_ring_dequeue_elem(mac_updates_.get(), &update, sizeof update) != 0) break;
    macs_.learn_from_other(update.key, update.port, now);
  }
  return count;
}

// Connects the shard to the control thread and the ports.
struct Worker::ShardDriver {
  Worker& worker;

  bool take_command(agg::ShardCommand& command) noexcept {
    return rte_ring_dequeue_elem(worker.commands_.get(), &command, sizeof command) == 0;
  }
  // When the ring is full, events wait in the shard until the control thread has drained it.
  bool has_event_room() noexcept { return !rte_ring_full(worker.events_.get()); }
  void give_event(const agg::ShardEvent& event) noexcept {
    const bool queued =
        rte_ring_enqueue_elem(worker.events_.get(), const_cast<agg::ShardEvent*>(&event),
                              sizeof event) == 0;
    CHECK(queued);  // nobody else fills it
  }
  std::span<agg::Transmit> tx_buffers() noexcept { return worker.tx_buffers(); }
  void send(std::span<const agg::Transmit> burst) noexcept {
    worker.used_ = burst.size();
    rte_mbuf* payload = nullptr;
    for (std::size_t at = 0; at < burst.size(); ++at) {
      if (at == 0 || burst[at].shared.data() != burst[at - 1].shared.data())
        payload = worker.share_payload(burst.subspan(at));
      worker.send_of_shard(worker.spares_[at], payload, burst[at]);
    }
  }
};

// Empty while the pool has too few buffers: results wait in the shard.
std::span<agg::Transmit> Worker::tx_buffers() noexcept {
  if (used_ != 0) {
    if (rte_pktmbuf_alloc_bulk(context_.pool.get(), spares_.data(), static_cast<unsigned>(used_)) !=
        0)
      return {};
    for (std::size_t at = 0; at < used_; ++at) outgoing_[at].buffer = datagram_room(spares_[at]);
    used_ = 0;
  }
  return outgoing_;
}

// A buffer with the shared end of the first of these datagrams, with a reference for each datagram
// of the run that ends in it. Null: too few datagrams share it, or the pool is empty.
rte_mbuf* Worker::share_payload(std::span<const agg::Transmit> rest) noexcept {
  const wire::Bytes bytes = rest.front().shared;
  if (bytes.empty() || !context_.shares_payloads) return nullptr;
  std::uint16_t frames = 1;
  while (frames < rest.size() && rest[frames].shared.data() == bytes.data()) ++frames;
  return frames < kLeastFramesThatShare ? nullptr : share(context_.pool.get(), bytes, frames);
}

// Sends the datagram in `packet`, which it takes. The end of the datagram is in `payload`, of which
// it takes a reference, or, if that is null, still in the shard.
void Worker::send_of_shard(rte_mbuf* packet, rte_mbuf* payload,
                           const agg::Transmit& transmit) noexcept {
  Routes::Route* route = routes_.find(transmit.job, transmit.rank);
  const PortPlan* plan = route == nullptr ? nullptr : &context_.ports[route->port]->plan();
  if (payload != nullptr && !(plan != nullptr && plan->shares_payloads)) {
    rte_pktmbuf_free(payload);
    payload = nullptr;
  }
  const std::size_t room_bytes = payload == nullptr ? transmit.datagram().size() : transmit.bytes;
  if (plan == nullptr ||
      !put_headers(packet, route->headers, room_bytes, transmit.sum, plan->tx, payload)) {
    counters_.drops.count(DropReason::kNoPath);
    rte_pktmbuf_free(packet);
    rte_pktmbuf_free(payload);
    return;
  }
  send(route->port, traffic_->classifier.of_chunk(transmit.priority), packet, counters_.drops);
}

// Between two rounds no frame is on its way through the worker, so that no frame is classed by
// settings that are freed.
void Worker::adopt(const Traffic& traffic, TimeNs now) noexcept {
  for (Lane* lane : lanes_) lane->change(traffic.egress[lane->port().index()], now);
  traffic_ = &traffic;
  adopted_.store(&traffic, std::memory_order_release);
}

std::size_t Worker::loop(TimeNs now) noexcept {
  std::size_t work = 0;
  if (const Traffic* latest = context_.traffic.load(std::memory_order_acquire); latest != traffic_)
      [[unlikely]]
    adopt(*latest, now);
  for (Lane* lane : lanes_) lane->begin_round(now);
  for (Lane* lane : lanes_) work += poll_lane(*lane, now);
  work += poll_inbox(now);
  work += poll_mac_updates(now);
  ShardDriver driver{*this};
  work += agg::serve_shard(shard_, driver, now);
  for (Lane* lane : lanes_) work += lane->flush(now);
  return work;
}

// When a port's shaper lets a waiting frame go.
TimeNs Worker::due() const noexcept {
  TimeNs due = IdlePolicy::kNever;
  for (const Lane* lane : lanes_) due = std::min(due, lane->due());
  return due;
}

// Checks the ports of all workers: forgets the addresses behind a link that went down.
void Worker::notice_links() noexcept {
  PortMask up = 0;
  for (const auto& port : context_.ports) {
    if (port->up())
      up |= port_bit(port->index());
    else if ((up_ & port_bit(port->index())) != 0)
      macs_.forget_port(port->index());
  }
  up_ = up;
}

}  // namespace sluice::dataplane

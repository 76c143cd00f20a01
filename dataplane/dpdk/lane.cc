#include "dataplane/dpdk/lane.h"

#include <rte_ethdev.h>
#include <rte_ether.h>

#include <algorithm>

#include "aggregator/wire/ecn.h"
#include "dataplane/dpdk/port.h"

namespace sluice::dataplane {
namespace {

static_assert(kBurst == Egress::kBurstPackets);

FaultRates fault_rates(const config::PortConfig& config, double drop) noexcept {
  return {.drop = drop, .duplicate = config.fault.duplicate, .reorder = config.fault.reorder};
}
std::uint64_t seed_of(const Port& port, std::uint16_t queue, int direction) noexcept {
  return port.config().fault.seed * 1'000'003 + (queue * config::kMaxPorts + port.index()) * 2u +
         static_cast<unsigned>(direction);
}

rte_mbuf* as_mbuf(void* packet) noexcept { return static_cast<rte_mbuf*>(packet); }

}  // namespace

Lane::Lane(const Port& port, std::uint16_t queue, rte_mempool* pool, TimeNs now,
           const Egress::Options& options)
    : port_(port),
      queue_(queue),
      pool_(pool),
      egress_(options, counters_, now),
      rx_fault_(fault_rates(port.config(), port.config().fault.rx_drop), seed_of(port, queue, 0)),
      tx_fault_(fault_rates(port.config(), port.config().fault.tx_drop), seed_of(port, queue, 1)) {}

Lane::~Lane() {
  drop_all();
  for (void* held; (held = rx_fault_.release_any()) != nullptr;) rte_pktmbuf_free(as_mbuf(held));
}

std::size_t Lane::receive(Burst& burst, TimeNs now) noexcept {
  // A device without a peer says so itself; the peer of one that is down may have lost its memory.
  std::size_t count =
      port_.up() ? rte_eth_rx_burst(port_.device(), queue_, burst.data(), kBurst) : 0;
  if (count == 0 && rx_fault_.held() == 0) return 0;
  std::uint64_t bytes = 0;
  std::size_t kept = 0;
  for (std::size_t at = 0; at < count; ++at) {
    rte_mbuf* packet = burst[at];
    bytes += packet->pkt_len;
    // The kernel takes VLAN tags off and hands them over beside the frame.
    if ((packet->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0 && rte_vlan_insert(&packet) != 0) {
      counters_.drop(DropReason::kMalformed);
      rte_pktmbuf_free(packet);
      continue;
    }
    clear_offloads(packet);
    if (rte_pktmbuf_linearize(packet) != 0) {  // the first buffer has no room for the rest
      counters_.drop(DropReason::kTooLong);
      rte_pktmbuf_free(packet);
      continue;
    }
    burst[kept++] = packet;
  }
  if (count != 0) {
    counters_.rx_packets.add(count);
    counters_.rx_bytes.add(bytes);
  }
  return rx_fault_.active() ? inject_rx_faults(burst, kept, now) : kept;
}

std::size_t Lane::inject_rx_faults(Burst& burst, std::size_t count, TimeNs now) noexcept {
  std::array<rte_mbuf*, kBurst> in;
  std::copy_n(burst.begin(), count, in.begin());
  std::size_t out = 0;
  for (std::size_t at = 0; at < count; ++at) {
    switch (rx_fault_.decide()) {
      case Fate::kDrop:
        counters_.drop(DropReason::kInjectedFault);
        rte_pktmbuf_free(in[at]);
        break;
      case Fate::kHold:
        counters_.fault_reordered.add(1);
        rx_fault_.hold(in[at], now);
        break;
      case Fate::kDuplicate:
        if (rte_mbuf* copy = rte_pktmbuf_copy(in[at], pool_, 0, UINT32_MAX)) {
          counters_.fault_duplicated.add(1);
          burst[out++] = copy;
        }
        [[fallthrough]];
      case Fate::kDeliver: burst[out++] = in[at]; break;
    }
  }
  while (void* held = rx_fault_.release(now)) burst[out++] = as_mbuf(held);
  return out;
}

void Lane::enqueue(rte_mbuf* packet, ClassIndex egress_class) noexcept {
  if (packet->pkt_len > port_.max_frame_bytes()) {
    counters_.drop(DropReason::kTooLong);
    rte_pktmbuf_free(packet);
    return;
  }
  if (!port_.up()) {
    counters_.drop(DropReason::kPortDown);
    rte_pktmbuf_free(packet);
    return;
  }
  if (tx_fault_.active()) [[unlikely]]
    inject_tx_faults(packet, egress_class);
  else
    queue(packet, egress_class);
}

void Lane::inject_tx_faults(rte_mbuf* packet, ClassIndex egress_class) noexcept {
  switch (tx_fault_.decide()) {
    case Fate::kDrop:
      counters_.drop(DropReason::kInjectedFault);
      rte_pktmbuf_free(packet);
      return;
    case Fate::kHold:
      counters_.fault_reordered.add(1);
      meta_of(packet) = {.egress_class = egress_class};  // for its release
      tx_fault_.hold(packet, round_began_);
      return;
    case Fate::kDuplicate:
      if (rte_mbuf* copy = rte_pktmbuf_copy(packet, pool_, 0, UINT32_MAX)) {
        counters_.fault_duplicated.add(1);
        queue(copy, egress_class);
      }
      [[fallthrough]];
    case Fate::kDeliver: queue(packet, egress_class); return;
  }
}

void Lane::queue(rte_mbuf* packet, ClassIndex egress_class) noexcept {
  const auto mark = [](void* marked) {
    rte_mbuf* frame = as_mbuf(marked);
    return wire::mark_congestion({rte_pktmbuf_mtod(frame, std::uint8_t*), frame->data_len});
  };
  egress_.enqueue(
      {packet, packet->pkt_len, egress_class, round_began_},
      [](void* dropped) { rte_pktmbuf_free(as_mbuf(dropped)); }, mark);
}

std::size_t Lane::flush(TimeNs now) noexcept {
  while (void* held = tx_fault_.release(now)) {
    rte_mbuf* packet = as_mbuf(held);
    queue(packet, meta_of(packet).egress_class);
  }
  if (egress_.empty()) return 0;
  if (!port_.up()) {
    drop_all();
    return 0;
  }
  egress_.begin_flush(now);
  std::array<rte_mbuf*, kBurst> packets;
  std::size_t total = 0;
  for (std::span burst = egress_.take(); !burst.empty(); burst = egress_.take()) {
    for (std::size_t at = 0; at < burst.size(); ++at) packets[at] = as_mbuf(burst[at].packet);
    const std::size_t sent = port_.transmit(queue_, std::span(packets).first(burst.size()));
    egress_.accept(sent, now);
    total += sent;
    if (sent < burst.size()) break;
  }
  egress_.publish_depth();
  return total;
}

void Lane::drop_all() noexcept {
  const auto free = [](void* packet) { rte_pktmbuf_free(as_mbuf(packet)); };
  std::size_t dropped = egress_.clear(free);
  for (void* held; (held = tx_fault_.release_any()) != nullptr; ++dropped) free(held);
  counters_.drop(DropReason::kPortDown, dropped);
}

}  // namespace sluice::dataplane

#include "dataplane/dpdk/port.h"

#include <rte_ethdev.h>
#include <rte_ether.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sluice::dataplane {
namespace {

// Preamble, start delimiter, checksum and gap: what a frame costs on a wire besides its bytes.
constexpr std::uint32_t kWireOverheadBytes = 24;
constexpr int kBurstsPerFlush = 4;

std::uint64_t burst_bytes(std::uint64_t rate_bps) noexcept {
  // What the link sends in 200 us, so that a sleeping worker does not starve it; at least ten
  // frames.
  return std::clamp<std::uint64_t>(rate_bps / 8 / 5000, 16 * 1024, 4 << 20);
}

TokenBucket make_bucket(const config::PortConfig& config, TimeNs now) noexcept {
  const std::uint64_t rate_bps = std::uint64_t{config.rate_mbps} * 1'000'000;
  return TokenBucket({.rate_bps = rate_bps, .burst_bytes = burst_bytes(rate_bps)}, now);
}

std::uint64_t seed_of(const config::PortConfig& config, PortIndex index, int direction) noexcept {
  return config.fault.seed * 1'000'003 + index * 2u + static_cast<unsigned>(direction);
}

rte_mbuf* as_mbuf(void* packet) noexcept { return static_cast<rte_mbuf*>(packet); }

}  // namespace

Port::Port(const config::PortConfig& config, PortIndex index, rte_mempool* pool, TimeNs now)
    : config_(config),
      index_(index),
      pool_(pool),
      max_frame_bytes_(config.mtu +
                       static_cast<std::uint32_t>(wire::kEthernetBytes + wire::kVlanTagBytes)),
      queue_(
          {.packets = kEgressPackets, .bytes = std::uint64_t{kEgressPackets} * max_frame_bytes_}),
      bucket_(make_bucket(config, now)),
      rx_fault_({.drop = config.fault.rx_drop,
                 .duplicate = config.fault.duplicate,
                 .reorder = config.fault.reorder},
                seed_of(config, index, 0)),
      tx_fault_({.drop = config.fault.tx_drop,
                 .duplicate = config.fault.duplicate,
                 .reorder = config.fault.reorder},
                seed_of(config, index, 1)) {}

std::size_t Port::receive(Burst& burst, TimeNs now) noexcept {
  std::size_t count = rte_eth_rx_burst(device_, 0, burst.data(), kBurst);
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
    packet->ol_flags = 0;
    if (packet->nb_segs > 1) {
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

std::size_t Port::inject_rx_faults(Burst& burst, std::size_t count, TimeNs now) noexcept {
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

void Port::enqueue(rte_mbuf* packet, ClassIndex egress_class) noexcept {
  if (packet->pkt_len > max_frame_bytes_) {
    counters_.drop(DropReason::kTooLong);
    rte_pktmbuf_free(packet);
    return;
  }
  if (!up()) {
    counters_.drop(DropReason::kPortDown);
    rte_pktmbuf_free(packet);
    return;
  }
  const EgressQueue::Item item{packet, packet->pkt_len, egress_class};
  for (;;) {
    const EgressQueue::Item victim = queue_.make_room(item);
    if (victim.packet == nullptr) break;
    counters_.drop(DropReason::kQueueFull);
    counters_.drops_by_class[victim.egress_class].add(1);
    rte_pktmbuf_free(as_mbuf(victim.packet));
  }
  if (queue_.push(item)) return;
  counters_.drop(DropReason::kQueueFull);
  counters_.drops_by_class[egress_class].add(1);
  rte_pktmbuf_free(packet);
}

// Moves frames from the queue to the staging array until that holds a burst or the shaper says no.
std::size_t Port::fill_staged(TimeNs now) noexcept {
  const auto stage = [this](rte_mbuf* packet, ClassIndex egress_class) {
    staged_[staged_count_] = packet;
    staged_class_[staged_count_++] = egress_class;
  };
  while (staged_count_ < kBurst && bucket_.ready() && !queue_.empty()) {
    const EgressQueue::Item item = queue_.pop();
    rte_mbuf* packet = as_mbuf(item.packet);
    bucket_.spend(item.bytes + kWireOverheadBytes);
    switch (tx_fault_.active() ? tx_fault_.decide() : Fate::kDeliver) {
      case Fate::kDrop:
        counters_.drop(DropReason::kInjectedFault);
        rte_pktmbuf_free(packet);
        break;
      case Fate::kHold:
        counters_.fault_reordered.add(1);
        tx_fault_.hold(packet, now);
        break;
      case Fate::kDuplicate:
        if (rte_mbuf* copy = rte_pktmbuf_copy(packet, pool_, 0, UINT32_MAX)) {
          counters_.fault_duplicated.add(1);
          stage(copy, item.egress_class);
        }
        [[fallthrough]];
      case Fate::kDeliver: stage(packet, item.egress_class); break;
    }
  }
  // A released frame has lost its class; it is counted with the least urgent.
  while (staged_count_ < staged_.size()) {
    void* held = tx_fault_.release(now);
    if (held == nullptr) break;
    stage(as_mbuf(held), kClassCount - 1);
  }
  return staged_count_;
}

std::size_t Port::flush(TimeNs now) noexcept {
  if (queue_.empty() && staged_count_ == 0 && tx_fault_.held() == 0) return 0;
  if (!up()) {
    drop_all();
    return 0;
  }
  bucket_.refill(now);
  std::size_t total = 0;
  for (int round = 0; round < kBurstsPerFlush && fill_staged(now) > 0; ++round) {
    const std::size_t offered = staged_count_;
    std::uint64_t bytes = 0;
    std::array<std::uint32_t, std::tuple_size_v<decltype(staged_)>> lengths;
    for (std::size_t at = 0; at < offered; ++at) lengths[at] = staged_[at]->pkt_len;
    const std::size_t sent =
        rte_eth_tx_burst(device_, 0, staged_.data(), static_cast<std::uint16_t>(offered));
    for (std::size_t at = 0; at < sent; ++at) {
      bytes += lengths[at];
      counters_.tx_by_class[staged_class_[at]].add(1);
    }
    std::copy(staged_.begin() + sent, staged_.begin() + offered, staged_.begin());
    std::copy(staged_class_.begin() + sent, staged_class_.begin() + offered, staged_class_.begin());
    staged_count_ = offered - sent;
    counters_.tx_packets.add(sent);
    counters_.tx_bytes.add(bytes);
    total += sent;
    if (sent < offered) break;
  }
  update_queue_counters();
  return total;
}

void Port::update_queue_counters() noexcept {
  counters_.queue_packets.set(queue_.packets() + staged_count_ + tx_fault_.held());
  counters_.queue_bytes.set(queue_.bytes());
}

void Port::drop_all() noexcept {
  std::size_t dropped = staged_count_;
  rte_pktmbuf_free_bulk(staged_.data(), static_cast<unsigned>(staged_count_));
  staged_count_ = 0;
  for (; !queue_.empty(); ++dropped) rte_pktmbuf_free(as_mbuf(queue_.pop().packet));
  for (void* held; (held = tx_fault_.release_any()) != nullptr; ++dropped)
    rte_pktmbuf_free(as_mbuf(held));
  counters_.drop(DropReason::kPortDown, dropped);
  update_queue_counters();
}

}  // namespace sluice::dataplane

#include "tests/sim/link.h"

#include <algorithm>

#include "aggregator/wire/ecn.h"

namespace sluice::sim {
namespace {

constexpr DurationNs kLongestBurst = 10 * kMillisecond;  // between two of its frames

dataplane::EgressQueue::Limits limits_of(const LinkOptions& options) {
  dataplane::EgressQueue::Limits limits;
  limits.packets = options.queue_frames;
  limits.bytes = std::uint64_t{options.queue_frames} * 10'000;
  limits.least_urgent_share = 0;  // strict, so that I6 can be checked exactly
  return limits;
}

// The queue carries opaque pointers; ours are pool indices.
void* as_pointer(FrameIndex frame) { return reinterpret_cast<void*>(std::uintptr_t{frame} + 1); }
FrameIndex as_index(void* pointer) {
  return static_cast<FrameIndex>(reinterpret_cast<std::uintptr_t>(pointer) - 1);
}

// Whether offloads would put the second frame behind the first: addresses and ports are the same,
// and it is not longer.
bool same_train(const std::vector<std::uint8_t>& first, const std::vector<std::uint8_t>& next) {
  const bool ipv4 = wire::load_be16(&first[12]) == wire::kEtherIpv4;
  const std::size_t begin = wire::kEthernetBytes + (ipv4 ? 12 : 8);
  const std::size_t end = wire::kEthernetBytes + (ipv4 ? wire::kIpv4Bytes : wire::kIpv6Bytes) + 4;
  return next.size() <= first.size() && next.size() >= end &&
         std::equal(first.begin(), first.begin() + wire::kEthernetBytes, next.begin()) &&
         std::equal(&first[begin], &first[end], &next[begin]);
}

}  // namespace

std::uint64_t LinkCounters::dropped_total() const {
  std::uint64_t total = 0;
  for (const std::uint64_t count : dropped) total += count;
  return total;
}

Link::Link(std::uint32_t id, const LinkOptions& link_options)
    : options(link_options), id_(id), queue_(limits_of(link_options)) {}

void Link::drop(FrameIndex frame, LinkDrop reason, FramePool& pool) {
  ++counters_.dropped[static_cast<std::size_t>(reason)];
  pool.give_back(frame);
}

// A burst begins so rarely that the share of all frames is loss_ppm (Gilbert 1960). What is wrong
// with a cable passes with time, too: a host that says little is not silenced for seconds.
bool Link::loses(Random& random, TimeNs now) {
  if (options.loss_burst <= 1) return random.chance_ppm(options.loss_ppm);
  const bool goes_on = losing_ && options.loss_ppm != 0 && now - lost_ns_ < kLongestBurst;
  losing_ = goes_on ? !random.one_in(options.loss_burst)
                    : random.chance_ppm(options.loss_ppm / options.loss_burst);
  if (losing_) lost_ns_ = now;
  return losing_;
}

void Link::send(FrameIndex frame, FramePool& pool, Random& random, EventQueue& events, TimeNs now,
                DurationNs extra_delay_ns) {
  ++counters_.in;
  if (partitioned) return drop(frame, LinkDrop::kPartition, pool);
  if (loses(random, now)) return drop(frame, LinkDrop::kLoss, pool);
  if (random.chance_ppm(options.duplicate_ppm)) {
    const FrameIndex twin = pool.copy(frame);
    ++counters_.in;
    ++counters_.duplicated;
    enqueue(twin, pool, events, now);
  }
  if (random.chance_ppm(options.corrupt_ppm)) {
    corrupt_frame(pool[frame].bytes, random);
    ++counters_.corrupted;
  }
  DurationNs held_ns = extra_delay_ns;
  if (random.chance_ppm(options.reorder_ppm))
    held_ns += random.between(0, options.reorder_delay_ns);
  if (held_ns == 0) return enqueue(frame, pool, events, now);
  // Held back beside the queue: everything sent meanwhile overtakes it.
  ++counters_.queued;
  events.push(now + held_ns + options.delay_ns, EventKind::kLinkArrive, id_, frame);
}

void Link::enqueue(FrameIndex frame, FramePool& pool, EventQueue& events, TimeNs now) {
  dataplane::EgressQueue::Item item;
  item.packet = as_pointer(frame);
  item.bytes = static_cast<std::uint32_t>(pool[frame].bytes.size());
  item.egress_class =
      static_cast<dataplane::ClassIndex>(options.by_priority ? pool[frame].priority / 4 : 0);
  for (dataplane::EgressQueue::Item victim; !queue_.push(item);) {
    if (!queue_.make_room(item, victim)) return drop(frame, LinkDrop::kQueueFull, pool);
    --counters_.queued;
    --waiting_by_class_[victim.egress_class];
    drop(as_index(victim.packet), LinkDrop::kQueueFull, pool);
  }
  ++counters_.queued;
  ++waiting_by_class_[item.egress_class];
  if (options.mark_above_frames != 0 && queue_.packets() > options.mark_above_frames &&
      wire::mark_congestion(pool[frame].bytes))
    ++counters_.marked;
  if (!busy_) {
    busy_ = true;
    events.push(now, EventKind::kLinkReady, id_);
  }
}

void Link::unblock(EventQueue& events, TimeNs now) {
  blocked = false;
  if (busy_) return;
  busy_ = true;
  events.push(now, EventKind::kLinkReady, id_);
}

void Link::power_off(FramePool& pool) {
  for (dataplane::EgressQueue::Item item; queue_.pop(item);) {
    --counters_.queued;
    --waiting_by_class_[item.egress_class];
    drop(as_index(item.packet), LinkDrop::kPowerOff, pool);
  }
}

// Appends the queue's next frame to the train; false: it does not belong there, or there is none.
bool Link::take_next(FramePool& pool) {
  dataplane::EgressQueue::Item item;
  if (!queue_.pop(item)) return false;
  const FrameIndex frame = as_index(item.packet);
  // A frame that is shorter than the first is the last.
  if (!train_.empty() && (!same_train(pool[train_.front()].bytes, pool[frame].bytes) ||
                          pool[train_.back()].bytes.size() < pool[train_.front()].bytes.size())) {
    queue_.put_back(item);
    return false;
  }
  --waiting_by_class_[item.egress_class];
  for (std::size_t urgent = 0; urgent < item.egress_class; ++urgent)
    if (waiting_by_class_[urgent] != 0) overtook_ = true;
  train_.push_back(frame);
  return true;
}

void Link::ready(FramePool& pool, Random& random, EventQueue& events, TimeNs now) {
  busy_ = false;
  train_.clear();
  if (blocked || !take_next(pool)) return;
  while (train_.size() < options.train_frames && take_next(pool)) {
  }
  std::uint64_t bytes = 0;
  for (const FrameIndex frame : train_) bytes += pool[frame].bytes.size();
  const auto wire_ns = static_cast<DurationNs>(bytes * kSecond / options.bytes_per_second);
  const DurationNs jitter_ns = options.jitter_ns > 0 ? random.between(0, options.jitter_ns) : 0;
  counters_.trains += train_.size() > 1;
  const bool lost = train_.size() > 1 && random.chance_ppm(options.train_loss_ppm);
  for (const FrameIndex frame : train_) {
    if (lost) {
      --counters_.queued;
      drop(frame, LinkDrop::kLoss, pool);
    } else {
      events.push(now + wire_ns + options.delay_ns + jitter_ns, EventKind::kLinkArrive, id_, frame);
    }
  }
  busy_ = true;
  events.push(now + wire_ns, EventKind::kLinkReady, id_);
}

void corrupt_frame(std::vector<std::uint8_t>& frame, Random& random) {
  // One byte: a one's-complement sum always notices that. IPv6 has no checksum over its own header.
  constexpr std::size_t kUdp6 = wire::kEthernetBytes + wire::kIpv6Bytes;
  const bool ipv6 = wire::load_be16(frame.data() + 12) == wire::kEtherIpv6;
  const std::size_t first = ipv6 ? kUdp6 : wire::kEthernetBytes;
  const std::size_t at = first + random.below(frame.size() - first);
  frame[at] ^= static_cast<std::uint8_t>(1 + random.below(255));
}

}  // namespace sluice::sim

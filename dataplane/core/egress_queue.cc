#include "dataplane/core/egress_queue.h"

#include <cmath>

#include "aggregator/base/check.h"

namespace sluice::dataplane {
EgressQueue::EgressQueue(const Limits& limits)
    : nodes_(limits.packets + kMostPassing), packet_limit_(limits.packets) {
  CHECK(limits.packets > 0 && limits.packets < kNone - kMostPassing);
  for (std::uint32_t index = 0; index < nodes_.size(); ++index)
    nodes_[index].next = index + 1 < nodes_.size() ? index + 1 : kNone;
  free_ = 0;
  set_limits(limits);
}

void EgressQueue::set_limits(const Limits& limits) noexcept {
  mark_above_bytes_ = limits.mark_above_bytes == 0 ? UINT64_MAX : limits.mark_above_bytes;
  byte_limit_ = limits.bytes;
  with_share_ = 0;
  double sum = 0;
  for (std::size_t index = 0; index < kClassCount; ++index) {
    sum += limits.shares[index];
    if (limits.shares[index] != 0) with_share_ |= bit_of(static_cast<ClassIndex>(index));
  }
  CHECK(sum < 1);
  least_has_share_ = with_share_ == 0 && limits.least_urgent_share != 0;
  for (std::size_t index = 0; index < kClassCount; ++index) {
    const double share = least_has_share_ ? limits.least_urgent_share : limits.shares[index];
    levels_[index].per_share = 0;
    rooms_[index] = {};
    if (share == 0) continue;
    CHECK(share >= 0.001 && share < 1);
    levels_[index].per_share = static_cast<std::uint32_t>(std::lround(kPerShareUnits / share));
    rooms_[index] = {static_cast<std::uint32_t>(share * packet_limit_),
                     static_cast<std::uint64_t>(share * static_cast<double>(limits.bytes))};
  }
}

// A class that waits counts its new share from now.
void EgressQueue::change(const Limits& limits) noexcept {
  CHECK(limits.packets == packet_limit_);
  set_limits(limits);
  for (Level& level : levels_) level.due = sent_bytes_;
  guaranteed_ = 0;
  next_due_ = UINT64_MAX;
  if (waiting_ != 0) choose_next_due();
}

std::uint64_t EgressQueue::bytes_as_urgent(ClassIndex egress_class) const noexcept {
  const std::uint64_t less_urgent = ~std::uint64_t{0} << egress_class << 1;
  std::uint64_t bytes = bytes_;
  for (std::uint64_t rest = waiting_ & less_urgent; rest != 0; rest &= rest - 1)
    bytes -= levels_[most_urgent_of(rest)].bytes;
  return bytes;
}

std::uint64_t EgressQueue::guaranteed_among(std::uint64_t waiting) const noexcept {
  if (least_has_share_) return waiting == 0 ? 0 : bit_of(least_urgent_of(waiting));
  return waiting & with_share_;
}

// The class that has been due the longest is served first. So each class is late by less than one
// packet of every other.
void EgressQueue::choose_among_chosen() noexcept {
  guaranteed_ = guaranteed_among(waiting_);
  next_due_ = UINT64_MAX;
  for (std::uint64_t rest = guaranteed_; rest != 0; rest &= rest - 1) {
    const ClassIndex egress_class = most_urgent_of(rest);
    if (levels_[egress_class].due >= next_due_) continue;
    next_due_ = levels_[egress_class].due;
    next_due_class_ = egress_class;
  }
}

void EgressQueue::put_back(const Item& item) noexcept {
  CHECK(free_ != kNone);
  Level& level = levels_[item.egress_class];
  const bool first = level.packets == 0;
  const std::uint32_t index = occupy(item, level);
  if (first) {
    level.tail = index;
  } else {
    nodes_[index].next = level.head;
    nodes_[level.head].previous = index;
  }
  level.head = index;
  level.due = item.due_before;
  sent_bytes_ -= item.bytes;
  waiting_ |= bit_of(item.egress_class);
  choose_next_due();
}

// --- When it is full ---

bool EgressQueue::within_room(ClassIndex egress_class, const Room& more) const noexcept {
  const Level& level = levels_[egress_class];
  const Room& room = rooms_[egress_class];
  return level.packets + more.packets <= room.packets && level.bytes + more.bytes <= room.bytes;
}

void EgressQueue::evict_newest(ClassIndex egress_class, Item& evicted) noexcept {
  Level& level = levels_[egress_class];
  const std::uint32_t index = level.tail;
  const Node& node = nodes_[index];
  evicted = {.packet = node.packet,
             .bytes = node.bytes,
             .egress_class = egress_class,
             .queued_at = node.queued_at};
  if (level.packets > 1) {
    level.tail = node.previous;
    nodes_[level.tail].next = kNone;
  }
  release(index, level);
  if (level.packets != 0) return;
  waiting_ &= ~bit_of(egress_class);
  choose_next_due();
}

bool EgressQueue::make_room(const Item& arrival, Item& evicted) noexcept {
  if (arrival.bytes > byte_limit_) return false;
  const std::uint64_t guaranteed = guaranteed_among(waiting_ | bit_of(arrival.egress_class));
  const bool entitled = (guaranteed & bit_of(arrival.egress_class)) != 0 &&
                        within_room(arrival.egress_class, {1, arrival.bytes});
  for (std::uint64_t rest = waiting_; rest != 0;) {
    const ClassIndex victim = least_urgent_of(rest);
    rest &= ~bit_of(victim);
    if (!entitled && victim <= arrival.egress_class) break;
    const bool kept = (guaranteed & bit_of(victim)) != 0 && within_room(victim, {});
    if (victim == arrival.egress_class || kept) continue;
    evict_newest(victim, evicted);
    return true;
  }
  return false;
}

}  // namespace sluice::dataplane

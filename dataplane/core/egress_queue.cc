#include "dataplane/core/egress_queue.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "aggregator/base/check.h"

namespace sluice::dataplane {
namespace {

constexpr std::uint64_t bit_of(ClassIndex egress_class) noexcept {
  return std::uint64_t{1} << egress_class;
}
constexpr ClassIndex most_urgent_of(std::uint64_t classes) noexcept {
  return static_cast<ClassIndex>(std::countr_zero(classes));
}
constexpr ClassIndex least_urgent_of(std::uint64_t classes) noexcept {
  return static_cast<ClassIndex>(63 - std::countl_zero(classes));
}

}  // namespace

EgressQueue::EgressQueue(const Limits& limits)
    : nodes_(limits.packets),
      mark_above_bytes_(limits.mark_above_bytes == 0 ? UINT64_MAX : limits.mark_above_bytes),
      byte_limit_(limits.bytes) {
  CHECK(limits.packets > 0 && limits.packets < kNone);
  for (std::uint32_t index = 0; index < limits.packets; ++index)
    nodes_[index].next = index + 1 < limits.packets ? index + 1 : kNone;
  free_ = 0;

  double sum = 0;
  for (std::size_t index = 0; index < kClassCount; ++index) {
    sum += limits.shares[index];
    if (limits.shares[index] != 0) with_share_ |= bit_of(static_cast<ClassIndex>(index));
  }
  CHECK(sum < 1);
  least_has_share_ = with_share_ == 0 && limits.least_urgent_share != 0;
  for (std::size_t index = 0; index < kClassCount; ++index) {
    const double share = least_has_share_ ? limits.least_urgent_share : limits.shares[index];
    if (share == 0) continue;
    CHECK(share >= 0.001 && share < 1);
    levels_[index].per_share = static_cast<std::uint32_t>(std::lround(kPerShareUnits / share));
    rooms_[index] = {static_cast<std::uint32_t>(share * limits.packets),
                     static_cast<std::uint64_t>(share * static_cast<double>(limits.bytes))};
  }
}

bool EgressQueue::fits(const Item& item) const noexcept {
  return free_ != kNone && bytes_ + item.bytes <= byte_limit_;
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

// --- Sending ---

// After every change of which classes with a share wait, or of when one of them is due. The one
// that is due the longest goes first: then each is late by less than one packet of every other.
void EgressQueue::choose_next_due() noexcept {
  guaranteed_ = guaranteed_among(waiting_);
  next_due_ = UINT64_MAX;
  for (std::uint64_t rest = guaranteed_; rest != 0; rest &= rest - 1) {
    const ClassIndex egress_class = most_urgent_of(rest);
    if (levels_[egress_class].due >= next_due_) continue;
    next_due_ = levels_[egress_class].due;
    next_due_class_ = egress_class;
  }
}

// A share begins to count when the class begins to wait: what it did not use before is gone. Its
// first packet goes when, with it, the share is used; later ones when the one before is paid for.
void EgressQueue::begin_waiting(Level& level, const Item& item) noexcept {
  waiting_ |= bit_of(item.egress_class);
  const std::uint64_t whole = interval(level, item.bytes);
  const std::uint64_t others = whole - std::min<std::uint64_t>(whole, item.bytes);
  level.due = std::max(level.due, sent_bytes_ + others);
  choose_next_due();
}

// Fills a free node and counts it; the caller links it.
std::uint32_t EgressQueue::occupy(const Item& item, Level& level) noexcept {
  const std::uint32_t index = free_;
  Node& node = nodes_[index];
  free_ = node.next;
  node = Node{.packet = item.packet,
              .queued_at = item.queued_at,
              .bytes = item.bytes,
              .egress_class = item.egress_class};
  ++level.packets;
  level.bytes += item.bytes;
  ++packets_;
  bytes_ += item.bytes;
  return index;
}

// Frees a node that was taken out of its list.
EgressQueue::Item EgressQueue::release(std::uint32_t index, Level& level) noexcept {
  Node& node = nodes_[index];
  const Item item{.packet = node.packet,
                  .bytes = node.bytes,
                  .egress_class = node.egress_class,
                  .queued_at = node.queued_at,
                  .due_before = level.due};
  node.next = free_;
  free_ = index;
  --level.packets;
  level.bytes -= item.bytes;
  --packets_;
  bytes_ -= item.bytes;
  if (level.packets == 0) waiting_ &= ~bit_of(item.egress_class);
  return item;
}

bool EgressQueue::push(const Item& item) noexcept {
  DCHECK(item.packet != nullptr && item.egress_class < kClassCount);
  if (!fits(item)) return false;
  Level& level = levels_[item.egress_class];
  const bool first = level.packets == 0;
  const std::uint32_t index = occupy(item, level);
  if (first) {
    level.head = index;
  } else {
    nodes_[index].previous = level.tail;
    nodes_[level.tail].next = index;
  }
  level.tail = index;
  if (first) begin_waiting(level, item);
  return true;
}

EgressQueue::Item EgressQueue::pop() noexcept {
  if (waiting_ == 0) return {};
  const ClassIndex egress_class =
      sent_bytes_ >= next_due_ ? next_due_class_ : most_urgent_of(waiting_);
  Level& level = levels_[egress_class];
  const std::uint32_t index = level.head;
  level.head = nodes_[index].next;
  const Item item = release(index, level);
  level.due = std::min(level.due, sent_bytes_) + interval(level, item.bytes);
  sent_bytes_ += item.bytes;
  if ((guaranteed_ >> egress_class & 1) != 0) choose_next_due();
  return item;
}

void EgressQueue::put_back(const Item& item) noexcept {
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

EgressQueue::Item EgressQueue::evict_newest(ClassIndex egress_class) noexcept {
  Level& level = levels_[egress_class];
  const std::uint32_t index = level.tail;
  if (level.packets > 1) {
    level.tail = nodes_[index].previous;
    nodes_[level.tail].next = kNone;
  }
  const Item item = release(index, level);
  if (level.packets == 0) choose_next_due();
  return item;
}

EgressQueue::Item EgressQueue::make_room(const Item& arrival) noexcept {
  if (fits(arrival) || arrival.bytes > byte_limit_) return {};
  const std::uint64_t guaranteed = guaranteed_among(waiting_ | bit_of(arrival.egress_class));
  const bool entitled = (guaranteed >> arrival.egress_class & 1) != 0 &&
                        within_room(arrival.egress_class, {1, arrival.bytes});
  for (std::uint64_t rest = waiting_; rest != 0;) {
    const ClassIndex victim = least_urgent_of(rest);
    rest &= ~bit_of(victim);
    if (!entitled && victim <= arrival.egress_class) break;
    const bool kept = (guaranteed >> victim & 1) != 0 && within_room(victim, {});
    if (victim != arrival.egress_class && !kept) return evict_newest(victim);
  }
  return {};
}

}  // namespace sluice::dataplane

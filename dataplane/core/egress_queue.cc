#include "dataplane/core/egress_queue.h"

#include <bit>

#include "aggregator/base/check.h"

namespace sluice::dataplane {

EgressQueue::EgressQueue(const Limits& limits) : limits_(limits), nodes_(limits.packets) {
  CHECK(limits.packets > 0 && limits.packets < kNone);
  for (std::uint32_t index = 0; index < limits.packets; ++index)
    nodes_[index].next = index + 1 < limits.packets ? index + 1 : kNone;
  free_ = 0;
}

ClassIndex EgressQueue::most_urgent() const noexcept {
  return static_cast<ClassIndex>(std::countr_zero(waiting_));
}

ClassIndex EgressQueue::least_urgent() const noexcept {
  return static_cast<ClassIndex>(63 - std::countl_zero(waiting_));
}

bool EgressQueue::fits(const Item& item) const noexcept {
  return free_ != kNone && bytes_ + item.bytes <= limits_.bytes;
}

EgressQueue::Item EgressQueue::remove(std::uint32_t index) noexcept {
  Node& node = nodes_[index];
  Level& level = levels_[node.item.egress_class];
  (node.previous == kNone ? level.head : nodes_[node.previous].next) = node.next;
  (node.next == kNone ? level.tail : nodes_[node.next].previous) = node.previous;
  if (level.head == kNone) waiting_ &= ~(std::uint64_t{1} << node.item.egress_class);
  --packets_;
  bytes_ -= node.item.bytes;
  node.next = free_;
  free_ = index;
  return node.item;
}

EgressQueue::Item EgressQueue::make_room(const Item& arrival) noexcept {
  if (fits(arrival) || waiting_ == 0) return {};
  const ClassIndex victim = least_urgent();
  if (victim <= arrival.egress_class) return {};
  return remove(levels_[victim].tail);
}

bool EgressQueue::push(const Item& item) noexcept {
  DCHECK(item.packet != nullptr && item.egress_class < kClassCount);
  if (!fits(item)) return false;
  const std::uint32_t index = free_;
  Node& node = nodes_[index];
  free_ = node.next;
  Level& level = levels_[item.egress_class];
  node = Node{.item = item, .next = kNone, .previous = level.tail};
  (level.tail == kNone ? level.head : nodes_[level.tail].next) = index;
  level.tail = index;
  waiting_ |= std::uint64_t{1} << item.egress_class;
  ++packets_;
  bytes_ += item.bytes;
  return true;
}

std::uint32_t EgressQueue::choose() noexcept {
  const std::uint32_t least = levels_[least_urgent()].head;
  const std::uint64_t due_bytes =
      std::uint64_t{nodes_[least].item.bytes} * limits_.least_urgent_one_in;
  if (limits_.least_urgent_one_in != 0 && share_bytes_ >= due_bytes) return least;
  return levels_[most_urgent()].head;
}

EgressQueue::Item EgressQueue::pop() noexcept {
  if (waiting_ == 0) return {};
  const std::uint32_t index = choose();
  const ClassIndex least = least_urgent();
  const Item item = remove(index);
  share_bytes_ = item.egress_class == least ? 0 : share_bytes_ + item.bytes;
  return item;
}

}  // namespace sluice::dataplane

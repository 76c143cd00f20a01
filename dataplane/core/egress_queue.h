// One port's egress queue: 64 classes, the most urgent (0) first.
//
// Items are opaque pointers with a length in bytes; the queue never follows the pointers. It is
// bounded in packets and in bytes: when an arrival does not fit, the newest items of the least
// urgent class are dropped, or the arrival itself. Classes can be given a guaranteed share of the
// bytes sent and of the queue's room. If none is, the least urgent class that waits has a share.
// Classes without a share starve while more urgent ones fill the link. One owner lcore; no
// allocation after set-up.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/time.h"
#include "dataplane/core/counters.h"

namespace sluice::dataplane {

using ClassIndex = std::uint8_t;  // 0 .. 63, 0 is the most urgent

class EgressQueue {
 public:
  struct Limits {
    std::uint32_t packets = 4096;
    std::uint64_t bytes = 4u << 20;
    // The least share of the bytes sent that a class gets while it waits, 0.001 or more; 0: none.
    // All shares together are less than 1.
    std::array<double, kClassCount> shares{};
    // When no class has a share: that of whichever waiting class is the least urgent. 0: none.
    double least_urgent_share = 1.0 / 32;
    std::uint64_t mark_above_bytes = 0;  // 0: never
  };
  struct Item {
    void* packet = nullptr;  // null: none
    std::uint32_t bytes = 0;
    ClassIndex egress_class = 0;
    TimeNs queued_at = 0;
    std::uint64_t due_before = 0;  // written by the queue, for put_back()
  };

  static constexpr std::uint32_t kMostPassing = 32;

  explicit EgressQueue(const Limits& limits);

  // Queues an item. False: it does not fit; the caller calls make_room() and tries again, or drops
  // it.
  [[nodiscard]] bool push(const Item& item) noexcept;
  // Evicts one item for an arrival that does not fit: the newest of the least urgent class that is
  // less urgent than the arrival and exceeds its guaranteed room. An arrival within the guaranteed
  // room of its class may evict from any class that exceeds its own. False: nothing can be evicted.
  bool make_room(const Item& arrival, Item& evicted) noexcept;
  // Takes the next item to send; false when empty.
  bool pop(Item& item) noexcept;
  // Undoes pop() of items that were not sent after all. Called with the last one first, before the
  // next push().
  void put_back(const Item& item) noexcept;

  // From now on with these limits, but for `packets`, which stays. Nothing that waits is lost: a
  // queue that holds more than it may takes in nothing less urgent until it has sent the rest.
  void change(const Limits& limits) noexcept;

  // Counts an item that bypasses the empty queue, as if it had been pushed and popped. Up to
  // kMostPassing such items may then be put back, whatever was pushed since.
  void pass(Item& item) noexcept {
    DCHECK(empty());
    item.due_before = levels_[item.egress_class].due;
    sent_bytes_ += item.bytes;
  }

  // Whether more than mark_above_bytes wait in this class and the more urgent ones: the sender of
  // the last item should slow down.
  bool congested(ClassIndex egress_class) const noexcept {
    return bytes_ > mark_above_bytes_ && bytes_as_urgent(egress_class) > mark_above_bytes_;
  }

  bool empty() const noexcept { return packets_ == 0; }
  std::uint32_t packets() const noexcept { return packets_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint32_t packets_of(ClassIndex egress_class) const noexcept {
    return levels_[egress_class].packets;
  }
  std::uint64_t bytes_of(ClassIndex egress_class) const noexcept {
    return levels_[egress_class].bytes;
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kPerShareUnits = 1u << 16;
  struct Node {
    void* packet = nullptr;
    TimeNs queued_at = 0;
    std::uint32_t bytes = 0;
    std::uint32_t next = kNone;
    std::uint32_t previous = kNone;
  };
  static_assert(sizeof(Node) == 32);
  // `due` is compared with sent_bytes_: a class that waits and has a share is served at the latest
  // when that many bytes have been sent. Serving it moves `due` on by as much as the share allows.
  struct Level {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
    std::uint32_t packets = 0;
    std::uint32_t per_share = 0;  // 1 / share, in 1 / kPerShareUnits; 0: no share
    std::uint64_t bytes = 0;
    std::uint64_t due = 0;
  };
  struct Room {
    std::uint32_t packets = 0;
    std::uint64_t bytes = 0;
  };

  static std::uint64_t interval(const Level& level, std::uint32_t bytes) noexcept {
    return std::uint64_t{bytes} * level.per_share / kPerShareUnits;
  }
  static constexpr std::uint64_t bit_of(ClassIndex egress_class) noexcept {
    return std::uint64_t{1} << egress_class;
  }
  static constexpr ClassIndex most_urgent_of(std::uint64_t classes) noexcept {
    return static_cast<ClassIndex>(std::countr_zero(classes));
  }
  static constexpr ClassIndex least_urgent_of(std::uint64_t classes) noexcept {
    return static_cast<ClassIndex>(63 - std::countl_zero(classes));
  }
  bool fits(const Item& item) const noexcept {
    return packets_ < packet_limit_ && bytes_ + item.bytes <= byte_limit_;
  }
  void set_limits(const Limits& limits) noexcept;
  std::uint64_t bytes_as_urgent(ClassIndex egress_class) const noexcept;
  std::uint64_t guaranteed_among(std::uint64_t waiting) const noexcept;
  bool within_room(ClassIndex egress_class, const Room& more) const noexcept;
  void begin_waiting(Level& level, const Item& item) noexcept;
  void choose_next_due() noexcept;
  void choose_among_chosen() noexcept;
  void evict_newest(ClassIndex egress_class, Item& evicted) noexcept;
  void release(std::uint32_t node, Level& level) noexcept;
  std::uint32_t occupy(const Item& item, Level& level) noexcept;

  std::uint64_t waiting_ = 0;     // bit c: class c has items
  std::uint64_t guaranteed_ = 0;  // of those, the classes with a share
  std::uint64_t next_due_ = UINT64_MAX;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t packets_ = 0;
  std::uint32_t free_ = kNone;
  ClassIndex next_due_class_ = 0;
  std::array<Level, kClassCount> levels_;

  std::vector<Node> nodes_;
  std::uint64_t mark_above_bytes_ = 0;
  const std::uint32_t packet_limit_;
  std::uint64_t byte_limit_ = 0;
  std::uint64_t with_share_ = 0;  // bit c: class c has a share of its own
  bool least_has_share_ = false;
  std::array<Room, kClassCount> rooms_{};
};

// --- The path of every packet ---

// Called after every change of the classes with a share that wait, or of their `due`.
inline void EgressQueue::choose_next_due() noexcept {
  if (!least_has_share_) return choose_among_chosen();
  if (waiting_ == 0) return;
  next_due_class_ = least_urgent_of(waiting_);
  Level& level = levels_[next_due_class_];
  // Time that it waited while another class was the least urgent gives it no claim.
  if (bit_of(next_due_class_) != guaranteed_) level.due = std::max(level.due, sent_bytes_);
  next_due_ = level.due;
  guaranteed_ = bit_of(next_due_class_);
}

// A share counts from the time when the class begins to wait: unused share from before is lost. The
// first packet is due when it would use up the share; a later packet is due when the one before it
// is paid for.
inline void EgressQueue::begin_waiting(Level& level, const Item& item) noexcept {
  waiting_ |= bit_of(item.egress_class);
  const std::uint64_t whole = interval(level, item.bytes);
  const std::uint64_t others = whole - std::min<std::uint64_t>(whole, item.bytes);
  level.due = std::max(level.due, sent_bytes_ + others);
  choose_next_due();
}

// Fills a free node and counts it; the caller links it.
inline std::uint32_t EgressQueue::occupy(const Item& item, Level& level) noexcept {
  const std::uint32_t index = free_;
  Node& node = nodes_[index];
  free_ = node.next;
  node = Node{.packet = item.packet, .queued_at = item.queued_at, .bytes = item.bytes};
  ++level.packets;
  level.bytes += item.bytes;
  ++packets_;
  bytes_ += item.bytes;
  return index;
}

// Frees a node that was taken out of its list.
inline void EgressQueue::release(std::uint32_t index, Level& level) noexcept {
  Node& node = nodes_[index];
  node.next = free_;
  free_ = index;
  --level.packets;
  level.bytes -= node.bytes;
  --packets_;
  bytes_ -= node.bytes;
}

inline bool EgressQueue::push(const Item& item) noexcept {
  DCHECK(item.packet != nullptr && item.egress_class < kClassCount);
  if (!fits(item)) [[unlikely]]
    return false;
  Level& level = levels_[item.egress_class];
  const bool first = level.packets == 0;
  const std::uint32_t index = occupy(item, level);
  const std::uint32_t tail = std::exchange(level.tail, index);
  if (first) {
    level.head = index;
    begin_waiting(level, item);
  } else {
    nodes_[index].previous = tail;
    nodes_[tail].next = index;
  }
  return true;
}

inline bool EgressQueue::pop(Item& item) noexcept {
  if (waiting_ == 0) return false;
  const ClassIndex egress_class =
      sent_bytes_ >= next_due_ ? next_due_class_ : most_urgent_of(waiting_);
  Level& level = levels_[egress_class];
  const std::uint32_t index = level.head;
  const Node& node = nodes_[index];
  item = {.packet = node.packet,
          .bytes = node.bytes,
          .egress_class = egress_class,
          .queued_at = node.queued_at,
          .due_before = level.due};
  level.head = node.next;
  release(index, level);
  level.due = std::min(level.due, sent_bytes_) + interval(level, item.bytes);
  sent_bytes_ += item.bytes;
  if (level.packets == 0) waiting_ &= ~bit_of(egress_class);
  if ((guaranteed_ & bit_of(egress_class)) != 0) choose_next_due();
  return true;
}

}  // namespace sluice::dataplane

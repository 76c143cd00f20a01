// One port's egress queue: 64 classes, the most urgent (0) first.
//
// Items are opaque pointers with a byte length; the queue never touches what they point to. It is
// bounded in packets and in bytes: when an arrival does not fit, the newest items of the least
// urgent class go, which may be the arrival itself. Chosen classes have a guaranteed share of the
// bytes sent and of the room; without any, the least urgent class that waits has one, so that
// nothing starves. One owner lcore; no allocation after set-up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aggregator/base/time.h"
#include "dataplane/core/counters.h"

namespace sluice::dataplane {

using ClassIndex = std::uint8_t;  // 0 .. 63, 0 is the most urgent

class EgressQueue {
 public:
  struct Limits {
    std::uint32_t packets = 4096;
    std::uint64_t bytes = 4u << 20;
    // The part of the bytes sent that a class gets at least while it waits, 0.001 or more; 0: none.
    // Together less than 1.
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
    std::uint64_t due_before = 0;  // the queue's own, for put_back()
  };

  explicit EgressQueue(const Limits& limits);

  // Evicts one item if the arrival does not fit: the newest of the least urgent class that is less
  // urgent than the arrival and holds more than its guaranteed room. An arrival within the
  // guaranteed room of its class may evict from any class that is not. Null when it fits or when
  // there is nothing to evict. Call it until it returns null, then push().
  Item make_room(const Item& arrival) noexcept;
  // Queues an item; false when it does not fit: the caller then drops it.
  [[nodiscard]] bool push(const Item& item) noexcept;
  // Takes the next item to send; null when empty.
  Item pop() noexcept;
  // Undoes pop(): items that were not sent after all, the last one first, before the next push().
  void put_back(const Item& item) noexcept;

  // More than mark_above_bytes wait that are as urgent as this class or more urgent: whoever sent
  // what was pushed last should slow down.
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
    ClassIndex egress_class = 0;
  };
  static_assert(sizeof(Node) == 32);
  // `due` and bytes sent are on one scale: a class that waits and has a share is served at the
  // latest when as many bytes have been sent. Serving it moves `due` on by what the share allows.
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
  bool fits(const Item& item) const noexcept;
  std::uint64_t bytes_as_urgent(ClassIndex egress_class) const noexcept;
  std::uint64_t guaranteed_among(std::uint64_t waiting) const noexcept;
  bool within_room(ClassIndex egress_class, const Room& more) const noexcept;
  void begin_waiting(Level& level, const Item& item) noexcept;
  void choose_next_due() noexcept;
  Item evict_newest(ClassIndex egress_class) noexcept;
  Item release(std::uint32_t node, Level& level) noexcept;
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
  std::uint64_t mark_above_bytes_;
  std::uint64_t byte_limit_;
  std::uint64_t with_share_ = 0;  // bit c: class c has a share of its own
  bool least_has_share_ = false;
  std::array<Room, kClassCount> rooms_{};
};

}  // namespace sluice::dataplane

// One port's egress queue: 64 classes, the most urgent (0) first.
//
// Items are opaque pointers with a byte length; the queue never touches what they point to. It is
// bounded in packets and in bytes: when an arrival does not fit, the newest items of the least
// urgent class go, which may be the arrival itself. A guaranteed share of the bytes sent goes to
// the least urgent class that waits, so that nothing starves. One owner lcore; no allocation after
// set-up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dataplane/core/counters.h"

namespace sluice::dataplane {

using ClassIndex = std::uint8_t;  // 0 .. 63, 0 is the most urgent

class EgressQueue {
 public:
  struct Limits {
    std::uint32_t packets = 4096;
    std::uint64_t bytes = 4u << 20;
    // The least urgent waiting class gets one byte in this many; 0 means strict priority only.
    std::uint32_t least_urgent_one_in = 32;
  };
  struct Item {
    void* packet = nullptr;  // null: none
    std::uint32_t bytes = 0;
    ClassIndex egress_class = 0;
  };

  explicit EgressQueue(const Limits& limits);

  // Evicts one item less urgent than `arrival` if the arrival does not fit; null when it fits or
  // when nothing less urgent is left. Call it until it returns null, then push().
  Item make_room(const Item& arrival) noexcept;
  // Queues an item; false when it does not fit: the caller then drops it.
  [[nodiscard]] bool push(const Item& item) noexcept;
  // Takes the next item to send; null when empty.
  Item pop() noexcept;

  bool empty() const noexcept { return packets_ == 0; }
  std::uint32_t packets() const noexcept { return packets_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Node {
    Item item;
    std::uint32_t next = kNone;
    std::uint32_t previous = kNone;
  };
  struct Level {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };

  bool fits(const Item& item) const noexcept;
  Item remove(std::uint32_t node) noexcept;
  std::uint32_t choose() noexcept;
  ClassIndex most_urgent() const noexcept;
  ClassIndex least_urgent() const noexcept;

  Limits limits_;
  std::vector<Node> nodes_;
  std::uint32_t free_ = kNone;
  std::array<Level, kClassCount> levels_;
  std::uint64_t waiting_ = 0;  // bit c: class c has items
  std::uint32_t packets_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t share_bytes_ = 0;  // sent from other classes while the least urgent one waited
};

}  // namespace sluice::dataplane

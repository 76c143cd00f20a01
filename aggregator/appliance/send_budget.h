// How much an lcore sends for its shard before it receives again.
#pragma once

#include <cstddef>
#include <span>

#include "aggregator/core/shard.h"

namespace sluice::agg {

// While results wait, every ninth datagram is a reply (shard_transmit.cc). Replies in a row mean
// that no result waits. But a contribution that completes one may be about to arrive, and its
// result would wait behind all replies, of which a member that asks for much always has more. A
// reply that waits for the next round loses little.
class SendBudget {
 public:
  static constexpr std::size_t kDatagrams = 64;
  static constexpr int kRepliesInARow = 4;

  // Datagrams that may still be sent; a reply is the last of its burst.
  std::size_t left() const noexcept {
    return replies_in_a_row_ < kRepliesInARow ? kDatagrams - datagrams_ : 0;
  }
  void spend(std::span<const Transmit> burst) noexcept {
    datagrams_ += burst.size();
    const bool only_reply = burst.size() == 1 && burst.back().reply;
    replies_in_a_row_ = only_reply ? replies_in_a_row_ + 1 : burst.back().reply;
  }
  std::size_t spent() const noexcept { return datagrams_; }

 private:
  std::size_t datagrams_ = 0;
  int replies_in_a_row_ = 0;
};

}  // namespace sluice::agg

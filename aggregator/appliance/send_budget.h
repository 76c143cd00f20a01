// How much an lcore sends for its shard before it receives again.
#pragma once

namespace sluice::agg {

// While results wait, a reply has every ninth turn (shard_transmit.cc). Replies in a row mean that
// no result waits, but one may be about to arrive: it would wait behind all of them, and whoever
// asks for much always has more. A reply that has to wait for the next loop loses little.
class SendBudget {
 public:
  static constexpr int kDatagrams = 64;
  static constexpr int kRepliesInARow = 4;

  bool left() const noexcept {
    return datagrams_ < kDatagrams && replies_in_a_row_ < kRepliesInARow;
  }
  void spend(bool reply) noexcept {
    ++datagrams_;
    replies_in_a_row_ = reply ? replies_in_a_row_ + 1 : 0;
  }
  int spent() const noexcept { return datagrams_; }

 private:
  int datagrams_ = 0;
  int replies_in_a_row_ = 0;
};

}  // namespace sluice::agg

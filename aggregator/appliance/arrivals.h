// The packets of a burst for one shard, handled in the order of their arrival.
//
// Each packet is parsed, and its slot and flow are prefetched, a little before it is handled: the
// memory of a packet arrives while the packet before it is summed. Pure; one thread.
#pragma once

#include <array>
#include <cstddef>

#include "aggregator/base/counters.h"
#include "aggregator/base/verdict.h"
#include "aggregator/core/shard.h"
#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {

class Arrivals {
 public:
  // Datagrams that are no valid packet are counted in `malformed`.
  Arrivals(Shard& shard, VerdictCounters& malformed) : shard_(shard), malformed_(malformed) {}

  // The datagram's bytes stay where they are until flush().
  void add(const wire::Datagram& datagram, TimeNs now) noexcept {
    Waiting& last = waiting_[added_ % kAhead];
    if (added_ - handled_ == kAhead) handle_next(now);
    const Verdict why = wire::parse(datagram.payload, last.packet);
    if (!ok(why)) return malformed_.count(why);
    last.marked = datagram.marked;
    last.location = shard_.locate(last.packet);
    ++added_;
  }
  // Handles the rest.
  void flush(TimeNs now) noexcept {
    while (handled_ != added_) handle_next(now);
  }

 private:
  static constexpr std::size_t kAhead = 2;
  struct Waiting {
    wire::Packet packet;
    bool marked = false;
    Shard::Location location;
  };

  void handle_next(TimeNs now) noexcept {
    const Waiting& next = waiting_[handled_++ % kAhead];
    shard_.handle(next.packet, next.location, next.marked, now);
  }

  Shard& shard_;
  VerdictCounters& malformed_;
  std::array<Waiting, kAhead> waiting_{};
  std::size_t added_ = 0;
  std::size_t handled_ = 0;
};

}  // namespace sluice::agg

#include "dataplane/core/egress.h"

#include <bit>

#include "aggregator/base/check.h"

namespace sluice::dataplane {

std::span<const Egress::Item> Egress::take() noexcept {
  CHECK(taken_count_ == 0);
  taken_count_ = std::exchange(passing_count_, 0);
  if (taken_count_ == 0) {
    const std::size_t most = std::min<std::size_t>(burst_.size(), budget_);
    for (; taken_count_ < most && bucket_.ready(); ++taken_count_) {
      Item& item = burst_[taken_count_];
      if (!queue_.pop(item)) break;
      bucket_.spend(item.bytes + kWireOverheadBytes);
      touched_ |= std::uint64_t{1} << item.egress_class;
    }
  }
  budget_ -= static_cast<std::uint32_t>(taken_count_);
  return std::span(burst_).first(taken_count_);
}

void Egress::accept(std::size_t sent, TimeNs now) noexcept {
  CHECK(sent <= taken_count_);
  const std::span<const Item> burst = std::span(burst_).first(std::exchange(taken_count_, 0));
  std::uint64_t total_bytes = 0;
  // Neighbours in a burst mostly have one class and one waiting time: they are counted together.
  for (std::size_t at = 0; at < sent;) {
    const ClassIndex egress_class = burst[at].egress_class;
    const std::size_t bucket = WaitHistogram::bucket_of(now - burst[at].queued_at);
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t wait_ns = 0;
    do {
      ++packets;
      bytes += burst[at].bytes;
      wait_ns += static_cast<std::uint64_t>(now - burst[at].queued_at);
      ++at;
    } while (at < sent && burst[at].egress_class == egress_class &&
             WaitHistogram::bucket_of(now - burst[at].queued_at) == bucket);
    ClassCounters& counters = counters_.classes[egress_class];
    counters.tx_packets.add(packets);
    counters.tx_bytes.add(bytes);
    counters.waits.add(bucket, packets, wait_ns);
    total_bytes += bytes;
  }
  counters_.tx_packets.add(sent);
  counters_.tx_bytes.add(total_bytes);
  for (std::size_t at = burst.size(); at > sent; --at) {
    touched_ |= std::uint64_t{1} << burst[at - 1].egress_class;
    queue_.put_back(burst[at - 1]);
    bucket_.refund(burst[at - 1].bytes + kWireOverheadBytes);
  }
}

void Egress::publish_depth() noexcept {
  for (; touched_ != 0; touched_ &= touched_ - 1) {
    const auto egress_class = static_cast<ClassIndex>(std::countr_zero(touched_));
    ClassCounters& counters = counters_.classes[egress_class];
    counters.queue_packets.set(queue_.packets_of(egress_class));
    counters.queue_bytes.set(queue_.bytes_of(egress_class));
  }
  counters_.queue_packets.set(queue_.packets());
  counters_.queue_bytes.set(queue_.bytes());
}

}  // namespace sluice::dataplane

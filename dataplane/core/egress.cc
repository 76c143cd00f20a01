#include "dataplane/core/egress.h"

#include <bit>

#include "aggregator/base/check.h"

namespace sluice::dataplane {

std::size_t Egress::take(std::span<Item> burst) noexcept {
  if (passing_count_ != 0) {
    const std::size_t count = std::exchange(passing_count_, 0);
    CHECK(count <= burst.size());
    std::copy_n(passing_.begin(), count, burst.begin());
    budget_ -= static_cast<std::uint32_t>(count);
    return count;
  }
  const std::size_t most = std::min<std::size_t>(burst.size(), budget_);
  std::size_t count = 0;
  for (; count < most && bucket_.ready(); ++count) {
    if (!queue_.pop(burst[count])) break;
    bucket_.spend(burst[count].bytes + kWireOverheadBytes);
    touched_ |= std::uint64_t{1} << burst[count].egress_class;
  }
  budget_ -= static_cast<std::uint32_t>(count);
  return count;
}

void Egress::settle(std::span<const Item> burst, std::size_t sent, TimeNs now) noexcept {
  std::uint64_t total_bytes = 0;
  // Neighbours in a burst mostly are of one class and waited alike: they are counted together.
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

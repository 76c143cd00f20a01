// Counters with one writer and any number of readers.
//
// The writer (an lcore or the control thread) uses plain stores, no read-modify-write; the metrics
// thread reads at scrape and sums over lcores. A torn read is impossible, a stale one harmless.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/verdict.h"

namespace sluice {

class Counter {
 public:
  void add(std::uint64_t count) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t read() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// One counter for each value of an enumeration from 0 on.
template <class Reason, std::size_t kCount>
struct CountersBy {
  std::array<Counter, kCount> by_reason;
  void count(Reason reason, std::uint64_t count = 1) noexcept {
    by_reason[static_cast<std::size_t>(reason)].add(count);
  }
  std::uint64_t read(Reason reason) const noexcept {
    return by_reason[static_cast<std::size_t>(reason)].read();
  }
};
using VerdictCounters = CountersBy<Verdict, kVerdictCount>;

// Durations in fixed buckets: bucket i counts those up to kFirstNs * 2^i that are in no earlier
// bucket, the last one all others.
template <std::int64_t kFirstNs, std::size_t kBucketCount>
class BasicHistogram {
 public:
  static constexpr std::size_t kBuckets = kBucketCount;

  static constexpr std::int64_t bound_ns(std::size_t bucket) noexcept { return kFirstNs << bucket; }
  static constexpr std::size_t bucket_of(std::int64_t duration_ns) noexcept {
    const auto beyond = static_cast<std::uint64_t>(duration_ns > 0 ? duration_ns - 1 : 0);
    const auto bucket = static_cast<std::size_t>(std::bit_width(beyond / kFirstNs));
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  void observe(std::int64_t duration_ns) noexcept {
    add(bucket_of(duration_ns), 1,
        duration_ns > 0 ? static_cast<std::uint64_t>(duration_ns) : std::uint64_t{0});
  }
  // `count` durations that fall into one bucket.
  void add(std::size_t bucket, std::uint64_t count, std::uint64_t sum_ns) noexcept {
    buckets_[bucket].add(count);
    sum_ns_.add(sum_ns);
  }
  std::uint64_t bucket(std::size_t index) const noexcept { return buckets_[index].read(); }
  std::uint64_t sum_ns() const noexcept { return sum_ns_.read(); }

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter sum_ns_;
};

using Histogram = BasicHistogram<10'000, 24>;  // of steps: 10 us .. 84 s

}  // namespace sluice

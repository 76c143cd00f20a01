// Counters with one writer and any number of readers.
//
// The writer (an lcore or the control thread) uses plain stores, no read-modify-write; the metrics
// thread reads at scrape and sums over lcores. A torn read is impossible, a stale one harmless.
#pragma once

#include <array>
#include <atomic>
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

// One counter a verdict.
struct VerdictCounters {
  std::array<Counter, kVerdictCount> by_verdict;
  void count(Verdict verdict) noexcept { by_verdict[static_cast<std::size_t>(verdict)].add(1); }
  std::uint64_t read(Verdict verdict) const noexcept {
    return by_verdict[static_cast<std::size_t>(verdict)].read();
  }
};

// Fixed buckets; bound i is kFirstNs * 2^i, the last bucket takes the rest.
class Histogram {
 public:
  static constexpr std::size_t kBuckets = 24;
  static constexpr std::int64_t kFirstNs = 10'000;  // 10 us .. 84 s

  static constexpr std::int64_t bound_ns(std::size_t bucket) noexcept { return kFirstNs << bucket; }
  void observe(std::int64_t duration_ns) noexcept {
    std::size_t bucket = 0;
    while (bucket + 1 < kBuckets && duration_ns > bound_ns(bucket)) ++bucket;
    buckets_[bucket].add(1);
    sum_ns_.add(duration_ns > 0 ? static_cast<std::uint64_t>(duration_ns) : 0);
  }
  std::uint64_t bucket(std::size_t index) const noexcept { return buckets_[index].read(); }
  std::uint64_t sum_ns() const noexcept { return sum_ns_.read(); }

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter sum_ns_;
};

}  // namespace sluice

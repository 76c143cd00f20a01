// Builds one metric family row by row. Private to this folder.
#pragma once

#include <prometheus/metric_family.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/core/counters.h"
#include "dataplane/ops/sample.h"

namespace sluice::dataplane {

using Labels = std::vector<prometheus::ClientMetric::Label>;

class FamilyBuilder {
 public:
  FamilyBuilder(prometheus::MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }

  FamilyBuilder& row(Labels labels, double value) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    if (family_.type == prometheus::MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  FamilyBuilder& row(Labels labels, std::uint64_t value) {
    return row(std::move(labels), static_cast<double>(value));
  }

  FamilyBuilder& row(Labels labels, const HistogramSample& sample) {
    return histogram_row(
        std::move(labels), Histogram::kBuckets, Histogram::bound_ns,
        [&](std::size_t bucket) { return sample.buckets[bucket]; }, sample.sum_ns);
  }
  FamilyBuilder& row(Labels labels, const WaitHistogram& waits) {
    return histogram_row(
        std::move(labels), WaitHistogram::kBuckets, WaitHistogram::bound_ns,
        [&](std::size_t bucket) { return waits.bucket(bucket); }, waits.sum_ns());
  }

  prometheus::MetricFamily take() { return std::move(family_); }

 private:
  // The last bucket has no bound; `count_of(bucket)` is not cumulative.
  template <class CountOf>
  FamilyBuilder& histogram_row(Labels labels, std::size_t buckets,
                               DurationNs (*bound_ns)(std::size_t), CountOf&& count_of,
                               std::uint64_t sum_ns) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t total = 0;
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
      total += count_of(bucket);
      const bool last = bucket + 1 == buckets;
      metric.histogram.bucket.push_back(
          {total, last ? std::numeric_limits<double>::infinity()
                       : static_cast<double>(bound_ns(bucket)) * 1e-9});
    }
    metric.histogram.sample_count = total;
    metric.histogram.sample_sum = static_cast<double>(sum_ns) * 1e-9;
    family_.metric.push_back(std::move(metric));
    return *this;
  }

  prometheus::MetricFamily family_;
};

inline FamilyBuilder counter(std::string name, std::string help) {
  return {prometheus::MetricType::Counter, std::move(name), std::move(help)};
}
inline FamilyBuilder gauge(std::string name, std::string help) {
  return {prometheus::MetricType::Gauge, std::move(name), std::move(help)};
}
inline FamilyBuilder histogram(std::string name, std::string help) {
  return {prometheus::MetricType::Histogram, std::move(name), std::move(help)};
}

// "…: folded: contributions added into a sum; …" from a table of {label, help}.
template <class Table>
std::string help_of(std::string text, const Table& table) {
  const char* separator = " ";
  for (const auto& info : table) {
    text += separator;
    text.append(info.label).append(": ").append(info.help);
    separator = "; ";
  }
  return text;
}

}  // namespace sluice::dataplane

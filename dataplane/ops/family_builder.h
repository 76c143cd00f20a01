// Builds metric families from tables: a row names a metric and the function that reads it from a
// block; a function that visits the blocks is passed with the table. Private to this folder.
#pragma once

#include <prometheus/metric_family.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::dataplane {

using Families = std::vector<prometheus::MetricFamily>;
using Labels = std::vector<prometheus::ClientMetric::Label>;

// A row of a table of metrics. A name that ends in `_total` is a counter's, any other a gauge's. A
// NaN is an unknown value, which has no row.
template <class Block>
struct Metric {
  const char* name;
  const char* help;
  double (*value)(const Block&);
};

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

class FamilyBuilder {
 public:
  FamilyBuilder(std::string name, std::string help)
      : FamilyBuilder(name.ends_with("_total") ? prometheus::MetricType::Counter
                                               : prometheus::MetricType::Gauge,
                      name, std::move(help)) {}
  FamilyBuilder(prometheus::MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }

  void row(Labels labels, double value) {
    if (std::isnan(value)) return;
    prometheus::ClientMetric& metric = add(std::move(labels));
    if (family_.type == prometheus::MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
  }

  // Adds a histogram: of durations (a BasicHistogram, or a type with its members) in seconds, of
  // counts as they are. The last bucket has no bound.
  template <class Values>
  void histogram_row(Labels labels, const Values& values) {
    constexpr bool kDurations = requires { values.sum_ns(); };
    prometheus::ClientMetric& metric = add(std::move(labels));
    std::uint64_t total = 0;
    for (std::size_t bucket = 0; bucket < Values::kBuckets; ++bucket) {
      total += values.bucket(bucket);
      double bound = std::numeric_limits<double>::infinity();
      if (bucket + 1 != Values::kBuckets) {
        if constexpr (kDurations)
          bound = static_cast<double>(Values::bound_ns(bucket)) * 1e-9;
        else
          bound = Values::bound(bucket);
      }
      metric.histogram.bucket.push_back({total, bound});
    }
    metric.histogram.sample_count = total;
    if constexpr (kDurations)
      metric.histogram.sample_sum = static_cast<double>(values.sum_ns()) * 1e-9;
    else
      metric.histogram.sample_sum = values.sum();
  }

  prometheus::MetricFamily take() { return std::move(family_); }

 private:
  prometheus::ClientMetric& add(Labels labels) {
    family_.metric.emplace_back().label = std::move(labels);
    return family_.metric.back();
  }

  prometheus::MetricFamily family_;
};

// One family a row of `table`. `visit(f)` calls `f(labels, block)` for each block.
template <class Block, class Visit>
void add_families(std::span<const Metric<Block>> table, Visit&& visit, Families& families) {
  for (const Metric<Block>& metric : table) {
    FamilyBuilder family(metric.name, metric.help);
    visit([&](Labels labels, const Block& block) {
      family.row(std::move(labels), metric.value(block));
    });
    families.push_back(family.take());
  }
}

// A histogram of each block; `values_of` gets it from the block.
template <class Visit, class ValuesOf>
void add_histogram(const char* name, const char* help, Visit&& visit, ValuesOf&& values_of,
                   Families& families) {
  FamilyBuilder family(prometheus::MetricType::Histogram, name, help);
  visit([&](Labels labels, const auto& block) {
    family.histogram_row(std::move(labels), values_of(block));
  });
  families.push_back(family.take());
}

// "...: folded: contributions added into a sum; ..." from a table of {label, help}.
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

// An appliance's counters, a control side, and the page of metrics over both.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dataplane/ops/endpoint.h"
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::dataplane {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Metrics : public agg::ControlTest {
 protected:
  PortCounters left, right, right_too;
  LcoreCounters lcore;
  agg::Shard shard{ShardId{0}};
  VerdictCounters junk;
  DropCounters control_drops;

  MetricsSource source() {
    return {.blocks = {.ports = {{"left", {&left}}, {"right", {&right, &right_too}}},
                       .lcores = {{&lcore, &shard}},
                       .control_junk = &junk,
                       .control_drops = &control_drops},
            .buffers = [] { return BufferUse{.in_use = 3, .capacity = 8}; },
            .inspect =
                [this](const MetricsSource::Inspection& inspection) {
                  inspection(jobs, now);
                  return true;
                }};
  }

  std::unique_ptr<MetricsEndpoint> endpoint() {
    auto started = MetricsEndpoint::start("127.0.0.1:0", source());
    EXPECT_TRUE(started.ok()) << started.status().message();
    return std::move(started).value();
  }

  Families page() { return MetricsCollector(source()).Collect(); }

  static const MetricFamily* find(const Families& families, const std::string& name) {
    for (const MetricFamily& family : families)
      if (family.name == name) return &family;
    ADD_FAILURE() << "no family " << name;
    return nullptr;
  }

  static std::string label(const ClientMetric& metric, const std::string& name) {
    for (const auto& one : metric.label)
      if (one.name == name) return one.value;
    return {};
  }

  // The value of the row with all these labels, or nothing.
  static std::optional<double> value(const Families& families, const std::string& name,
                                     const std::map<std::string, std::string>& labels = {}) {
    const MetricFamily* family = find(families, name);
    if (family == nullptr) return {};
    for (const ClientMetric& metric : family->metric) {
      bool same = true;
      for (const auto& [key, wanted] : labels) same &= label(metric, key) == wanted;
      if (same)
        return family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
    return {};
  }
};

}  // namespace sluice::dataplane

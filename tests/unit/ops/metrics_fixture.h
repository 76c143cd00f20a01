// An appliance's counters, a control side, and the page of metrics over both.
#pragma once

#include <gtest/gtest.h>

#include <array>
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
    auto started = MetricsEndpoint::start({.address = "127.0.0.1:0"}, source());
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

  // The value of the row with all these labels, if there is one.
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

// Two ranks and two layers of one block, in a shard each, with all initial parameters.
class StoreMetrics : public Metrics {
 protected:
  StoreMetrics() {
    for (std::uint16_t rank : {0, 1}) {
      agg::Worker worker{.rank = rank, .name = "store"};
      worker.join.layouts[0] = {.hash = 5, .chunk_count = 2 * kChunksPerBlock, .max_elems = 1};
      worker.join.kind = JobKind::kStore;
      worker.join.store.bound = 2;
      EXPECT_TRUE(join(worker).is(wire::PacketType::kAccept));
      workers.push_back(worker);
    }
    for (std::uint32_t block : {0u, 1u}) push(0, 0, block);
  }
  agg::StoreShard& store(std::uint32_t block) { return *commands[0].job->slices[block].store; }
  void push(std::uint16_t rank, Step iteration, std::uint32_t block) {
    const std::array<std::uint8_t, 4> zero{};
    store(block).push({.rank = Rank{rank},
                       .iteration = iteration,
                       .chunk = block * kChunksPerBlock,
                       .block_chunks = 1,
                       .values = zero,
                       .now = now});
  }
  void pull(std::uint16_t rank, std::uint32_t block, Step need, Step own) {
    store(block).pull({.rank = Rank{rank},
                       .block = block,
                       .chunks = 1,
                       .need = need,
                       .own = own,
                       .priority = static_cast<Priority>(block),
                       .now = now});
  }
  std::vector<agg::Worker> workers;
  const std::map<std::string, std::string> job{{"job", "store"}};
  static std::map<std::string, std::string> layer(const char* index) {
    return {{"job", "store"}, {"layer", index}};
  }
};

}  // namespace sluice::dataplane

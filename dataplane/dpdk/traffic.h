// What a reload changes in the packet path: classes and rules, and each port's queue and rate.
//
// An immutable snapshot. The main thread makes and publishes one; each worker takes it over between
// two rounds, and says so; then the one before is freed.
#pragma once

#include <vector>

#include "config/config.h"
#include "dataplane/core/classifier.h"
#include "dataplane/core/egress.h"

namespace sluice::dataplane {

struct Traffic {
  Classifier classifier;
  std::vector<Egress::Options> egress;  // of each port, by its index
};

// `max_frame_bytes`: of the port.
Egress::Options egress_options(const config::PortConfig& port, std::uint32_t max_frame_bytes,
                               const config::Config& appliance);
std::vector<TrafficRule> traffic_rules(const std::vector<config::RuleConfig>& configs);

}  // namespace sluice::dataplane

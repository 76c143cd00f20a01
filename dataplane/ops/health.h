// Whether the box can serve new work, and why not: for /readyz, the gauge sluice_ready, sluicectl
// and the service manager.
//
// Reads counter blocks only. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dataplane/core/counters.h"
#include "dataplane/ops/family_builder.h"

namespace sluice::dataplane {

// One reason a line, each with the name of its port. Empty: the box is ready. A vhost-user port
// without a peer is ready for one.
std::vector<std::string> why_not_ready(const CounterBlocks& blocks, bool draining);

// The reasons as one line, separated by "; ".
std::string join_reasons(const std::vector<std::string>& reasons);

// When this process started, in seconds since 1970, as the kernel says; 0: not known.
double process_start_time_s();

// The version, the start and the readiness of the box.
void add_box_families(bool ready, double start_time_s, Families& families);

// The release, as `sluiced --version` prints it.
std::string_view version() noexcept;

}  // namespace sluice::dataplane

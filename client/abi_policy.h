// A policy's options between the C interface's structs, text, and what a join carries; all by the
// one table, aggregator/base/policy_fields.h. Cold; on the caller's thread.
#pragma once

#include "aggregator/base/policy_options.h"
#include "client/include/sluice/sluice.h"
#include "client/job.h"

namespace sluice::client {

sluice_policy_options default_policy();
// The options that the policy reads, checked; the others are ignored, as the appliance does.
Status read_policy(const sluice_policy_options& options, std::uint32_t world_size,
                   SessionOptions& session);
sluice_policy_options policy_of(const PolicyOptions& policy);

}  // namespace sluice::client

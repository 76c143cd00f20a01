// A policy's options between the C interface's structs, text, and what a join carries; all by the
// one table, aggregator/base/policy_fields.h. Cold; on the caller's thread.
#pragma once

#include "aggregator/base/policy_options.h"
#include "client/include/sluice/sluice.h"
#include "client/job.h"

namespace sluice::client {

void set_default_policy(sluice_options& options);
// The options that the policy reads, checked; the others are ignored, as the appliance does.
Status read_policy(const sluice_options& options, SessionOptions& session);
void tell_policy(const PolicyOptions& policy, sluice_policy_info& info);

}  // namespace sluice::client

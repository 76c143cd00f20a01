// What a caller of the C interface asks for of a parameter store. Cold; on the caller's thread.
#pragma once

#include "client/include/sluice/sluice.h"
#include "client/job.h"

namespace sluice::client {

void set_default_store(sluice_options& options);
// Nothing where the job is one of sums; then the fields of a store have their defaults.
Status read_store(const sluice_options& options, SessionOptions& session);

}  // namespace sluice::client

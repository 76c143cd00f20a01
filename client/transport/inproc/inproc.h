// An appliance inside this process: the aggregator's own objects, driven under a mutex by the
// progress threads of its workers. For tests, and for a laptop without an appliance.
//
// Together with served.h the only part of the client that runs the aggregator. Workers find the
// appliance by its name in a table of the process; the first worker creates it (with its secret),
// the last one destroys it.
#pragma once

#include <memory>
#include <string>

#include "aggregator/base/status.h"
#include "client/transport/transport.h"

namespace sluice::client {

struct InprocOptions {
  std::string name;
  std::string secret;  // of the appliance, if this worker creates it
  std::size_t mtu_bytes = 1500;
};

Result<std::unique_ptr<Transport>> open_inproc(const InprocOptions& options);

}  // namespace sluice::client

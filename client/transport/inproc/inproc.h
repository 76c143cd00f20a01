// An appliance inside this process: the aggregator's own objects, driven under a mutex by the
// progress threads of its workers. For tests, and for a laptop without an appliance.
//
// The only part of the client that links the aggregator. Workers find the appliance by name in a
// table of this process; the first worker makes it (with its secret), the last one takes it down.
#pragma once

#include <memory>
#include <string>

#include "aggregator/base/status.h"
#include "client/transport/transport.h"

namespace sluice::client {

struct InprocOptions {
  std::string name;
  std::string secret;  // of the appliance, if this worker is the one that makes it
  std::size_t mtu_bytes = 1500;
};

Result<std::unique_ptr<Transport>> open_inproc(const InprocOptions& options);

}  // namespace sluice::client

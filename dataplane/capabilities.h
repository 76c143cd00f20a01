// Capabilities of this process (capabilities(7)): given up once they are no longer needed.
//
// Called once, by the main thread. No DPDK.
#pragma once

#include <cstdint>

#include "aggregator/base/status.h"

namespace sluice::dataplane {

using CapabilitySet = std::uint64_t;  // bit n: the capability of this number in linux/capability.h

// From now on no thread of this process has another capability than those of `keep`, and no program
// that it starts can gain one. Threads that are there lose theirs too: Linux keeps capabilities by
// thread, and DPDK has made some. Waits until each has; kIoError when one does not within 10 s.
// Uses SIGUSR2.
Status keep_capabilities(CapabilitySet keep);

}  // namespace sluice::dataplane

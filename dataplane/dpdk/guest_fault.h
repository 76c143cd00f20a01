// Survives a vhost-user peer that cuts off the memory that it shares with the appliance.
//
// Guest memory is a file of the peer. A read behind an end that the peer has moved raises SIGBUS,
// which would end the appliance with all jobs. A seal of the file would prevent that, but can't be
// required: QEMU seals its memfd, DPDK's virtio-user does not, and files on hugetlbfs can't be
// sealed. So the handler here maps zeros over the peer's mapping and notes its address range; the
// port is then taken down (Port::refresh). A fault anywhere else ends the process as before.
#pragma once

#include <cstdint>

#include "aggregator/base/status.h"

namespace sluice::dataplane {

struct AddressRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// Installs the handler. Main thread, after DPDK's environment is up and before a port can have a
// peer: shared mappings that exist by then are the appliance's own and are never covered.
Status handle_guest_faults();
// The number of mappings that were covered so far. Any thread.
std::uint32_t guest_faults() noexcept;
// The mapping that was covered at the fault with this number, which is below guest_faults(). Only
// the newest 64 are kept.
AddressRange guest_fault(std::uint32_t number) noexcept;

}  // namespace sluice::dataplane

// Outlives a vhost-user peer that takes away the memory that it shares with us.
//
// Guest memory is a file of the peer's, and a read of what the peer has cut off raises SIGBUS,
// which would end the appliance with all jobs. Sealing the file against that can't be asked for:
// QEMU seals its memfd, DPDK's virtio-user and files on hugetlbfs can't be sealed. So the handler
// here maps zeros over the peer's mapping and notes which one it was; the port is then taken down
// (Port::refresh). A fault anywhere else ends the process as before.
#pragma once

#include <cstdint>

#include "aggregator/base/status.h"

namespace sluice::dataplane {

struct AddressRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// Main thread, after DPDK's environment is up and before a port can have a peer: what is mapped
// shared by then is our own and never covered.
Status handle_guest_faults();
// Mappings that were covered so far. Any thread.
std::uint32_t guest_faults() noexcept;
// The mapping of the fault with this number, below guest_faults(). Only the newest 64 are kept.
AddressRange guest_fault(std::uint32_t number) noexcept;

}  // namespace sluice::dataplane

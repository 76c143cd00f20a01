// Whether a network interface of the kernel has a link.
//
// DPDK 22.11 calls the link of an af_packet port up whatever the interface says. Any thread.
#pragma once

#include <string>

namespace sluice::dataplane {

// False also if there is no such interface any more.
bool has_carrier(const std::string& interface) noexcept;

}  // namespace sluice::dataplane

// A network interface of the kernel below a port: its link, and frames for any address.
//
// DPDK 22.11 calls the link of an af_packet port up whatever the interface says. Any thread.
#pragma once

#include <string>

namespace sluice::dataplane {

// False also if there is no such interface any more.
bool has_carrier(const std::string& interface) noexcept;

// The interface hands frames for every address to this AF_PACKET socket until the socket is closed,
// however its process ends. DPDK's way sets a flag of the interface, which stays set if the process
// is killed, and which only CAP_NET_ADMIN takes back. False: the kernel refuses.
bool receive_all_by(int packet_socket, const std::string& interface) noexcept;

}  // namespace sluice::dataplane

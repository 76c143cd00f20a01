#include "dataplane/dpdk/carrier.h"

#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sluice::dataplane {

bool has_carrier(const std::string& interface) noexcept {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;  // nothing is known
  ifreq request{};
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  const bool found = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  close(fd);
  return found && (request.ifr_flags & IFF_RUNNING) != 0;
}

bool receive_all_by(int packet_socket, const std::string& interface) noexcept {
  packet_mreq request{};
  request.mr_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  request.mr_type = PACKET_MR_PROMISC;
  return setsockopt(packet_socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, sizeof request) ==
         0;
}

}  // namespace sluice::dataplane

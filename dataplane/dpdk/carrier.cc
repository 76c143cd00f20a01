#include "dataplane/dpdk/carrier.h"

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

}  // namespace sluice::dataplane

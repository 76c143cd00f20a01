#include "dataplane/ops/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sluice::dataplane {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

ServiceManager::ServiceManager(std::string socket, std::string_view watchdog_us)
    : socket_(std::move(socket)) {
  std::uint64_t allowed_us = 0;
  std::from_chars(watchdog_us.data(), watchdog_us.data() + watchdog_us.size(), allowed_us);
  if (!socket_.empty()) alive_every_ = std::chrono::microseconds(allowed_us / 2);
}

// WATCHDOG_PID may name another process, which inherited the rest.
ServiceManager ServiceManager::from_environment() {
  const std::string pid = variable("WATCHDOG_PID");
  const bool ours = pid.empty() || pid == std::to_string(getpid());
  return {variable("NOTIFY_SOCKET"), ours ? variable("WATCHDOG_USEC") : ""};
}

void ServiceManager::reloading() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto usec = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
                    static_cast<std::uint64_t>(now.tv_nsec) / 1000;
  send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(usec));
}

void ServiceManager::send(const std::string& state) const {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  // A manager that is gone is no reason to stop.
  (void)sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size()));
  close(fd);
}

}  // namespace sluice::dataplane

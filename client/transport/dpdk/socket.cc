#include "client/transport/dpdk/socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

namespace sluice::client {
namespace {

constexpr std::chrono::milliseconds kUnblockInterval{20};

}  // namespace

Result<SocketId> find_socket(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Status(StatusCode::kInvalidArgument,
                  "the socket path " + path + " is longer than the system allows");
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Status(StatusCode::kNotFound,
                  "vhost-user socket " + path + ": " + std::strerror(errno) +
                      "; is the appliance running, and is this one of its ports?");
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Status(StatusCode::kInvalidArgument,
                  path + " is not a socket; use a port of the appliance");
  }
  return SocketId{info.st_dev, info.st_ino};
}

Result<OwnedFd> claim_socket(const std::string& path, SocketId id) {
  OwnedFd claim(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const int length = std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "sluice-%llx-%llx",
                                   static_cast<unsigned long long>(id.device),
                                   static_cast<unsigned long long>(id.inode));
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (::bind(claim.get(), reinterpret_cast<const sockaddr*>(&name), bytes) == 0) return claim;
  if (errno == EADDRINUSE) {
    return Status(StatusCode::kRefused, "vhost-user socket " + path +
                                            " is in use by another process of this machine; the "
                                            "jobs of a process may share a port, each process "
                                            "needs one of its own");
  }
  return Status(StatusCode::kIoError,
                "vhost-user socket " + path + " cannot be claimed: " + std::strerror(errno));
}

std::vector<int> descriptors_of(const std::string& path) {
  std::vector<int> found;
  DIR* const directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return found;
  while (const dirent* entry = ::readdir(directory)) {
    sockaddr_un peer{};
    socklen_t bytes = sizeof peer;
    const int fd = std::atoi(entry->d_name);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
        peer.sun_family == AF_UNIX && path == peer.sun_path) {
      found.push_back(fd);
    }
  }
  ::closedir(directory);
  return found;
}

std::vector<OwnedFd> duplicate(const std::vector<int>& fds) {
  std::vector<OwnedFd> copies;
  for (const int fd : fds) {
    if (OwnedFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); copy) copies.push_back(std::move(copy));
  }
  return copies;
}

void shut_down(const std::vector<OwnedFd>& fds) noexcept {
  for (const OwnedFd& fd : fds) ::shutdown(fd.get(), SHUT_RDWR);
}

void run_bounded(std::chrono::milliseconds limit, const std::function<void()>& action,
                 const std::function<void()>& unblock) {
  std::packaged_task<void()> task(action);
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  while (done.wait_for(limit) == std::future_status::timeout) {
    unblock();
    limit = kUnblockInterval;
  }
  thread.join();
}

}  // namespace sluice::client

#include "dataplane/ops/control_socket.h"

#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

namespace sluice::dataplane {
namespace {

constexpr std::size_t kMostRequestBytes = 4096;
constexpr timeval kPatience{.tv_sec = 2, .tv_usec = 0};
constexpr int kBacklog = 8;

Status failed(const char* setting, const std::string& value, const std::string& why,
              const char* remedy) {
  return Status(StatusCode::kIoError, "the control socket: control." + std::string(setting) +
                                          " = \"" + value + "\": " + why + "; " + remedy);
}

std::optional<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.empty() || path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool answers(const sockaddr_un& address) noexcept {
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(probe);
  return connected;
}

// Up to the end of the stream. Nothing: too long, or too slow.
std::optional<std::string> read_request(int peer) {
  std::string text;
  char part[1024];
  for (;;) {
    const ssize_t bytes = recv(peer, part, sizeof part, 0);
    if (bytes == 0) return text;
    if (bytes < 0 || text.size() + static_cast<std::size_t>(bytes) > kMostRequestBytes) return {};
    text.append(part, static_cast<std::size_t>(bytes));
  }
}

ControlSocket::Words words_of(const std::string& text) {
  ControlSocket::Words words;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

}  // namespace

Status ControlSocket::listen_as(const ControlSocketOptions& options) {
  const auto address = address_of(path_);
  if (!address) return failed("socket", path_, "too long", "give a path of at most 107 bytes");
  uid_t owner = static_cast<uid_t>(-1);
  gid_t group = static_cast<gid_t>(-1);
  if (!options.owner.empty()) {
    const passwd* entry = getpwnam(options.owner.c_str());
    if (entry == nullptr)
      return failed("owner", options.owner, "no such user", "give a user of this host");
    owner = entry->pw_uid;
  }
  if (!options.group.empty()) {
    const ::group* entry = getgrnam(options.group.c_str());
    if (entry == nullptr)
      return failed("group", options.group, "no such group", "give a group of this host");
    group = entry->gr_gid;
  }
  struct stat info;
  if (lstat(path_.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode))
      return failed("socket", path_, "a file that is no socket", "choose another path");
    if (answers(*address))
      return failed("socket", path_, "another process answers there",
                    "end that process, or choose another path");
    unlink(path_.c_str());
  }
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bound_ = bind(listener_, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0;
  if (!bound_)
    return failed("socket", path_, std::strerror(errno), "give a path in a folder of this process");
  // Nobody can connect before listen(), so nobody slips in under the mode that bind() gave.
  if (chown(path_.c_str(), owner, group) != 0)
    return failed(options.group.empty() ? "owner" : "group",
                  options.group.empty() ? options.owner : options.group, std::strerror(errno),
                  "the process must be in that group, or may be root");
  if (chmod(path_.c_str(), options.mode) != 0 || listen(listener_, kBacklog) != 0)
    return failed("socket", path_, std::strerror(errno), "choose another path");
  return Status();
}

Result<std::unique_ptr<ControlSocket>> ControlSocket::start(const ControlSocketOptions& options,
                                                            Answer answer) {
  std::unique_ptr<ControlSocket> made(new ControlSocket(options.path, std::move(answer)));
  if (Status status = made->listen_as(options); !status.ok()) return status;
  made->stop_ = eventfd(0, EFD_CLOEXEC);
  made->thread_ = std::thread([socket = made.get()] { socket->run(); });
  return made;
}

ControlSocket::~ControlSocket() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  if (bound_) unlink(path_.c_str());
  for (const int descriptor : {listener_, stop_})
    if (descriptor >= 0) close(descriptor);
}

void ControlSocket::run() const {
  pollfd watched[] = {{.fd = listener_, .events = POLLIN, .revents = 0},
                      {.fd = stop_, .events = POLLIN, .revents = 0}};
  for (;;) {
    if (poll(watched, 2, -1) < 0) continue;
    if (watched[1].revents != 0) return;
    if (watched[0].revents == 0) continue;
    const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) continue;
    serve(peer);
    close(peer);
  }
}

void ControlSocket::serve(int peer) const {
  setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  const auto request = read_request(peer);
  if (!request) return;
  const std::string answer = answer_(words_of(*request)) + "\n";
  for (std::size_t sent = 0; sent < answer.size();) {
    const ssize_t bytes = send(peer, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (bytes <= 0) return;
    sent += static_cast<std::size_t>(bytes);
  }
}

}  // namespace sluice::dataplane

// What every UDP socket of the client needs: addresses, options, a receive buffer.
//
// Used while a socket is opened, on any thread; resolve() may block as long as the system's
// resolver does.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "aggregator/base/status.h"

namespace sluice::client {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  int family() const noexcept { return storage.ss_family; }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  void set_port(std::uint16_t port) noexcept;
  bool same_host(const sockaddr_storage& other) const noexcept;
  bool needs_interface() const noexcept;  // IPv6's link-local ones do, and this one names none
  std::string text() const;               // "10.0.0.2:40000", "[::1]:40000"
};

// `what`, and the reason that errno has.
Status io_error(const std::string& what);

// `family`: AF_UNSPEC for either. `flags`: as getaddrinfo's.
Result<SocketAddress> resolve(const std::string& host, std::uint16_t port, int family, int flags);

// For options that make things better, not possible: a kernel without one of them still works.
void set_int(int fd, int level, int name, int value) noexcept;
int get_int(int fd, int level, int name) noexcept;

// "Don't fragment", where only the interface's MTU refuses a datagram, and ECT(0).
void mark_datagrams(int fd, int family) noexcept;
// As far as the system allows.
void grow_receive_buffer(int fd) noexcept;

}  // namespace sluice::client

// Addresses, options and receive buffers of the UDP sockets of the client.
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
  bool needs_interface() const noexcept;  // an IPv6 link-local address that names no interface
  std::string text() const;               // "10.0.0.2:40000", "[::1]:40000"
};

// A Status of `what` and the reason in errno.
Status io_error(const std::string& what);

// Resolves the host. `family`: AF_UNSPEC for either. `flags`: those of getaddrinfo().
Result<SocketAddress> resolve(const std::string& host, std::uint16_t port, int family, int flags);

// For options that are an improvement only: failures are ignored, so a kernel without them works.
void set_int(int fd, int level, int name, int value) noexcept;
int get_int(int fd, int level, int name) noexcept;

// Sets "don't fragment", with which only the interface's MTU makes a send fail, and ECT(0).
void mark_datagrams(int fd, int family) noexcept;
// Enlarges the receive buffer as far as the system allows.
void grow_receive_buffer(int fd) noexcept;
// What the user does when it holds less than that asks for; empty: it does not.
std::string way_to_grow_receive_buffer(std::size_t buffer_bytes);

}  // namespace sluice::client

#include "client/transport/udp/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "aggregator/wire/inet.h"

namespace sluice::client {
namespace {

constexpr int kReceiveBufferBytes = 8 << 20;

}  // namespace

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  }
}

bool SocketAddress::same_host(const sockaddr_storage& other) const noexcept {
  if (other.ss_family != storage.ss_family) return false;
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(other).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(other).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

bool SocketAddress::needs_interface() const noexcept {
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(storage);
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr) && ipv6.sin6_scope_id == 0;
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN + 1> host{};
  std::array<char, 8> port{};
  if (::getnameinfo(get(), bytes, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  std::string text = family() == AF_INET6 ? "[" : "";
  text.append(host.data()).append(family() == AF_INET6 ? "]:" : ":").append(port.data());
  return text;
}

Status io_error(const std::string& what) {
  return {StatusCode::kIoError, what + ": " + std::strerror(errno)};
}

Result<SocketAddress> resolve(const std::string& host, std::uint16_t port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) {
    return Status(StatusCode::kNotFound, "host \"" + host +
                                             "\" cannot be resolved: " + ::gai_strerror(rc) +
                                             "; check the name or write the IP address");
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.bytes = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

void set_int(int fd, int level, int name, int value) noexcept {
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

int get_int(int fd, int level, int name) noexcept {
  int value = 0;
  socklen_t bytes = sizeof value;
  return ::getsockopt(fd, level, name, &value, &bytes) == 0 ? value : 0;
}

// "Probe": a path MTU that an ICMP packet claims may be forged.
void mark_datagrams(int fd, int family) noexcept {
  if (family == AF_INET) {
    set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    set_int(fd, IPPROTO_IP, IP_TOS, wire::kEcnCapable);
  } else {
    set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
    set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, wire::kEcnCapable);
  }
}

void grow_receive_buffer(int fd) noexcept {
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBufferBytes,
                   sizeof kReceiveBufferBytes) != 0)
    set_int(fd, SOL_SOCKET, SO_RCVBUF, kReceiveBufferBytes);
}

std::string way_to_grow_receive_buffer(std::size_t buffer_bytes) {
  // The kernel doubles what is asked for, and reports that.
  constexpr std::size_t kGranted = 2 * std::size_t{kReceiveBufferBytes};
  if (buffer_bytes >= kGranted) return {};
  return "net.core.rmem_max holds it at " + std::to_string(buffer_bytes / 2) +
         " bytes; on this host: sysctl -w net.core.rmem_max=" + std::to_string(kReceiveBufferBytes);
}

}  // namespace sluice::client

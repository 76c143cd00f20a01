#include "bench/trains.h"

#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sluice::bench {
namespace {

constexpr int kBufferBytes = 8 << 20;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace

TrainSocket::TrainSocket(std::uint16_t port, bool trains, bool must_bind)
    : trains_(trains),
      slot_bytes_(trains ? 65536 : 2048),
      messages_(trains ? kBatch : kMessages),
      fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      bytes_(messages_ * slot_bytes_) {
  if (fd_ < 0) die("bench_client: socket");
  sockaddr_in local{.sin_family = AF_INET,
                    .sin_port = htons(port),
                    .sin_addr = {htonl(INADDR_LOOPBACK)},
                    .sin_zero = {}};
  socklen_t size = sizeof local;
  if (::bind(fd_, reinterpret_cast<sockaddr*>(&local), size) != 0) {
    if (must_bind) die("bench_client: bind");
    return;
  }
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &size);
  port_ = ntohs(local.sin_port);
  if (::setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &kBufferBytes, sizeof kBufferBytes) != 0)
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  const int on = 1;
  if (trains_ && ::setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &on, sizeof on) != 0)
    die("bench_client: UDP_GRO");
  for (std::size_t i = 0; i < messages_; ++i) rx_iov_[i] = {slot(static_cast<int>(i)), slot_bytes_};
}

TrainSocket::~TrainSocket() { ::close(fd_); }

int TrainSocket::receive_messages() {
  for (std::size_t i = 0; i < messages_; ++i)
    rx_[i].msg_hdr = {.msg_name = &from_[i],
                      .msg_namelen = sizeof from_[i],
                      .msg_iov = &rx_iov_[i],
                      .msg_iovlen = 1,
                      .msg_control = trains_ ? control_[i].data() : nullptr,
                      .msg_controllen = trains_ ? control_[i].size() : 0,
                      .msg_flags = 0};
  const int count =
      ::recvmmsg(fd_, rx_.data(), static_cast<unsigned>(messages_), MSG_DONTWAIT, nullptr);
  if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNREFUSED)
    die("bench_client: recvmmsg");
  return std::max(count, 0);
}

std::size_t TrainSocket::segment_bytes(int i) {
  msghdr& message = rx_[i].msg_hdr;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part))
    if (part->cmsg_level == IPPROTO_UDP && part->cmsg_type == UDP_GRO) {
      int bytes = 0;
      std::memcpy(&bytes, CMSG_DATA(part), sizeof bytes);
      return static_cast<std::size_t>(bytes);
    }
  return rx_[i].msg_len;
}

std::size_t TrainSocket::send(std::span<const Gathered> datagrams, const sockaddr_in& to) {
  return trains_ ? send_train(datagrams, to) : send_burst(datagrams, to);
}

std::size_t TrainSocket::send_train(std::span<const Gathered> datagrams, const sockaddr_in& to) {
  const std::size_t count = std::min(datagrams.size(), kTrainDatagrams);
  std::size_t pieces = 0;
  for (const Gathered& one : datagrams.first(count)) {
    tx_iov_[pieces++] = {const_cast<std::uint8_t*>(one.header.data()), one.header.size()};
    if (!one.payload.empty())
      tx_iov_[pieces++] = {const_cast<std::uint8_t*>(one.payload.data()), one.payload.size()};
  }
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  msghdr message{.msg_name = const_cast<sockaddr_in*>(&to),
                 .msg_namelen = sizeof to,
                 .msg_iov = tx_iov_.data(),
                 .msg_iovlen = pieces,
                 .msg_control = control.data(),
                 .msg_controllen = control.size(),
                 .msg_flags = 0};
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = IPPROTO_UDP;
  part->cmsg_type = UDP_SEGMENT;
  part->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto segment = static_cast<std::uint16_t>(datagrams.front().bytes());
  std::memcpy(CMSG_DATA(part), &segment, sizeof segment);
  if (::sendmsg(fd_, &message, MSG_DONTWAIT) >= 0) return count;
  if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) die("bench_client: sendmsg");
  return 0;
}

std::size_t TrainSocket::send_burst(std::span<const Gathered> datagrams, const sockaddr_in& to) {
  const std::size_t count = std::min(datagrams.size(), kBurstDatagrams);
  for (std::size_t i = 0; i < count; ++i) {
    const Gathered& one = datagrams[i];
    tx_iov_[2 * i] = {const_cast<std::uint8_t*>(one.header.data()), one.header.size()};
    tx_iov_[2 * i + 1] = {const_cast<std::uint8_t*>(one.payload.data()), one.payload.size()};
    tx_[i].msg_hdr = {.msg_name = const_cast<sockaddr_in*>(&to),
                      .msg_namelen = sizeof to,
                      .msg_iov = &tx_iov_[2 * i],
                      .msg_iovlen = 2,
                      .msg_control = nullptr,
                      .msg_controllen = 0,
                      .msg_flags = 0};
  }
  const int sent = ::sendmmsg(fd_, tx_.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) die("bench_client: sendmmsg");
  return 0;
}

void TrainSocket::wait(int timeout_ms, bool to_send) {
  pollfd one{fd_, static_cast<short>(POLLIN | (to_send ? POLLOUT : 0)), 0};
  ::poll(&one, 1, timeout_ms);
}

}  // namespace sluice::bench

#include "client/transport/udp/trains.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cstring>

// Linux's, where the C library's headers are older.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace sluice::client {

std::string refused_trains(const std::string& way, int error) {
  return "datagrams " + way + " leave one by one from now on, which costs more processor time: " +
         "several at once (UDP_SEGMENT) were refused: " + std::string(std::strerror(error)) +
         "; look whether the interface computes checksums (ethtool -k, tx-checksumming)";
}

std::size_t train_length(std::span<const Outgoing> datagrams) noexcept {
  const Outgoing& first = datagrams.front();
  const std::size_t segment = first.total_bytes();
  const std::size_t longest = std::min({datagrams.size(), kMaxTrain, kMaxTrainBytes / segment});
  std::size_t count = 1;
  while (count < longest && datagrams[count].port_offset == first.port_offset &&
         datagrams[count].address == first.address && datagrams[count].total_bytes() <= segment) {
    if (datagrams[count++].total_bytes() < segment) break;
  }
  return count;
}

bool TrainSender::offered(int fd) noexcept {
  int value = 0;
  socklen_t bytes = sizeof value;
  return ::getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &value, &bytes) == 0;
}

void TrainSender::fill(std::span<const Outgoing> train, std::size_t& piece) noexcept {
  msghdr& message = messages_[count_].msg_hdr;
  message = {.msg_iov = &pieces_[piece]};
  for (const Outgoing& datagram : train) {
    pieces_[piece++] = {datagram.data, datagram.bytes};
    if (!datagram.payload.empty())
      pieces_[piece++] = {const_cast<std::uint8_t*>(datagram.payload.data()),
                          datagram.payload.size()};
  }
  message.msg_iovlen = static_cast<std::size_t>(&pieces_[piece] - message.msg_iov);
  trains_of_[count_] = static_cast<std::uint16_t>(train.size());
  if (train.size() == 1) return;
  message.msg_control = control_[count_].bytes.data();
  message.msg_controllen = sizeof control_[count_].bytes;
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = IPPROTO_UDP;
  part->cmsg_type = UDP_SEGMENT;
  part->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto segment = static_cast<std::uint16_t>(train.front().total_bytes());
  std::memcpy(CMSG_DATA(part), &segment, sizeof segment);
}

bool TrainReceiver::switch_on(int fd) noexcept {
  const int on = 1;
  return ::setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
}

TrainReceiver::TrainReceiver()
    : bytes_(std::make_unique_for_overwrite<std::uint8_t[]>(kSlots * kSlotBytes)) {
  for (std::size_t i = 0; i < kSlots; ++i) pieces_[i] = {&bytes_[i * kSlotBytes], kSlotBytes};
}

bool TrainReceiver::fetch(int fd) noexcept {
  if (next_ < count_) return true;
  next_ = count_ = 0;
  for (std::size_t i = 0; i < asked_; ++i)
    messages_[i].msg_hdr = {.msg_name = &from_[i],
                            .msg_namelen = sizeof from_[i],
                            .msg_iov = &pieces_[i],
                            .msg_iovlen = 1,
                            .msg_control = control_[i].bytes.data(),
                            .msg_controllen = sizeof control_[i].bytes};
  const int count =
      ::recvmmsg(fd, messages_.data(), static_cast<unsigned>(asked_), MSG_DONTWAIT, nullptr);
  if (count <= 0) return false;
  count_ = static_cast<std::size_t>(count);
  // The kernel reports no number before the first drop.
  if (const int drops = told(count_ - 1, SOL_SOCKET, SO_RXQ_OVFL); drops != 0)
    dropped_ = static_cast<std::uint32_t>(drops);
  // About a burst the next time, so that datagrams are still in the cache when they are read.
  std::size_t datagrams = 0;
  for (std::size_t i = 0; i < count_; ++i)
    datagrams += std::max<std::size_t>(messages_[i].msg_len, 1) / segment_bytes(i);
  asked_ =
      std::clamp<std::size_t>(kBurst * count_ / std::max<std::size_t>(datagrams, 1), 2, kSlots);
  return true;
}

bool TrainReceiver::intact(std::size_t message) const noexcept {
  return (messages_[message].msg_hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
         segment_bytes(message) <= kLargestDatagram;
}

int TrainReceiver::told(std::size_t message, int level, int type) const noexcept {
  auto* const header = const_cast<msghdr*>(&messages_[message].msg_hdr);
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != level || part->cmsg_type != type) continue;
    int value = 0;
    std::memcpy(&value, CMSG_DATA(part), sizeof value);
    return value;
  }
  return 0;
}

// The length of all datagrams of the message but the last; of a single one its own.
std::size_t TrainReceiver::segment_bytes(std::size_t message) const noexcept {
  const std::size_t all = std::max<std::size_t>(messages_[message].msg_len, 1);
  const int bytes = told(message, IPPROTO_UDP, UDP_GRO);
  return bytes > 0 ? std::min(all, static_cast<std::size_t>(bytes)) : all;
}

std::size_t TrainReceiver::cut(std::span<Incoming> out) noexcept {
  const std::size_t all = messages_[next_].msg_len;
  const std::size_t segment = segment_bytes(next_);
  const std::uint8_t* const start = &bytes_[next_ * kSlotBytes];
  std::size_t count = 0;
  do {  // an empty datagram is one too
    const std::size_t bytes = std::min(segment, all - offset_);
    out[count++].bytes = {start + offset_, bytes};
    offset_ += bytes;
  } while (offset_ < all && count < out.size());
  if (segment < all) coalesced_ += count;
  if (offset_ < all) return count;
  offset_ = 0;
  ++next_;
  return count;
}

}  // namespace sluice::client

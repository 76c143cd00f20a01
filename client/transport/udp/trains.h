// Datagrams in trains: as the kernel's UDP takes and gives them where it can (UDP_SEGMENT,
// UDP_GRO).
//
// A train is one message of the socket: datagrams of one length to or from one port, the last may
// be shorter. Behind the stack the kernel, or the device, cuts it into packets, with the checksum
// of each. Where the kernel knows no trains every message is one datagram. Used by udp.cc, on the
// progress thread; no allocation after construction.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/transport/transport.h"

namespace sluice::client {

inline constexpr std::size_t kMaxTrain = 64;            // datagrams: what every kernel takes
inline constexpr std::size_t kMaxTrainBytes = 65'400;   // below what an IP packet carries
inline constexpr std::size_t kLargestDatagram = 9'216;  // longer ones are of nobody's

// How many datagrams at the front make one train; at least 1.
std::size_t train_length(std::span<const Outgoing> datagrams) noexcept;

// For the log, once they are given up: what follows, and what to look at.
std::string refused_trains(const std::string& way, int error);

// The messages of one call of sendmmsg().
class TrainSender {
 public:
  // Whether the kernel has UDP_SEGMENT.
  static bool offered(int fd) noexcept;

  explicit TrainSender(bool trains) noexcept : trains_(trains) {}

  bool trains() const noexcept { return trains_; }
  // This device, or path, can't: from now on a message is a datagram.
  void give_up() noexcept { trains_ = false; }

  // `address_of(port_offset)`: a reference to something with `storage` and `bytes`. At most kBurst
  // datagrams.
  template <class AddressOf>
  std::span<mmsghdr> prepare(std::span<const Outgoing> datagrams, AddressOf address_of) noexcept {
    count_ = 0;
    for (std::size_t piece = 0; !datagrams.empty(); ++count_) {
      const std::size_t train = trains_ ? train_length(datagrams) : 1;
      auto& address = address_of(datagrams.front().port_offset);
      fill(datagrams.first(train), piece);
      messages_[count_].msg_hdr.msg_name = &address.storage;
      messages_[count_].msg_hdr.msg_namelen = address.bytes;
      datagrams = datagrams.subspan(train);
    }
    return {messages_.data(), count_};
  }
  // Datagrams of a message that was prepared.
  std::size_t train(std::size_t message) const noexcept { return trains_of_[message]; }

 private:
  void fill(std::span<const Outgoing> train, std::size_t& piece) noexcept;

  struct Control {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> bytes;
  };

  bool trains_;
  std::size_t count_ = 0;
  std::array<mmsghdr, kBurst> messages_{};
  std::array<std::uint16_t, kBurst> trains_of_{};
  std::array<Control, kBurst> control_{};
  std::array<iovec, 2 * kBurst> pieces_{};
};

// What has arrived, datagram by datagram, where the kernel has put it.
class TrainReceiver {
 public:
  // Asks for UDP_GRO. False: the kernel has none.
  static bool switch_on(int fd) noexcept;

  TrainReceiver();

  // Receives messages unless some are left. False, with errno: none have come.
  bool fetch(int fd) noexcept;
  // The next datagrams of the messages for whose sender `accepts(sockaddr_storage)`, up to
  // out.size(). They stay until fetch() is called with nothing left. Returns how many.
  template <class Accepts>
  std::size_t take(std::span<Incoming> out, Accepts accepts) noexcept {
    std::size_t taken = 0;
    while (taken < out.size() && next_ < count_) {
      const bool fits = offset_ != 0 || intact(next_);
      too_long_ += !fits;
      if (!fits || (offset_ == 0 && !accepts(from_[next_]))) {
        ++next_;
        continue;
      }
      taken += cut(out.subspan(taken));
    }
    return taken;
  }
  // Messages that were left out as too long, since this was asked last.
  std::uint64_t take_too_long() noexcept { return std::exchange(too_long_, 0); }
  // Datagrams that came in company, since the start.
  std::uint64_t coalesced() const noexcept { return coalesced_; }
  // Messages that the socket's buffer had no room for, as far as later ones have told; of a socket
  // with SO_RXQ_OVFL.
  std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  static constexpr std::size_t kSlots = 32;
  static constexpr std::size_t kSlotBytes = 65'536;  // any message; a short one touches no more

  struct Control {
    alignas(cmsghdr) std::array<char, 2 * CMSG_SPACE(sizeof(int))> bytes;
  };

  // What the kernel says beside the message, or 0.
  int told(std::size_t message, int level, int type) const noexcept;
  bool intact(std::size_t message) const noexcept;
  std::size_t segment_bytes(std::size_t message) const noexcept;
  // Of the next message, from offset_ on.
  std::size_t cut(std::span<Incoming> out) noexcept;

  std::size_t asked_ = kSlots;  // messages a call asks for
  std::size_t count_ = 0;
  std::size_t next_ = 0;    // message
  std::size_t offset_ = 0;  // in it
  std::uint64_t coalesced_ = 0;
  std::uint32_t dropped_ = 0;
  std::uint64_t too_long_ = 0;
  std::unique_ptr<std::uint8_t[]> bytes_;  // its pages are taken when they are first used
  std::array<mmsghdr, kSlots> messages_{};
  std::array<iovec, kSlots> pieces_{};
  std::array<sockaddr_storage, kSlots> from_{};
  std::array<Control, kSlots> control_{};
};

}  // namespace sluice::client

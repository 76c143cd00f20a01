// Trains of datagrams, which the kernel's UDP sends and receives if it can (UDP_SEGMENT, UDP_GRO).
//
// A train is one message of the socket: datagrams of one length to or from one port, of which the
// last may be shorter. At the end of the stack the kernel or the device cuts it into packets and
// computes the checksum of each. If the kernel does not support trains, every message is one
// datagram. Used by udp.cc, on the progress thread; no allocation after construction.
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

inline constexpr std::size_t kMaxTrain = 64;            // datagrams: the limit of every kernel
inline constexpr std::size_t kMaxTrainBytes = 65'400;   // below the limit of an IP packet
inline constexpr std::size_t kLargestDatagram = 9'216;  // a longer one is of no appliance

// How many datagrams at the front can be one train; at least 1.
std::size_t train_length(std::span<const Outgoing> datagrams) noexcept;

// The log line when trains are given up: the consequence, and what to check.
std::string refused_trains(const std::string& way, int error);

// The messages of one call of sendmmsg().
class TrainSender {
 public:
  // Whether the kernel has UDP_SEGMENT.
  static bool offered(int fd) noexcept;

  explicit TrainSender(bool trains) noexcept : trains_(trains) {}

  bool trains() const noexcept { return trains_; }
  // The device or the path can't carry trains: from now on a message is a datagram.
  void give_up() noexcept { trains_ = false; }

  // Prepares the messages of at most kBurst datagrams. `address_of(datagram)` returns a
  // reference to an object with `storage` and `bytes`.
  template <class AddressOf>
  std::span<mmsghdr> prepare(std::span<const Outgoing> datagrams, AddressOf address_of) noexcept {
    count_ = 0;
    for (std::size_t piece = 0; !datagrams.empty(); ++count_) {
      const std::size_t train = trains_ ? train_length(datagrams) : 1;
      auto& address = address_of(datagrams.front());
      fill(datagrams.first(train), piece);
      messages_[count_].msg_hdr.msg_name = &address.storage;
      messages_[count_].msg_hdr.msg_namelen = address.bytes;
      datagrams = datagrams.subspan(train);
    }
    return {messages_.data(), count_};
  }
  // The number of datagrams of a prepared message.
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

// The received datagrams, one by one, in the memory into which the kernel wrote them.
class TrainReceiver {
 public:
  // Switches UDP_GRO on. False: the kernel has none.
  static bool switch_on(int fd) noexcept;

  TrainReceiver();

  // Receives messages unless some are left. False, with errno set: none has arrived.
  bool fetch(int fd) noexcept;
  // Takes the next datagrams, up to out.size(), of messages whose sender
  // `accepts(sockaddr_storage)`. They are valid until fetch() is called with none left. Returns how
  // many.
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
  // The messages that were skipped as too long, since the last call.
  std::uint64_t take_too_long() noexcept { return std::exchange(too_long_, 0); }
  // Datagrams that came in trains, since the start.
  std::uint64_t coalesced() const noexcept { return coalesced_; }
  // Messages for which the socket's buffer had no room, as later messages have reported; of a
  // socket with SO_RXQ_OVFL.
  std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  static constexpr std::size_t kSlots = 32;
  static constexpr std::size_t kSlotBytes =
      65'536;  // fits any message; a short message touches fewer pages

  struct Control {
    alignas(cmsghdr) std::array<char, 2 * CMSG_SPACE(sizeof(int))> bytes;
  };

  // The value of the message's control data, or 0.
  int told(std::size_t message, int level, int type) const noexcept;
  bool intact(std::size_t message) const noexcept;
  std::size_t segment_bytes(std::size_t message) const noexcept;
  // Cuts datagrams out of the next message, from offset_ on.
  std::size_t cut(std::span<Incoming> out) noexcept;

  std::size_t asked_ = kSlots;  // messages that a call asks for
  std::size_t count_ = 0;
  std::size_t next_ = 0;    // message
  std::size_t offset_ = 0;  // in the next message
  std::uint64_t coalesced_ = 0;
  std::uint32_t dropped_ = 0;
  std::uint64_t too_long_ = 0;
  std::unique_ptr<std::uint8_t[]> bytes_;  // its pages are allocated when they are first used
  std::array<mmsghdr, kSlots> messages_{};
  std::array<iovec, kSlots> pieces_{};
  std::array<sockaddr_storage, kSlots> from_{};
  std::array<Control, kSlots> control_{};
};

}  // namespace sluice::client

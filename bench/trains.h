// The barest way to move datagrams of one length by the kernel's UDP: trains of them, cut and
// joined by the kernel (UDP_SEGMENT, UDP_GRO), or bursts of single ones (sendmmsg, recvmmsg).
//
// The client's bench compares a session with it, and runs its appliance over it. Errors end the
// program. One thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::bench {

inline constexpr std::size_t kTrainDatagrams = 44;  // of 1,472 bytes in one of IPv4's packets
inline constexpr std::size_t kBatch = 8;            // messages a call receives
inline constexpr std::size_t kBurstDatagrams = 32;  // without trains, a call in either direction

// One datagram: a header and a payload, each in its place.
struct Gathered {
  std::span<const std::uint8_t> header, payload;
  std::size_t bytes() const noexcept { return header.size() + payload.size(); }
};

class TrainSocket {
 public:
  // On 127.0.0.1; port 0: any. Ends the program when `must_bind`, else see bound().
  TrainSocket(std::uint16_t port, bool trains, bool must_bind = true);
  ~TrainSocket();
  TrainSocket(const TrainSocket&) = delete;
  TrainSocket& operator=(const TrainSocket&) = delete;

  bool bound() const noexcept { return port_ != 0; }
  std::uint16_t port() const noexcept { return port_; }
  int fd() const noexcept { return fd_; }

  // Sends `datagrams` as one train, or as a burst. All have one length, except the last of each
  // train, which may be shorter. Returns the number of datagrams taken.
  std::size_t send(std::span<const Gathered> datagrams, const sockaddr_in& to);
  // Calls `each(bytes, from)` for every datagram that has arrived. Returns their number.
  template <class Each>
  std::size_t receive(Each each) {
    const int messages = receive_messages();
    std::size_t count = 0;
    for (int i = 0; i < messages; ++i) {
      std::span<std::uint8_t> rest{slot(i), rx_[i].msg_len};
      const std::size_t segment = segment_bytes(i);
      while (!rest.empty()) {
        const std::size_t bytes = segment < rest.size() ? segment : rest.size();
        each(rest.first(bytes), from_[i]);
        rest = rest.subspan(bytes);
        ++count;
      }
    }
    return count;
  }
  // Returns when a datagram has arrived, when there is room to send, or when the time is over.
  void wait(int timeout_ms, bool to_send = false);

 private:
  static constexpr std::size_t kMessages = kBurstDatagrams;  // kBatch of them with trains

  std::uint8_t* slot(int i) noexcept { return &bytes_[i * slot_bytes_]; }
  int receive_messages();
  std::size_t segment_bytes(int i);
  std::size_t send_train(std::span<const Gathered> datagrams, const sockaddr_in& to);
  std::size_t send_burst(std::span<const Gathered> datagrams, const sockaddr_in& to);

  const bool trains_;
  const std::size_t slot_bytes_;
  std::size_t messages_;
  int fd_;
  std::uint16_t port_ = 0;
  std::vector<std::uint8_t> bytes_;
  std::array<mmsghdr, kMessages> rx_{}, tx_{};
  std::array<iovec, kMessages> rx_iov_{};
  std::array<iovec, 2 * kTrainDatagrams> tx_iov_{};
  std::array<sockaddr_in, kMessages> from_{};
  std::array<std::array<char, 64>, kMessages> control_{};
};

}  // namespace sluice::bench

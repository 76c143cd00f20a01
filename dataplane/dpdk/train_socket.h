// Sends the appliance's frames out of an af_packet port, many in one call if they have one
// receiver.
//
// DPDK's driver passes frames to the kernel one by one, and over a virtual link each is received
// before the next is sent. A packet socket with virtio's headers takes a train instead: frames of
// one flow and one length in one call. The kernel or the device cuts it behind its queues and
// computes the checksum of each frame; a receiver's kernel may merge the frames again. Used by one
// worker; open() on the main thread.
#pragma once

#include <rte_mbuf.h>

#include <memory>
#include <span>
#include <string>

#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

class TrainSocket {
 public:
  // Null: this kernel (before Linux 6.2) or this process can't send trains.
  static std::unique_ptr<TrainSocket> open(const std::string& interface) noexcept;
  // Makes the driver's socket ignore frames that this machine sends by other sockets, also by this
  // one. (The driver's socket is in a fanout group, where PACKET_IGNORE_OUTGOING has no effect.)
  // False: failed.
  static bool hide_outgoing(int driver_socket) noexcept;
  ~TrainSocket();
  TrainSocket(const TrainSocket&) = delete;
  TrainSocket& operator=(const TrainSocket&) = delete;

  // Sends from the front of `frames`, whose UDP checksums are all left to the device, until the
  // kernel takes no more. Frees the frames that were sent and returns how many.
  std::size_t send(std::span<rte_mbuf*> frames) noexcept;

 private:
  explicit TrainSocket(int fd) noexcept : fd_(fd) {}

  const int fd_;
  bool trains_ = true;  // until the kernel refuses one
};

}  // namespace sluice::dataplane

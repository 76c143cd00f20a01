// The way out of an af_packet port for frames of ours: many at once, where they go to one receiver.
//
// DPDK's driver hands the kernel frame by frame, and over a virtual link each is received before
// the next is sent. A packet socket with virtio's headers takes a train instead: frames of one flow
// and one length in one call, which the kernel or the device cuts behind its queues, with the
// checksum of each; a receiver's kernel may merge them again. One worker; open() on the main
// thread.
#pragma once

#include <rte_mbuf.h>

#include <memory>
#include <span>
#include <string>

#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

class TrainSocket {
 public:
  // Null: this kernel (before Linux 6.2) or this process can't.
  static std::unique_ptr<TrainSocket> open(const std::string& interface) noexcept;
  // Makes the driver's socket overlook what this machine sends by others, ours too. (It is in a
  // fanout group, where PACKET_IGNORE_OUTGOING does nothing.) False: it can't.
  static bool hide_outgoing(int driver_socket) noexcept;
  ~TrainSocket();
  TrainSocket(const TrainSocket&) = delete;
  TrainSocket& operator=(const TrainSocket&) = delete;

  // Sends from the front of `frames`, whose UDP checksums are all left to the device, until the
  // kernel takes no more; frees what was sent and returns how many.
  std::size_t send(std::span<rte_mbuf*> frames) noexcept;

 private:
  explicit TrainSocket(int fd) noexcept : fd_(fd) {}

  const int fd_;
  bool trains_ = true;  // until the kernel refuses one
};

}  // namespace sluice::dataplane

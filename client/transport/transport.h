// A transport moves a session's datagrams: by kernel sockets, a vhost-user link, or a queue in this
// process.
//
// An implementation knows addresses and bursts, and nothing of the protocol. All functions except
// the factories are called on the job's progress thread. Calls are virtual per burst, never per
// packet. Only wait() blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::client {

inline constexpr std::size_t kBurst = 64;  // datagrams moved by one call
// Free bytes that the caller leaves in front of every outgoing datagram, for frame headers.
inline constexpr std::size_t kTxHeadroomBytes = 64;

struct Incoming {
  std::span<const std::uint8_t> bytes;  // valid until the next receive()
};

struct Outgoing {
  std::uint8_t* data = nullptr;  // kTxHeadroomBytes in front of it may be overwritten
  std::size_t bytes = 0;
  std::uint16_t port_offset = 0;            // from the appliance's control port
  std::uint16_t address = 0;                // of those that the transport was opened with
  std::span<const std::uint8_t> payload{};  // follows `data`; in the application's memory

  std::size_t total_bytes() const noexcept { return bytes + payload.size(); }
};

// The datagram in one piece. Behind `data` there is room for a whole datagram.
inline std::span<std::uint8_t> whole(const Outgoing& datagram) noexcept {
  if (!datagram.payload.empty())
    std::memcpy(datagram.data + datagram.bytes, datagram.payload.data(), datagram.payload.size());
  return {datagram.data, datagram.total_bytes()};
}

inline constexpr std::size_t kMaxPathEvents = 16;  // that a transport keeps; further ones are lost

// A report of the network about a datagram that was sent earlier.
struct PathEvent {
  enum class Kind : std::uint8_t {
    kUnreachable,  // nothing listens there (a hint: it may be forged or temporary)
    kTooBig,       // `datagram_bytes` did not fit; the path carries `path_datagram_bytes`, or 0 if
                   // unknown
    kBroken,       // the link itself is gone for good; `status` has the reason
  };
  Kind kind{};
  std::uint16_t address = 0;  // where the datagram went
  std::size_t datagram_bytes = 0;
  std::size_t path_datagram_bytes = 0;
  bool certain =
      false;  // kTooBig: this host refused the datagram; else the network reported it, or a forger
  Status status;
};

// Facts known once a transport is open.
struct TransportFacts {
  std::string local_address;                 // printable, for logs
  std::size_t path_datagram_bytes = 0;       // biggest UDP payload of the local interface
  std::uint32_t receive_credit_packets = 0;  // full datagrams that may wait to be received
  std::string more_credit;  // what the user does for more of them; empty: nothing can be done
  std::string offloads;     // in use, printable; empty: none
};

struct TransportCounters {
  std::uint64_t send_errors = 0;  // datagrams that the operating system did not take
  std::uint64_t segmented = 0;    // datagrams that left as part of a train
  std::uint64_t coalesced = 0;    // datagrams that came as part of a train
  // Received buffers (a datagram or a train) that were dropped for lack of room.
  std::uint64_t receive_drops = 0;

  TransportCounters& operator+=(const TransportCounters& other) noexcept {
    send_errors += other.send_errors;
    segmented += other.segmented;
    coalesced += other.coalesced;
    receive_drops += other.receive_drops;
    return *this;
  }
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual TransportFacts facts() const = 0;
  // Receives up to kBurst datagrams of the appliance that are already in memory. Empty: none waits.
  virtual std::span<const Incoming> receive(TimeNs now) noexcept = 0;
  // The most bytes that the caller should have ready for one send(), but at least one datagram:
  // more urgent datagrams can't overtake those that were handed over.
  virtual std::size_t send_limit_bytes() const noexcept { return SIZE_MAX; }
  // Takes datagrams from the front and returns how many; the caller offers the rest again later. A
  // taken datagram may still be lost, as on any network; its memory is not read after the call.
  virtual std::size_t send(std::span<const Outgoing> datagrams, TimeNs now) noexcept = 0;
  virtual bool poll_path_event(PathEvent& event) noexcept = 0;
  // Sleeps until something can be received (or sent, after send() left something), `wake_fd` is
  // readable, or `timeout_ns` has passed. May return early. Does not read from `wake_fd`.
  virtual void wait(int wake_fd, DurationNs timeout_ns) noexcept = 0;
  // A descriptor that is readable while a datagram can be received, for callers that sleep on
  // several transports at once. -1: there is none.
  virtual int poll_fd() const noexcept { return -1; }
  virtual TransportCounters counters() const noexcept = 0;
};

}  // namespace sluice::client

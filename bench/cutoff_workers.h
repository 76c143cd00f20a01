// The workers of the cutoff bench: all ranks of one job, reduced to their packets, behind one
// virtio-user port of the client's own DPDK plug-in.
//
// They join as any worker does, send keepalives when told to, and write contributions and read
// results one frame at a time. They recover nothing: on shared memory nothing is lost, and a lost
// frame ends the bench with a message. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/time.h"
#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "client/transport/dpdk/plugin.h"

namespace sluice::bench {

inline constexpr std::size_t kFrameRoom = 2048;

struct CutoffJob {
  std::uint16_t workers = 8;
  std::uint16_t k = 6;  // from step 3 on
  std::uint32_t chunks = 64;
  std::uint16_t chunk_bytes = 1344;
};

TimeNs clock_ns() noexcept;

// A frame under construction; written whole, then sent.
struct FrameBuffer {
  std::array<std::uint8_t, kFrameRoom> bytes{};
  std::uint32_t size = 0;
  sluice_dpdk_frame view() noexcept { return {bytes.data(), size, 0, nullptr}; }
};

// A frame of the appliance, if it is a result.
struct SeenResult {
  Step step = 0;
  ChunkIndex chunk = 0;
  std::uint64_t mask = 0;
};

class CutoffWorkers {
 public:
  CutoffWorkers(const sluice_dpdk_plugin& plugin, sluice_dpdk_port* port, const CutoffJob& job);

  // Joins every rank; ends the process with a message when the appliance refuses or stays silent.
  void join_all();
  // Sends one keepalive for each rank.
  void keep_alive();

  // Writes the contribution of `rank` into `frame`: its number in the flow is the next one.
  void write_contribution(FrameBuffer& frame, std::uint16_t rank, Step step, ChunkIndex chunk);
  void send(std::span<const sluice_dpdk_frame> frames);
  // Reads one burst. Results go to `seen`; the workers handle all other packets. Returns the time
  // at which the burst was there, 0 without a burst.
  TimeNs receive(std::vector<SeenResult>& seen);

 private:
  void ask_to_join(std::uint16_t rank);
  void handle_join_answer(const wire::Packet& packet);
  wire::UdpPath path_of(std::uint16_t rank, std::uint16_t port) const;
  void send_control(std::uint16_t rank, std::span<const std::uint8_t> datagram);

  const sluice_dpdk_plugin& plugin_;
  sluice_dpdk_port* const port_;
  const CutoffJob job_;
  std::vector<wire::Join> requests_;      // by rank
  std::vector<wire::Sender> identities_;  // by rank; cookie 0 before it has joined
  std::vector<std::uint32_t> numbers_;    // of packets sent, by rank
  std::vector<std::uint8_t> payload_;
};

// The appliance of the bench: its configuration file says the same.
inline constexpr std::uint16_t kCutoffPort = 7700;
wire::Mac cutoff_appliance_mac() noexcept;

}  // namespace sluice::bench

// A port of prepared frames for the pipeline bench: contributions of one step of eight workers,
// ready in memory, given out in bursts as a device would, and a ring of buffers for sent frames.
//
// It is no device: nothing arrives late, nothing is lost, no descriptor is written. Its own cost
// (patching step, packet number and checksum into each frame, so that every step is a new one) is
// measured alone and shown beside the two sides, which both pay it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace sluice::bench {

inline constexpr std::size_t kWorkers = 8;
inline constexpr std::size_t kChunks = 1024;  // of a step, in each shard
inline constexpr std::size_t kChunkBytes = 1024;
inline constexpr std::size_t kChunkElems = kChunkBytes / sizeof(float);
inline constexpr std::size_t kBurst = 32;
inline constexpr std::size_t kFramesPerStep = kWorkers * kChunks;
inline constexpr std::uint16_t kControlPort = kDefaultPort;
inline constexpr std::uint16_t kJob = 0;

// The addresses of the bench's network: the appliance and worker `rank`.
wire::Mac appliance_mac() noexcept;
wire::IpAddress appliance_address() noexcept;
wire::UdpPath path_to_worker(std::size_t rank, std::uint16_t shard = 0) noexcept;
constexpr Cookie cookie_of(std::size_t rank) noexcept { return 0x5eed0000u + rank; }

// The gradient of a worker at an element: small integers, whose sum is the same in any order.
constexpr float gradient(std::size_t rank, std::size_t chunk, std::size_t elem) noexcept {
  return static_cast<float>((rank * 5 + chunk * 3 + elem) % 17) - 8.0f;
}

using FrameBytes = std::span<const std::uint8_t>;

class ReplayPort {
 public:
  // Frames for one shard of a job: kChunks chunks of each step are its own.
  explicit ReplayPort(std::uint16_t shard = 0, std::uint16_t shard_count = 1);

  // Starts the next step: its frames come from the following rx_burst() calls.
  void next_step() noexcept;
  // Up to kBurst frames of one worker, workers in turn, the last rank first: a sum in the order of
  // ranks finds all but the first worker's early. 0 when the step's frames are used up.
  std::size_t rx_burst(std::array<FrameBytes, kBurst>& frames) noexcept;
  // A buffer for one frame to send. The port takes it at once. Its bytes stay until the ring comes
  // round to it.
  std::span<std::uint8_t> tx_buffer() noexcept;

  std::uint32_t step() const noexcept { return step_; }
  std::size_t rx_frame_bytes() const noexcept { return frame_bytes_; }

 private:
  static constexpr std::size_t kTxBuffers = 1024;
  static constexpr std::size_t kBufferBytes = 2048;

  std::uint8_t* frame_at(std::size_t rank, std::size_t chunk) noexcept;  // among its own chunks
  void patch(std::uint8_t* frame, wire::PartialSum fixed_sum, std::uint32_t number) noexcept;

  std::size_t frame_bytes_ = 0;
  std::size_t stride_bytes_ = 0;
  std::vector<std::uint8_t> rx_memory_;
  std::vector<wire::PartialSum> fixed_sums_;  // of each datagram without the patched bytes
  std::vector<std::uint8_t> tx_memory_;
  std::size_t tx_next_ = 0;
  std::uint32_t step_ = 0;
  std::size_t burst_ = 0;  // of the current step
};

}  // namespace sluice::bench

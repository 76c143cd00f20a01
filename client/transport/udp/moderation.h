// Decides when to let packets gather before the socket is read again.
//
// While results arrive one by one, each wake-up costs more than the packet that caused it. Then the
// worker rests for a moment without waiting for the socket, as a NIC moderates its interrupts, and
// finds several packets at once. A slow stream gets a longer rest, so that about as many packets
// gather as from a fast one. A rest is short enough that the packets that arrive meanwhile use a
// quarter of the receive credit at most. Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class Moderation {
 public:
  // kFastRest limits the rest of a stream that brings kGathered packets in it, kLongestRest that of
  // any stream. The last packet of a stream is seen later by a rest, so beyond kFastRest a rest
  // takes at most 1 / kShare of the time that the stream has lasted.
  static constexpr DurationNs kFastRest = 200 * kMicrosecond;
  static constexpr DurationNs kLongestRest = kMillisecond;
  static constexpr DurationNs kShare = 16;
  static constexpr std::uint32_t kGathered = 16;
  static constexpr DurationNs kShortestRest = 20 * kMicrosecond;  // a shorter rest gathers nothing
  static constexpr DurationNs kWindow = 2 * kMillisecond;         // over which packets are counted
  static constexpr std::uint32_t kStreamPackets =
      16;  // in a window; fewer are no stream, and get no rest

  explicit Moderation(std::uint32_t credit_packets) noexcept : credit_packets_(credit_packets) {}

  // `count` packets were received at `now`.
  void on_receive(std::uint32_t count, TimeNs now) noexcept {
    if (now - last_ns_ > kWindow) stream_start_ns_ = now;
    last_ns_ = now;
    const DurationNs elapsed_ns = now - window_start_ns_;
    if (elapsed_ns >= kWindow) {
      const bool streaming = elapsed_ns < 2 * kWindow && packets_ >= kStreamPackets;
      const DurationNs gap_ns = streaming ? elapsed_ns / packets_ : 0;
      const DurationNs most_ns =
          std::clamp((now - stream_start_ns_) / kShare, kFastRest, kLongestRest);
      rest_ns_ = std::min(std::clamp(gap_ns * kGathered, kFastRest, most_ns),
                          gap_ns * (credit_packets_ / 4));
      window_start_ns_ = now;
      packets_ = 0;
    }
    packets_ += count;
    fresh_ |= count != 0;
  }

  // Called when the worker has nothing left to do. Returns how long to rest before waiting for the
  // socket; 0: not at all. Rests never follow each other without a packet in between.
  DurationNs take_rest() noexcept {
    const bool rest = fresh_ && rest_ns_ >= kShortestRest;
    fresh_ = false;
    return rest ? rest_ns_ : 0;
  }

 private:
  std::uint32_t credit_packets_;
  TimeNs last_ns_ = 0;
  TimeNs stream_start_ns_ = 0;
  TimeNs window_start_ns_ = 0;
  std::uint32_t packets_ = 0;
  DurationNs rest_ns_ = 0;
  bool fresh_ = false;  // packets came since the last wait
};

}  // namespace sluice::client

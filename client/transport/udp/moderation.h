// When to let packets gather before looking at the socket again.
//
// While results trickle in one by one, each wake-up costs more than the packet that caused it. Then
// the worker rests for a moment with the socket out of its wait, as a NIC moderates its interrupts,
// and finds a few packets at once. A slow stream is given longer, until as many have come as from a
// fast one. A rest is short enough that what comes meanwhile takes up a quarter of the receive
// credit at most. Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class Moderation {
 public:
  // The longest rests: of a stream that brings kGathered meanwhile, and of any. The price: the last
  // packet of a stream is seen this much later; so beyond kFastRest a rest takes at most this share
  // of the time that the stream has lasted.
  static constexpr DurationNs kFastRest = 200 * kMicrosecond;
  static constexpr DurationNs kLongestRest = kMillisecond;
  static constexpr DurationNs kShare = 16;
  static constexpr std::uint32_t kGathered = 16;
  static constexpr DurationNs kShortestRest = 20 * kMicrosecond;  // below it a rest gathers nothing
  static constexpr DurationNs kWindow = 2 * kMillisecond;         // over which packets are counted
  static constexpr std::uint32_t kStreamPackets = 16;  // in a window: a stream, worth a rest

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

  // Nothing is left to do: how long to rest before waiting for the socket, 0 for not at all. Never
  // twice without a packet in between.
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

// Limits the bytes handed to the kernel at once to what the link sends in 200 us.
//
// Datagrams that the kernel has taken can't be overtaken any more. The link's rate is measured
// between two refusals of the kernel: its buffer was never empty between them, unless the worker
// rested. While nothing is refused the limit grows. If the session's credit and not the kernel
// limits the worker, only the kernel's buffer bounds the bytes in it. Pure; one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class Pace {
 public:
  static constexpr DurationNs kAtOnce = 200 * kMicrosecond;
  static constexpr DurationNs kWindow =
      kMillisecond;  // the shortest time over which a rate is measured
  static constexpr std::size_t kLeastBytes = 1500;      // a packet is sent however slow the link is
  static constexpr std::size_t kFirstBytes = 16 << 10;  // 200 us at 655 Mb/s
  static constexpr std::size_t kMostBytes = 1 << 20;

  std::size_t limit_bytes() const noexcept { return limit_bytes_; }

  // The kernel took `bytes`; `refused`: it would not take more.
  void on_send(std::size_t bytes, bool refused, TimeNs now) noexcept {
    taken_bytes_ += bytes;
    if (!refused) {
      if (!measuring_ && taken_bytes_ >= limit_bytes_) grow();
      return;
    }
    const DurationNs elapsed_ns = now - since_ns_;
    // A kernel that takes nothing for a while is full, and its refusals tell nothing about the link
    // until it takes some: a window may be longer than a millisecond, but has bytes in it.
    if (measuring_ && (elapsed_ns < kWindow || taken_bytes_ == 0)) return;
    if (measuring_)
      limit_bytes_ = std::clamp(taken_bytes_ * kAtOnce / static_cast<std::size_t>(elapsed_ns),
                                kLeastBytes, kMostBytes);
    measuring_ = true;
    since_ns_ = now;
    taken_bytes_ = 0;
  }
  // The worker rests for another reason than a full kernel: the kernel's buffer may run empty.
  void on_rest() noexcept { measuring_ = false; }

 private:
  void grow() noexcept {
    limit_bytes_ = std::min(2 * limit_bytes_, kMostBytes);
    taken_bytes_ = 0;
  }

  std::size_t limit_bytes_ = kFirstBytes;
  std::size_t taken_bytes_ = 0;  // since the last refusal, or since the limit grew
  TimeNs since_ns_ = 0;          // the time of that refusal
  bool measuring_ = false;
};

}  // namespace sluice::client

// A token bucket: how many bytes a port may send by now.
//
// It shapes a port to slightly less than its link's rate, so that frames queue in the switch, where
// classes count, and not in the device or the next hop. Exact integer arithmetic; time is passed
// in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::dataplane {

class TokenBucket {
 public:
  struct Limits {
    std::uint64_t rate_bps = 0;  // bits a second; 0: unlimited
    std::uint64_t burst_bytes = 16 * 1024;
  };

  TokenBucket() noexcept = default;
  // The bucket starts full. rate_bps is at most 1e12, burst_bytes at most 64 MiB.
  TokenBucket(const Limits& limits, TimeNs now) noexcept
      : rate_bps_(static_cast<std::int64_t>(limits.rate_bps)),
        full_(static_cast<std::int64_t>(limits.burst_bytes) * kUnitsPerByte),
        tokens_(full_),
        refilled_at_(now) {}

  bool unlimited() const noexcept { return rate_bps_ == 0; }

  void refill(TimeNs now) noexcept {
    if (unlimited() || now <= refilled_at_) return;
    const std::int64_t needed_ns = (full_ - tokens_) / rate_bps_ + 1;
    const std::int64_t elapsed_ns = std::min(now - refilled_at_, needed_ns);
    tokens_ = std::min(full_, tokens_ + elapsed_ns * rate_bps_);
    refilled_at_ = now;
  }

  // True while any token is left. A packet may overdraw the bucket, and the next one waits until
  // the debt is paid. So the long-run rate is exact, whatever the packet sizes.
  bool ready() const noexcept { return unlimited() || tokens_ > 0; }
  void spend(std::uint32_t bytes) noexcept {
    if (!unlimited()) tokens_ -= static_cast<std::int64_t>(bytes) * kUnitsPerByte;
  }
  // Undoes spend() for a packet that was not sent after all, before the next refill().
  void refund(std::uint32_t bytes) noexcept {
    if (!unlimited()) tokens_ += static_cast<std::int64_t>(bytes) * kUnitsPerByte;
  }

  // When half of that many bytes, or of a full bucket if that is less, will have been earned. A
  // time in the past: they have been.
  TimeNs half_earned_at(std::uint64_t bytes) const noexcept {
    if (unlimited()) return refilled_at_;
    const std::uint64_t most = static_cast<std::uint64_t>(full_ / kUnitsPerByte);
    const auto wanted = static_cast<std::int64_t>(std::min(bytes, most)) * (kUnitsPerByte / 2);
    return wanted < tokens_ ? refilled_at_ : refilled_at_ + (wanted - tokens_) / rate_bps_ + 1;
  }

 private:
  // A token is one bit for one nanosecond at 1 bit a second: 1e-9 bit.
  static constexpr std::int64_t kUnitsPerByte = 8 * kSecond;

  std::int64_t rate_bps_ = 0;
  std::int64_t full_ = 0;
  std::int64_t tokens_ = 0;
  TimeNs refilled_at_ = 0;
};

}  // namespace sluice::dataplane

// Decides what a fault-injecting port does to each frame: deliver, drop, duplicate or hold back.
//
// Pure: the same seed gives the same decisions. The lane (dataplane/dpdk) owns the frames. Frames
// that are held back are kept here as opaque pointers until enough later frames have passed them or
// a time is over.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::dataplane {

// Probabilities of one direction, 0 to 1; each frame draws once for each.
struct FaultRates {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;
  constexpr bool any() const noexcept { return drop > 0 || duplicate > 0 || reorder > 0; }
};

enum class Fate : std::uint8_t { kDeliver, kDrop, kDuplicate, kHold };

class FaultLine {
 public:
  static constexpr std::size_t kMaxHeld = 32;
  static constexpr std::uint32_t kMaxPassed = 8;  // frames that may overtake a held one
  static constexpr DurationNs kMaxHold = 2 * kMillisecond;

  FaultLine() noexcept = default;
  FaultLine(const FaultRates& rates, std::uint64_t seed) noexcept;

  bool active() const noexcept { return active_; }
  // The fate of the next frame. For kHold the caller then calls hold(). Every frame decided,
  // whatever its fate, counts as one that passes the held ones.
  Fate decide() noexcept;
  void hold(void* frame, TimeNs now) noexcept;
  // The next held frame that is due, or null.
  void* release(TimeNs now) noexcept;
  // Any held frame, or null: for shutting down.
  void* release_any() noexcept;
  std::size_t held() const noexcept { return held_count_; }

 private:
  struct Held {
    void* frame;
    std::uint64_t due_count;  // frames decided
    TimeNs due;
  };
  std::uint64_t draw() noexcept;
  bool chance(std::uint64_t threshold) noexcept { return draw() < threshold; }
  void* take(std::size_t index) noexcept;

  bool active_ = false;
  std::uint64_t drop_below_ = 0;  // of 2^64
  std::uint64_t duplicate_below_ = 0;
  std::uint64_t reorder_below_ = 0;
  std::uint64_t state_ = 0;
  std::uint64_t decided_ = 0;
  std::array<Held, kMaxHeld> held_{};
  std::size_t held_count_ = 0;
};

}  // namespace sluice::dataplane

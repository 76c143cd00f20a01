// Which packets of a flow are lost, by number: what RACK (RFC 8985) does for TCP.
//
// Each feedback says which of the kReported numbers below the highest one have arrived. A number
// that is missing there is a hole, and lost once it has stayed one for a while: a quarter of a
// round trip, or longer where holes were seen to fill later than that (two paths). A hole that no
// feedback has shown (because none came for more numbers than it speaks of) is not known here.
// Pure, no allocation; the session's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "aggregator/base/serial.h"
#include "aggregator/base/time.h"

namespace sluice::client {

class Holes {
 public:
  static constexpr std::uint32_t kReported = 32;
  static constexpr std::uint32_t kCapacity = 256;

  struct Report {
    std::uint32_t highest = 0;         // number that has arrived
    std::uint32_t fresh = 0;           // numbers right below it of which no feedback spoke before
    std::uint32_t arrived_before = 0;  // bit i: number highest - 1 - i has arrived
  };
  void on_feedback(const Report& report, DurationNs round_trip_ns, TimeNs now) noexcept {
    for (std::uint32_t i = 0; i < count_;) {
      const std::uint32_t back = report.highest - 1 - holes_[i].number;
      if (back < kReported && (report.arrived_before >> back & 1)) {
        note_lateness((now - holes_[i].noticed_ns) * 5 / 4);
        remove(i);
      } else {
        ++i;
      }
    }
    for (std::uint32_t back = std::min(kReported, report.fresh); back-- != 0;)
      if ((report.arrived_before >> back & 1) == 0 && count_ < kCapacity)
        holes_[count_++] = {.noticed_ns = now, .number = report.highest - 1 - back};
    patience_ns_ = std::max(round_trip_ns / 4, lateness_ns_);
  }
  // `count` packets came of which no feedback shows any more which ones they were: as many of the
  // oldest holes are filled. Those that were taken for lost before are holes no longer.
  void fill_oldest(std::uint32_t count) noexcept {
    note_lateness(2 * patience_ns_);
    for (count = std::min(count, count_); count != 0; --count) remove(0);
  }
  // The next number that is lost, which is no hole any more.
  std::optional<std::uint32_t> take_lost(TimeNs now) noexcept {
    if (count_ == 0 || now < holes_[0].noticed_ns + patience_ns_) return {};
    const std::uint32_t number = holes_[0].number;
    remove(0);
    lateness_ns_ -= lateness_ns_ / kForgetting;
    return number;
  }
  // When take_lost() has one; kNever: there is no hole.
  TimeNs due_ns() const noexcept {
    return count_ == 0 ? kNever : holes_[0].noticed_ns + patience_ns_;
  }
  std::uint32_t count() const noexcept { return count_; }

 private:
  static constexpr DurationNs kMaxPatience = 500 * kMillisecond;
  static constexpr DurationNs kForgetting = 64;  // losses after which little of a lateness is left
  struct Hole {
    TimeNs noticed_ns = 0;
    std::uint32_t number = 0;
  };
  void note_lateness(DurationNs lateness_ns) noexcept {
    lateness_ns_ = std::max(lateness_ns_, std::min(lateness_ns, kMaxPatience));
  }
  void remove(std::uint32_t index) noexcept {
    std::move(holes_.begin() + index + 1, holes_.begin() + count_, holes_.begin() + index);
    --count_;
  }

  std::array<Hole, kCapacity> holes_;  // in the order in which they were noticed
  std::uint32_t count_ = 0;
  DurationNs patience_ns_ = 0;
  DurationNs lateness_ns_ = 0;  // after which holes were seen to fill
};

}  // namespace sluice::client

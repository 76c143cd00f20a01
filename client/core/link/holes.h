// Which packets of a flow are lost, by number: what RACK (RFC 8985) does for TCP.
//
// Each feedback says which of the kReported numbers below the highest one have arrived. A number
// that is missing there is a hole, and lost once it has stayed one for a while: a quarter of a
// round trip, or longer where holes were seen to fill later than that (two paths). A packet that
// only more urgent ones have passed waits in a queue on its way, and is no hole. A hole that no
// feedback has shown (because none came for more numbers than it speaks of) is not known here.
// Pure, no allocation; the session's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "aggregator/base/serial.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::client {

class Holes {
 public:
  static constexpr std::uint32_t kReported = 32;
  static constexpr std::uint32_t kCapacity = 256;

  // A packet leaves. Before any feedback can speak of it.
  void sent(std::uint32_t number, Priority priority) noexcept {
    priorities_[number % kRemembered] = priority;
  }
  // Of the numbers from `first` to `last`, as far as they are remembered.
  Priority least_urgent(std::uint32_t first, std::uint32_t last) const noexcept {
    Priority found = 0;
    const std::uint32_t count = std::min(last - first + 1, kRemembered);
    for (std::uint32_t i = 0; i < count; ++i)
      found = std::max(found, priorities_[(last - i) % kRemembered]);
    return found;
  }

  struct Report {
    std::uint32_t highest = 0;         // number that has arrived
    std::uint32_t fresh = 0;           // numbers right below it of which no feedback spoke before
    std::uint32_t arrived_before = 0;  // bit i: number highest - 1 - i has arrived
  };
  void on_feedback(const Report& report, DurationNs round_trip_ns, TimeNs now) noexcept {
    // The least urgent of those that have come and of which no feedback spoke before.
    Priority passed = priorities_[report.highest % kRemembered];
    const std::uint32_t fresh = std::min(kReported, report.fresh);
    const std::uint32_t old_count = count_;
    for (std::uint32_t back = 0; back < fresh; ++back) {
      const std::uint32_t number = report.highest - 1 - back;
      const Priority priority = priorities_[number % kRemembered];
      if (report.arrived_before >> back & 1) {
        passed = std::max(passed, priority);
      } else if (count_ < kCapacity) {
        holes_[count_++] = {.noticed_ns = passed >= priority ? now : kNever, .number = number};
      }
    }
    std::reverse(holes_.begin() + old_count, holes_.begin() + count_);
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count_; ++i) {
      Hole& hole = holes_[i];
      const std::uint32_t back = report.highest - 1 - hole.number;
      if (back < kReported && (report.arrived_before >> back & 1)) {
        if (hole.noticed_ns != kNever) note_lateness((now - hole.noticed_ns) * 5 / 4);
        continue;
      }
      if (hole.noticed_ns == kNever && i < old_count &&
          passed >= priorities_[hole.number % kRemembered])
        hole.noticed_ns = now;
      holes_[kept++] = hole;
    }
    count_ = kept;
    patience_ns_ = std::max(round_trip_ns / 4, lateness_ns_);
    find_next();
  }
  // `count` packets came of which no feedback shows any more which ones they were: as many of the
  // oldest holes are filled. Those that were taken for lost before are holes no longer.
  void fill_oldest(std::uint32_t count) noexcept {
    note_lateness(2 * patience_ns_);
    count = std::min(count, count_);
    std::move(holes_.begin() + count, holes_.begin() + count_, holes_.begin());
    count_ -= count;
    find_next();
  }
  // The next number that is lost, which is no hole any more.
  std::optional<std::uint32_t> take_lost(TimeNs now) noexcept {
    if (now < due_ns()) return {};
    const std::uint32_t number = holes_[next_].number;
    std::move(holes_.begin() + next_ + 1, holes_.begin() + count_, holes_.begin() + next_);
    --count_;
    lateness_ns_ -= lateness_ns_ / kForgetting;
    find_next();
    return number;
  }
  // When take_lost() has one; kNever: there is no hole.
  TimeNs due_ns() const noexcept {
    return next_ == count_ ? kNever : holes_[next_].noticed_ns + patience_ns_;
  }
  std::uint32_t count() const noexcept { return count_; }

 private:
  static constexpr DurationNs kMaxPatience = 500 * kMillisecond;
  static constexpr DurationNs kForgetting = 64;  // losses after which little of a lateness is left
  static constexpr std::uint32_t kRemembered = 4096;
  struct Hole {
    TimeNs noticed_ns = 0;  // kNever: only more urgent packets have passed it
    std::uint32_t number = 0;
  };
  void note_lateness(DurationNs lateness_ns) noexcept {
    lateness_ns_ = std::max(lateness_ns_, std::min(lateness_ns, kMaxPatience));
  }
  // The hole that was noticed first: after any change.
  void find_next() noexcept {
    next_ = count_;
    for (std::uint32_t i = 0; i < count_; ++i)
      if (holes_[i].noticed_ns != kNever &&
          (next_ == count_ || holes_[i].noticed_ns < holes_[next_].noticed_ns))
        next_ = i;
  }

  std::array<Priority, kRemembered> priorities_{};  // of the last numbers that were sent
  std::array<Hole, kCapacity> holes_;               // by number
  std::uint32_t count_ = 0;
  std::uint32_t next_ = 0;  // that is lost first; `count_`: none is
  DurationNs patience_ns_ = 0;
  DurationNs lateness_ns_ = 0;  // after which holes were seen to fill
};

}  // namespace sluice::client

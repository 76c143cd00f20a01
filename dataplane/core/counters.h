// The appliance's counter blocks: one a port, one an lcore.
//
// Each counter has one writer (the lcore that owns the port, the lcore itself, or where stated the
// control thread) and any number of readers; nothing here is ever reset. Every reason for which a
// switch drops a frame has a name, and the name is its metric label. What a frame for the appliance
// ends in is a Verdict, counted beside.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "aggregator/base/counters.h"
#include "aggregator/base/time.h"

namespace sluice::dataplane {

// X(enumerator, metric label, what a non-zero value means)
#define SLUICE_DROP_REASONS(X)                                                                  \
  X(kQueueFull, "queue_full",                                                                   \
    "frames dropped at egress because more urgent ones filled the queue")                       \
  X(kPortDown, "port_down", "frames for a port whose link or peer is down")                     \
  X(kHairpin, "hairpin", "frames whose destination is behind the port they came from")          \
  X(kNoPort, "no_port",                                                                         \
    "frames that no port was left to send to: link-local, or forwarding is off")                \
  X(kMalformed, "malformed", "frames too short or with an impossible source address")           \
  X(kTooLong, "too_long", "frames longer than the MTU of a port that they came by or were for") \
  X(kNoBuffer, "no_buffer", "frames lost because the packet pool was empty")                    \
  X(kHandover, "handover", "frames lost because the ring to another lcore was full")            \
  X(kControlMembers, "control_members",                                                         \
    "packets of members lost because the control thread's ring for them was full")              \
  X(kMemberFlood, "member_flood",                                                               \
    "control packets of a member that sends far more of them than the protocol asks for")       \
  X(kControlStrangers, "control_strangers",                                                     \
    "joins, ICMP errors and packets without a valid cookie beyond what strangers may cost")     \
  X(kAnswerBudget, "answer_budget",                                                             \
    "ARP, neighbour discovery and pings not answered because too many came")                    \
  X(kNoPath, "no_path", "datagrams to a member whose path is unknown or unusable")              \
  X(kNotAnswered, "not_answered", "frames for the appliance that it has no answer to")          \
  X(kInjectedFault, "injected_fault", "frames dropped on purpose by the fault-injecting port")

enum class DropReason : std::uint8_t {
#define X(name, label, help) name,
  SLUICE_DROP_REASONS(X)
#undef X
};

struct DropReasonInfo {
  std::string_view label;
  std::string_view help;
};

inline constexpr auto kDropReasonInfo = std::to_array<DropReasonInfo>({
#define X(name, label, help) {label, help},
    SLUICE_DROP_REASONS(X)
#undef X
});

inline constexpr std::size_t kDropReasonCount = kDropReasonInfo.size();

// One counter a reason.
struct DropCounters {
  std::array<Counter, kDropReasonCount> by_reason;
  void count(DropReason reason, std::uint64_t count = 1) noexcept {
    by_reason[static_cast<std::size_t>(reason)].add(count);
  }
};

inline constexpr std::size_t kClassCount = 64;

// How long frames waited in a queue: bucket i holds those under 1.024 us * 2^i, the last one the
// rest.
class WaitHistogram {
 public:
  static constexpr std::size_t kBuckets = 22;
  static constexpr DurationNs bound_ns(std::size_t bucket) noexcept {
    return DurationNs{1024} << bucket;
  }
  static constexpr std::size_t bucket_of(DurationNs wait_ns) noexcept {
    const auto width = std::bit_width(static_cast<std::uint64_t>(wait_ns) >> 10);
    return std::min<std::size_t>(static_cast<std::size_t>(width), kBuckets - 1);
  }
  // `count` waits that fall into one bucket.
  void add(std::size_t bucket, std::uint64_t count, std::uint64_t sum_ns) noexcept {
    buckets_[bucket].add(count);
    sum_ns_.add(sum_ns);
  }
  std::uint64_t bucket(std::size_t index) const noexcept { return buckets_[index].read(); }
  std::uint64_t sum_ns() const noexcept { return sum_ns_.read(); }

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter sum_ns_;
};

// Of one egress class of a port.
struct ClassCounters {
  Counter tx_packets;
  Counter tx_bytes;
  Counter drops;   // frames that did not fit, or had to make room
  Counter marked;  // frames given the congestion mark
  Counter queue_packets;
  Counter queue_bytes;
  WaitHistogram waits;  // of frames sent
};

// Written by the lcore that owns the port, but for rx_missed and the link.
struct PortCounters {
  Counter rx_packets;
  Counter rx_bytes;
  Counter rx_missed;  // lost in the device, also for want of a buffer; control thread
  Counter tx_packets;
  Counter tx_bytes;
  Counter forwarded;         // frames that came in here and left by another port
  Counter flooded;           // of those, frames without a single known destination
  Counter fault_duplicated;  // copies made on purpose
  Counter fault_reordered;   // frames held back on purpose
  Counter queue_packets;     // in the egress queue now
  Counter queue_bytes;
  Counter link_up;       // 1 while the link or the peer is up; one thread at a time (port.h)
  Counter link_changes;  // likewise
  DropCounters drops;
  std::array<ClassCounters, kClassCount> classes;

  void drop(DropReason reason, std::uint64_t count = 1) noexcept { drops.count(reason, count); }
};

// Written by one lcore.
struct LcoreCounters {
  Counter busy_ns;  // loops that did work
  Counter idle_ns;  // loops that found none, naps included
  Counter loops;
  Counter naps;  // adaptive polling slept
  Counter mac_entries;
  Counter handed_over;       // frames passed to another lcore
  DropCounters drops;        // the appliance's own datagrams that never reached a port
  VerdictCounters verdicts;  // of frames for the appliance, except those that its shard counts
};

}  // namespace sluice::dataplane

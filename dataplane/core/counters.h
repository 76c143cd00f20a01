// The appliance's counter blocks: one a port, one an lcore.
//
// Each counter has one writer (the lcore that owns the port, the lcore itself, or where stated the
// control thread) and any number of readers; nothing here is ever reset. Every reason for which a
// switch drops a frame has a name, and the name is its metric label. What a frame for the appliance
// ends in is a Verdict, counted beside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "aggregator/base/counters.h"

namespace sluice::dataplane {

// X(enumerator, metric label, what a non-zero value means)
#define SLUICE_DROP_REASONS(X)                                                         \
  X(kQueueFull, "queue_full",                                                          \
    "frames dropped at egress because more urgent ones filled the queue")              \
  X(kPortDown, "port_down", "frames for a port whose link or peer is down")            \
  X(kHairpin, "hairpin", "frames whose destination is behind the port they came from") \
  X(kNoPort, "no_port",                                                                \
    "frames that no port was left to send to: link-local, or forwarding is off")       \
  X(kMalformed, "malformed", "frames too short or with an impossible source address")  \
  X(kTooLong, "too_long", "frames longer than the port's buffers")                     \
  X(kNoBuffer, "no_buffer", "frames lost because the packet pool was empty")           \
  X(kHandover, "handover", "frames lost because the ring to another lcore was full")   \
  X(kNoPath, "no_path", "datagrams to a member whose path is unknown or unusable")     \
  X(kNotAnswered, "not_answered", "frames for the appliance that it has no answer to") \
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
  std::array<Counter, kClassCount> tx_by_class;  // packets
  std::array<Counter, kClassCount> drops_by_class;

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
  Counter handover_drops;    // frames for another lcore whose inbox was full
  DropCounters drops;        // the shard's datagrams that never reached a port
  VerdictCounters verdicts;  // of frames for the appliance, except those that its shard counts
};

}  // namespace sluice::dataplane

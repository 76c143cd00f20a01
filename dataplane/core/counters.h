// The appliance's counter blocks: one for each lane of a port, one for each lcore.
//
// Each counter has one writer (the lcore that owns the lane, the lcore itself or, where stated, the
// control thread) and any number of readers; counters are never reset. Every reason for which the
// switch drops a frame has a name, which is also its metric label. The outcome of a frame for the
// appliance is a Verdict, which is counted separately.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/counters.h"

namespace sluice::agg {
class Shard;
}

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

using DropCounters = CountersBy<DropReason, kDropReasonCount>;

inline constexpr std::size_t kClassCount = 64;

using WaitHistogram = BasicHistogram<1'024, 22>;  // waiting times of frames in a queue: 1 us .. 2 s

// The counters of one egress class of a port.
struct ClassCounters {
  Counter tx_packets;
  Counter tx_bytes;
  Counter drops;   // frames that did not fit, or were evicted for others
  Counter marked;  // frames that got the congestion mark
  Counter queue_packets;
  Counter queue_bytes;
  WaitHistogram waits;  // of sent frames
};

// Written by the lcore that owns the lane (the part of a port that one lcore serves). Only
// rx_missed and the link's counters have other writers; they are in the port's first lane.
struct PortCounters {
  Counter rx_packets;
  Counter rx_bytes;
  Counter
      rx_missed;  // lost in the device, also for lack of a buffer; written by the control thread
  Counter tx_packets;
  Counter tx_bytes;
  Counter forwarded;         // frames that came in here and left by another port
  Counter flooded;           // of these, frames without a single known destination
  Counter fault_duplicated;  // injected duplicates
  Counter fault_reordered;   // frames held back by fault injection
  Counter queue_packets;     // in the egress queue now
  Counter queue_bytes;
  Counter link_up;       // 1 while the link or the peer is up; one thread at a time (port.h)
  Counter link_changes;  // as link_up
  DropCounters drops;
  std::array<ClassCounters, kClassCount> classes;

  void drop(DropReason reason, std::uint64_t count = 1) noexcept { drops.count(reason, count); }
};

// Written by one lcore.
struct LcoreCounters {
  Counter busy_ns;  // time of loops that had work
  Counter idle_ns;  // time of loops without work, naps included
  Counter loops;
  Counter naps;   // rests of adaptive polling
  Counter wakes;  // rests that a packet at a port ended
  Counter mac_entries;
  Counter handed_over;       // frames handed to another lcore
  DropCounters drops;        // the appliance's own datagrams that never reached a port
  VerdictCounters verdicts;  // of frames for the appliance, except those that its shard counts
};

// The blocks of a running appliance, which live as long as it does.
struct PortView {
  std::string name;
  std::vector<const PortCounters*> lanes;
  bool awaits_peer = false;  // vhost-user: down until a process connects, which is no fault

  // The sum of `read(counters)` over all lanes.
  template <class Read>
  std::uint64_t sum(Read&& read) const {
    std::uint64_t total = 0;
    for (const PortCounters* lane : lanes) total += read(*lane);
    return total;
  }
};
struct LcoreView {
  const LcoreCounters* counters = nullptr;
  const agg::Shard* shard = nullptr;  // other threads may read its counters only
};
struct CounterBlocks {
  std::vector<PortView> ports;
  std::vector<LcoreView> lcores;
  const VerdictCounters* control_junk = nullptr;  // control packets that did not parse
  const DropCounters* control_drops =
      nullptr;  // datagrams of the control thread that reached no port
};

// Packet buffers.
struct BufferUse {
  std::uint64_t in_use = 0;
  std::uint64_t capacity = 0;
};

}  // namespace sluice::dataplane

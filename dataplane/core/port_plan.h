// Who does what at a port, its device or we: decided once, when the port is opened, from what the
// device says that it can do.
//
// Pure: dataplane/dpdk asks the device and carries out the plan. The plans of all ports are one
// table, which stands in the log and which `sluiced --ports` prints.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice::dataplane {

// What a device offers, in DPDK's words; see rte_eth_dev_info_get().
struct DeviceOffers {
  bool rx_udp_checksum = false;  // it says of each frame whether its checksum is good
  bool tx_udp_checksum = false;  // it completes a checksum behind the pseudo-header's sum
  bool multi_segment = false;    // it sends frames whose parts lie in several buffers
  bool rss = false;              // the key and the table of its hash can be set
  std::uint16_t rx_queues = 1;
  std::uint16_t tx_queues = 1;
  friend bool operator==(const DeviceOffers&, const DeviceOffers&) = default;
};

// What we know of it besides.
struct DeviceKind {
  // The other end is a process or a guest of this host: nothing can corrupt a frame on the way.
  bool shared_memory = false;
  // With receive offloads on, it may hand over frames whose checksum its sender left to the next
  // device. They could not be forwarded as they are.
  bool partial_checksums = false;
  bool shaped = false;        // to a rate, by us
  std::uint16_t workers = 1;  // that could serve it
};

enum class ChecksumsBy : std::uint8_t {
  kSoftware,
  kDevice,
  kNobody,  // only of received frames
};

// What ends a worker's rest when a packet comes.
enum class WokenBy : std::uint8_t {
  kClock,       // nothing: it takes naps
  kDescriptor,  // readable while a packet waits
  kInterrupt,   // which must be asked for before each rest; the clock, until one has come
  kNobody,      // busy polling: it does not rest
};

struct PortPlan {
  // UDP only: the sum of an IPv4 header costs less than to ask who has made it.
  ChecksumsBy rx = ChecksumsBy::kSoftware;
  ChecksumsBy tx = ChecksumsBy::kSoftware;
  // Why, for people; of static storage.
  const char* rx_reason = "";
  const char* tx_reason = "";
  // Pairs of queues that are used: one for each worker, or one in all.
  std::uint16_t queues = 1;
  const char* queues_reason = "";
  bool steered_by_device = false;      // once it has taken the rules for it
  WokenBy woken_by = WokenBy::kClock;  // once the device runs
  // The members' results of a sum end in one buffer, instead of a copy each.
  bool shares_payloads = false;
};

PortPlan plan_port(const DeviceOffers& offers, const DeviceKind& kind) noexcept;

// A row of the table.
struct PortRow {
  std::string name;
  std::string device;
  DeviceOffers offers;
  PortPlan plan;
};

// Lines that each end in a line feed, the headings first.
std::string table_of(std::span<const PortRow> rows);

}  // namespace sluice::dataplane

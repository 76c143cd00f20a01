// The plan of a port: which work its device does and which the software does. It is made once, when
// the port is opened, from the device's offers.
//
// Pure: dataplane/dpdk asks the device and carries out the plan. The plans of all ports are a table
// in the log, which `sluiced --ports` also prints.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice::dataplane {

// The offers of a device, by rte_eth_dev_info_get() of DPDK.
struct DeviceOffers {
  bool rx_udp_checksum = false;  // reports of each received frame whether its checksum is good
  bool tx_udp_checksum =
      false;                   // completes the checksum of a frame that has the pseudo-header's sum
  bool multi_segment = false;  // sends frames whose parts lie in several buffers
  bool rss = false;            // the key and the table of its hash can be set
  std::uint16_t rx_queues = 1;
  std::uint16_t tx_queues = 1;
  friend bool operator==(const DeviceOffers&, const DeviceOffers&) = default;
};

// Other facts about the device.
struct DeviceKind {
  // The other end is a process or a guest of this host, so nothing can corrupt a frame between
  // them.
  bool shared_memory = false;
  // With receive offloads on, the device may deliver frames whose sender left the checksum to the
  // next device. Such frames could not be forwarded as they are.
  bool partial_checksums = false;
  bool shaped = false;        // to a rate, by the software
  std::uint16_t workers = 1;  // workers that could serve the port
};

enum class ChecksumsBy : std::uint8_t {
  kSoftware,
  kDevice,
  kNobody,  // of received frames only
};

// How a packet ends a worker's rest.
enum class WokenBy : std::uint8_t {
  kClock,       // nothing: the worker naps
  kDescriptor,  // readable while a packet waits
  kInterrupt,   // an interrupt, armed before each rest; the clock, until one has come
  kNobody,      // busy polling: the worker does not rest
};

struct PortPlan {
  // UDP checksums only: computing that of an IPv4 header costs less than a decision about it.
  ChecksumsBy rx = ChecksumsBy::kSoftware;
  ChecksumsBy tx = ChecksumsBy::kSoftware;
  // The reasons, for people; static strings.
  const char* rx_reason = "";
  const char* tx_reason = "";
  // Pairs of queues in use: one for each worker, or one in all.
  std::uint16_t queues = 1;
  const char* queues_reason = "";
  bool steered_by_device = false;      // if the device takes the flow rules
  WokenBy woken_by = WokenBy::kClock;  // known once the device runs
  // The frames of a sum's results to all members end in one shared buffer, instead of a copy for
  // each.
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

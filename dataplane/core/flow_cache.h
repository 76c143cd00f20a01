// Recognises frames for a shard by an earlier frame of the same flow.
//
// All frames of a worker to a shard begin with the same bytes, except lengths, checksums and the
// congestion mark. The results of parsing, learning and steering the first frame hold for the next
// ones as long as the MAC table does not change. So of a frame with a remembered beginning only
// lengths and checksums are checked. An unusual frame is not found and goes through the full path.
// Direct mapped, one for each lcore; pure, time is passed in.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dataplane/core/mac_table.h"
#include "dataplane/core/steer.h"

namespace sluice::dataplane {

class FlowCache {
 public:
  FlowCache() : places_(kPlaces) {}

  // True: on this port parse_frame() would accept the frame, decide_forward() would find it for the
  // appliance and learn nothing, and steer() would give its `datagram` to `shard`.
  bool find(wire::Bytes bytes, PortIndex port, wire::UdpChecksums checksums, const MacTable& macs,
            TimeNs now, wire::Datagram& datagram, ShardId& shard) noexcept;

  // Remembers a frame with these results of parsing and steering. `learned` is what the MAC table
  // learned from it: a frame of an address whose move is still to be told to other lcores is not
  // remembered.
  void remember(wire::Bytes bytes, const wire::Frame& frame, PortIndex port, ShardId shard,
                MacTable::Learned learned, const MacTable& macs, TimeNs now) noexcept;

 private:
  static constexpr std::size_t kPlaces = 256;
  static constexpr std::size_t kPatternBytes = 64;
  using Pattern = std::array<std::uint64_t, kPatternBytes / 8>;
  struct alignas(64) Place {
    Pattern bytes{1};  // of the first frame, masked; at first a pattern that no frame matches
    Pattern mask{};    // the bits that all frames of the flow have in common
    wire::PartialSum ip_sum;         // of the IPv4 header's bits that all frames have in common
    wire::PartialSum addresses_sum;  // of the pseudo-header without the length
    std::uint64_t macs_version = 0;
    TimeNs until = 0;  // when the source must be learnt again; 0: nothing is remembered here
    std::uint8_t ip_at = 0;
    bool ipv4 = false;
    PortIndex port = 0;
    ShardId shard;
  };

  static std::size_t place_of(wire::Bytes bytes) noexcept;
  static bool matches(const Place& place, wire::Bytes bytes) noexcept;

  std::vector<Place> places_;
  std::size_t last_ =
      0;  // the place of the last frame that was found: mostly that of the next, too
};

}  // namespace sluice::dataplane

// Frames for a shard, known by the frame before them in the same flow.
//
// All frames of a worker to a shard begin with the same bytes but for lengths, checksums and the
// congestion mark. What parsing, learning and steering made of the first one holds for the next as
// long as the MAC table stands as it stood: so of a frame whose beginning is remembered only the
// lengths and checksums are looked at. Whatever is unusual is not found, and takes the long way.
// Direct mapped, one an lcore; pure, time is passed in.
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

  // True: on this port parse_frame() would accept the frame, decide_forward() would call it ours
  // and learn nothing, and steer() would give its `datagram` to `shard`.
  bool find(wire::Bytes bytes, PortIndex port, wire::UdpChecksums checksums, const MacTable& macs,
            TimeNs now, wire::Datagram& datagram, ShardId& shard) noexcept;

  // Remembers a frame of which all this was found out just now, but for what was learnt of its
  // source. Not while a move of it is still to be told.
  void remember(wire::Bytes bytes, const wire::Frame& frame, PortIndex port, ShardId shard,
                MacTable::Learned learned, const MacTable& macs, TimeNs now) noexcept;

 private:
  static constexpr std::size_t kPlaces = 256;
  static constexpr std::size_t kPatternBytes = 64;
  using Pattern = std::array<std::uint64_t, kPatternBytes / 8>;
  struct alignas(64) Place {
    Pattern bytes{1};                // of the first frame, masked; at first what no frame matches
    Pattern mask{};                  // of the bits that all frames of the flow have in common
    wire::PartialSum ip_sum;         // of the IPv4 header's bits that all frames have in common
    wire::PartialSum addresses_sum;  // of the pseudo-header without the length
    std::uint64_t macs_version = 0;
    TimeNs until = 0;  // then the source is learnt anew; 0: nothing is remembered here
    std::uint8_t ip_at = 0;
    bool ipv4 = false;
    PortIndex port = 0;
    ShardId shard;
  };

  static std::size_t place_of(wire::Bytes bytes) noexcept;
  static bool matches(const Place& place, wire::Bytes bytes) noexcept;

  std::vector<Place> places_;
  std::size_t last_ = 0;  // the place of the last frame that was found: mostly of the next, too
};

}  // namespace sluice::dataplane

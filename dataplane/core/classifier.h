// Which egress class a frame belongs to: by its DSCP, else its 802.1Q priority, or by the priority
// of the chunk it carries.
//
// Tables only; set up once from the config and read by every lcore.
#pragma once

#include <array>
#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/wire/inet.h"
#include "dataplane/core/egress_queue.h"

namespace sluice::dataplane {

class Classifier {
 public:
  // Chunks take a band of the classes: priority 0 the first, priority 255 the last.
  struct ChunkBand {
    ClassIndex first = 16;
    ClassIndex last = 47;
  };

  // The defaults: network control (CS6, CS7) before everything, then chunks by priority among CS2
  // to CS5, then the rest; CS1 and LE (RFC 8622) are the least urgent. 802.1Q priorities 0..7 count
  // like CS0..CS7 for frames that are not IP.
  Classifier() noexcept;

  void set_dscp(std::uint8_t dscp, ClassIndex egress_class) noexcept {
    by_dscp_[dscp & 63] = egress_class;
  }
  void set_pcp(std::uint8_t pcp, ClassIndex egress_class) noexcept {
    by_pcp_[pcp & 7] = egress_class;
  }
  void set_chunk_band(ChunkBand band) noexcept;

  ClassIndex of_frame(const wire::EthernetView& view) const noexcept;
  ClassIndex of_chunk(Priority priority) const noexcept { return by_priority_[priority]; }
  // The appliance's own control answers: ARP, ICMP, joins, pings.
  ClassIndex of_control() const noexcept { return 0; }

 private:
  std::array<ClassIndex, 64> by_dscp_;
  std::array<ClassIndex, 8> by_pcp_;
  std::array<ClassIndex, 256> by_priority_;
};

}  // namespace sluice::dataplane

// The forwarding decision of a learning switch (IEEE 802.1D without spanning tree).
//
// Pure: the worker moves the frames. A frame is never sent out of the port by which it came.
#pragma once

#include <cstdint>

#include "dataplane/core/mac_table.h"

namespace sluice::dataplane {

using PortMask = std::uint64_t;

constexpr PortMask port_bit(PortIndex port) noexcept { return PortMask{1} << port; }

struct ForwardDecision {
  PortMask out = 0;       // ports to send to; 0: the frame is dropped
  bool flood = false;     // there is no single known destination
  bool hairpin = false;   // dropped: the destination is behind the port that the frame came from
  bool for_self = false;  // the frame is for the appliance, alone or among others
  MacTable::Learned learned = MacTable::Learned::kKnown;
};

struct ForwardContext {
  PortIndex in_port = 0;
  PortMask up = 0;    // ports whose link is up
  wire::Mac own_mac;  // the appliance's address, the same on all ports
};

// 802.1D reserves 01:80:c2:00:00:00 to :0f for the link itself: never forwarded.
constexpr bool is_link_local(const wire::Mac& mac) noexcept {
  const auto& b = mac.bytes;
  return b[0] == 0x01 && b[1] == 0x80 && b[2] == 0xc2 && b[3] == 0 && b[4] == 0 && b[5] < 0x10;
}

inline ForwardDecision decide_forward(const wire::EthernetView& view, const ForwardContext& context,
                                      MacTable& table, TimeNs now) noexcept {
  ForwardDecision decision;
  if (view.src == context.own_mac)
    return decision;  // a loop or a forged address: the appliance's own frames never return
  decision.learned = table.learn({view.src, view.vlan_id()}, context.in_port, now);
  if (view.dst == context.own_mac) {
    decision.for_self = true;
    return decision;
  }
  if (is_link_local(view.dst)) return decision;
  const PortMask others = context.up & ~port_bit(context.in_port);
  if (!view.dst.is_group()) {
    if (const auto port = table.lookup({view.dst, view.vlan_id()}, now)) {
      decision.hairpin = *port == context.in_port;
      decision.out = others & port_bit(*port);
      return decision;
    }
  } else {
    decision.for_self = true;
  }
  decision.flood = true;
  decision.out = others;
  return decision;
}

}  // namespace sluice::dataplane

// What a worker does with a received frame: it forwards it, answers it, or hands it to a shard or
// the control thread.

#include <rte_ring.h>

#include <bit>

#include "aggregator/jobs/jobs.h"
#include "dataplane/dpdk/worker.h"
#include "dataplane/host/answer.h"
#include "dataplane/host/sender.h"

namespace sluice::dataplane {

void Worker::drop(Lane& lane, DropReason reason, rte_mbuf* packet) noexcept {
  lane.counters().drop(reason);
  rte_pktmbuf_free(packet);
}

void Worker::handle_frame(Lane& lane, rte_mbuf* packet, TimeNs now) noexcept {
  wire::Frame frame;
  if (!ok(wire::parse_ethernet(bytes_of(packet), frame.ethernet))) {
    drop(lane, DropReason::kMalformed, packet);
    return;
  }
  const ForwardContext context{
      .in_port = lane.port().index(), .up = up_, .own_mac = context_.own.mac};
  ForwardDecision decision = decide_forward(frame.ethernet, context, macs_, now);
  if (MacTable::worth_telling(decision.learned) && context_.workers.size() > 1) [[unlikely]] {
    for (const auto& worker : context_.workers)
      if (worker.get() != this)
        worker->tell({frame.ethernet.src, frame.ethernet.vlan_id()}, lane.port().index());
  }
  if (!context_.forwarding) decision.out = 0;
  if (!decision.for_self) {
    if (decision.out == 0 && frame.ethernet.src == context_.own.mac) [[unlikely]]
      to_control(lane, agg::PuntReason::kUnauthenticated, PacketMeta::Kind::kConflict,
                 sender_of(frame), packet, now);
    else
      forward(lane, decision, frame.ethernet, packet);
    return;
  }
  if (decision.out != 0) {
    // A group frame: the other hosts get copies, and the appliance reads the original.
    rte_mbuf* copy = rte_pktmbuf_copy(packet, context_.pool.get(), 0, UINT32_MAX);
    if (copy != nullptr)
      forward(lane, decision, frame.ethernet, copy);
    else
      lane.counters().drop(DropReason::kNoBuffer);
  }
  handle_own(lane, frame, decision.learned, packet, now);
}

// The ports in `out` whose MTU carries the frame. One VLAN tag does not count.
PortMask Worker::ports_that_carry(const wire::EthernetView& view, PortMask out) const noexcept {
  PortMask carrying = out;
  for (PortMask rest = out; rest != 0; rest &= rest - 1) {
    const auto port = static_cast<PortIndex>(std::countr_zero(rest));
    if (view.content.size() > context_.ports[port]->config().mtu) carrying &= ~port_bit(port);
  }
  return carrying;
}

void Worker::forward(Lane& in, const ForwardDecision& decision, const wire::EthernetView& view,
                     rte_mbuf* packet) noexcept {
  if (decision.out == 0) {
    drop(in, decision.hairpin ? DropReason::kHairpin : DropReason::kNoPort, packet);
    return;
  }
  PortMask rest = 0;
  if (view.content.size() <= in.port().config().mtu) rest = ports_that_carry(view, decision.out);
  if (rest != decision.out) in.counters().drop(DropReason::kTooLong);
  if (rest == 0) {
    rte_pktmbuf_free(packet);
    return;
  }
  const ClassIndex egress_class = traffic_->classifier.of_frame(view);
  in.counters().forwarded.add(1);
  if (decision.flood) in.counters().flooded.add(1);
  while (std::popcount(rest) > 1) {
    const auto out = static_cast<PortIndex>(std::countr_zero(rest));
    rest &= rest - 1;
    rte_mbuf* copy = rte_pktmbuf_copy(packet, context_.pool.get(), 0, UINT32_MAX);
    if (copy != nullptr)
      send(out, egress_class, copy, in.counters().drops);
    else
      in.counters().drop(DropReason::kNoBuffer);
  }
  send(static_cast<PortIndex>(std::countr_zero(rest)), egress_class, packet, in.counters().drops);
}

void Worker::send(PortIndex port, ClassIndex egress_class, rte_mbuf* packet,
                  DropCounters& losses) noexcept {
  const Port& out = *context_.ports[port];
  if (Lane* lane = out.lane_of(index_); lane != nullptr) {
    lane->enqueue(packet, egress_class);
    return;
  }
  Worker& owner = context_.owner_of(port);
  meta_of(packet) = {.kind = PacketMeta::Kind::kEgress, .port = port, .egress_class = egress_class};
  if (owner.hand_over(packet)) {
    counters_.handed_over.add(1);
    return;
  }
  losses.count(DropReason::kHandover);
  rte_pktmbuf_free(packet);
}

void Worker::handle_own(Lane& lane, wire::Frame& frame, MacTable::Learned learned, rte_mbuf* packet,
                        TimeNs now) noexcept {
  const Verdict why = wire::parse_content(udp_checksums_of(lane.port().plan().rx, packet), frame);
  if (!ok(why)) {
    // A group frame that is not valid counts as none of the appliance's: it was for all hosts.
    if (!frame.ethernet.dst.is_group()) counters_.verdicts.count(why);
    rte_pktmbuf_free(packet);
    return;
  }
  const Steering steering = steer(frame, context_.own);
  switch (steering.service) {
    case Service::kShard:
      flows_.remember(bytes_of(packet), frame, lane.port().index(), steering.shard, learned, macs_,
                      now);
      to_shard(lane, wire::datagram_of(frame), steering.shard, packet, now);
      return;
    case Service::kControl: handle_control(lane, frame, packet, now); return;
    case Service::kHost: answer(lane, frame, packet, now); return;
    case Service::kNotOurs:
    case Service::kNone: break;
  }
  if (!frame.ethernet.dst.is_group())
    counters_.verdicts.count(steering.service == Service::kNotOurs ? Verdict::kNotOurs
                                                                   : Verdict::kUnsupported);
  rte_pktmbuf_free(packet);
}

void Worker::to_shard(Lane& lane, const wire::Datagram& datagram, ShardId shard, rte_mbuf* packet,
                      TimeNs now) noexcept {
  if (shard.value == index_) {
    arrive(datagram, packet, now);
    return;
  }
  meta_of(packet) = {.kind = PacketMeta::Kind::kShard,
                     .port = lane.port().index(),
                     .marked = datagram.marked,
                     .payload_offset = static_cast<std::uint16_t>(datagram.payload.data() -
                                                                  bytes_of(packet).data()),
                     .payload_bytes = static_cast<std::uint16_t>(datagram.payload.size())};
  if (context_.workers[shard.value]->hand_over(packet)) {
    counters_.handed_over.add(1);
    return;
  }
  drop(lane, DropReason::kHandover, packet);
}

// Drops datagrams that are no requests. Packets with a member's cookie have a ring of their own,
// apart from unauthenticated ones.
void Worker::handle_control(Lane& lane, const wire::Frame& frame, rte_mbuf* packet,
                            TimeNs now) noexcept {
  wire::Packet request;
  const Verdict found = wire::parse(frame.payload, request);
  const bool known = ok(found);
  const bool foreign =
      !known && agg::is_foreign_join(frame.payload);  // answered by the control side
  if (!foreign && (!known || !agg::is_request(request.type()))) {
    counters_.verdicts.count(known ? Verdict::kBadType : found);
    rte_pktmbuf_free(packet);
    return;
  }
  agg::PuntReason reason = agg::PuntReason::kUnauthenticated;
  std::uint64_t sender = sender_of(frame);
  if (foreign || request.type() == wire::PacketType::kJoin) {
    reason = agg::PuntReason::kJoin;
  } else if (shard_.is_member(request.common())) {
    reason = agg::PuntReason::kMember;
    sender = request.common().cookie;  // many members may share an address
  }
  to_control(lane, reason, PacketMeta::Kind::kControl, sender, packet, now);
}

void Worker::to_control(Lane& lane, agg::PuntReason reason, PacketMeta::Kind kind,
                        std::uint64_t sender, rte_mbuf* packet, TimeNs now) noexcept {
  const bool member = reason == agg::PuntReason::kMember;
  if (!intakes_[lane.port().index()].admit(reason, sender, now)) {
    drop(lane, member ? DropReason::kMemberFlood : DropReason::kControlStrangers, packet);
    return;
  }
  meta_of(packet) = {.kind = kind, .port = lane.port().index()};
  const RingPtr& ring =
      reason == agg::PuntReason::kJoin ? context_.joins : context_.unauthenticated;
  if (rte_ring_enqueue((member ? context_.from_members : ring).get(), packet) != 0)
    drop(lane, member ? DropReason::kControlMembers : DropReason::kControlStrangers, packet);
}

void Worker::answer(Lane& lane, const wire::Frame& frame, rte_mbuf* packet, TimeNs now) noexcept {
  agg::Intake& intake = intakes_[lane.port().index()];
  const bool ping = is_ping(frame, context_.own);
  if (ping && !intake.admit(agg::PuntReason::kEcho, sender_of(frame), now)) {
    drop(lane, DropReason::kAnswerBudget, packet);
    return;
  }
  rte_mbuf* reply = rte_pktmbuf_alloc(context_.pool.get());
  if (reply == nullptr) {
    drop(lane, DropReason::kNoBuffer, packet);
    return;
  }
  const HostAnswer result = answer_as_host(frame, context_.own, room_of(reply));
  // The budget is asked after the answer, since most ARP is about other hosts and needs none.
  if (result.outcome == HostOutcome::kAnswered && !ping &&
      !intake.admit(agg::PuntReason::kNeighbour, sender_of(frame), now)) {
    rte_pktmbuf_free(reply);
    drop(lane, DropReason::kAnswerBudget, packet);
    return;
  }
  if (result.outcome == HostOutcome::kAnswered) {
    set_frame_bytes(reply, result.reply_bytes);
    send(lane.port().index(), Classifier::of_control(), reply, counters_.drops);
    rte_pktmbuf_free(packet);
    return;
  }
  rte_pktmbuf_free(reply);
  switch (result.outcome) {
    case HostOutcome::kUnreachable:
      to_control(lane, agg::PuntReason::kUnauthenticated, PacketMeta::Kind::kUnreachable,
                 sender_of(frame), packet, now);
      return;
    case HostOutcome::kConflict:
      to_control(lane, agg::PuntReason::kUnauthenticated, PacketMeta::Kind::kConflict,
                 sender_of(frame), packet, now);
      return;
    case HostOutcome::kIgnored:
    case HostOutcome::kAnswered: break;
  }
  if (frame.ethernet.dst.is_group())
    rte_pktmbuf_free(packet);  // ARP for others is no drop
  else
    drop(lane, DropReason::kNotAnswered, packet);
}

}  // namespace sluice::dataplane

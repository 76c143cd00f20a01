// The groups of a session and their operations: what a job of kind operations does.
//
// The owner (the session, or a test) drives it as it drives a stream: packets and time in, packets
// and events out. Its flows are the link's: the owner gives each packet's header to its flow first.
// Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/operations/group.h"

namespace sluice::client {

class Operations {
 public:
  // `survives`: its groups keep what they need to go on when their appliance is lost.
  Operations(Link& link, std::uint16_t chunk_bytes, bool survives = false);

  // A group that the appliance is still to make. `ranks` are in ascending order, and this one is
  // among them. Its texts begin with `error_prefix`. Precondition: the link is joined.
  Group& make(std::string name, std::vector<Rank> ranks, std::string error_prefix,
              std::uint64_t first_chunk = 0);
  // It has no open operation, and this member calls no more in it.
  void remove(const Group& group);
  Group* find(std::uint16_t id) noexcept;  // one that is made
  // The link has new flows, to an appliance that knows no group: see Group::resume().
  void lose_appliance();

  // ---- what arrives: results, answers, floors, outcomes ----
  // None: the packet is of no group, or of none that this member has.
  std::optional<std::uint16_t> shard_of(const wire::Packet& packet) noexcept;
  Verdict handle(const wire::Packet& packet, std::uint16_t shard, TimeNs now);
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept;
  // The packet of that number is lost.
  void lose(std::uint16_t shard, std::uint32_t number) noexcept;
  // After each datagram and timeout, and once what is lost is known.
  void recover(std::uint16_t shard, TimeNs now) noexcept;

  // ---- what leaves ----
  bool poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) noexcept;
  // Calls, then floors, then data: the most urgent, and among equals the sequences in turn.
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept;
  TimeNs next_timeout() const noexcept;
  bool poll_event(OperationEvent& event);

 private:
  bool write_part(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) noexcept;

  Link& link_;
  const std::uint16_t chunk_bytes_;
  const bool survives_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::size_t turn_ = 0;  // of a sequence, among all
};

}  // namespace sluice::client

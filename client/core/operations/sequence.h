// One sequence of a group, as a member sees it: its open calls, the window of chunks between the
// group's floor and the slots, and what became of each chunk.
//
// A chunk is admitted, in order, when the block in which it lies ends below floor + slots: only
// then is it sent or awaited. Its place in Recovery is its number modulo a capacity that all later
// slots fit into, and a place is used again only when the floor has passed its chunk. Numbers of
// chunks are 64 bits here. Pure; the session's thread only. It allocates with each call.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "aggregator/base/status.h"
#include "aggregator/base/verdict.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/types.h"
#include "client/core/link/link.h"
#include "client/core/link/recovery.h"
#include "client/core/operations/call.h"

namespace sluice::client {

// Enough for what the windows of all flows let this member have on the way, twice.
std::uint64_t capacity_for(const Link& link) noexcept;

class Sequence {
 public:
  // `first_chunk` > 0 only in tests of numbers that wrap.
  Sequence(const GroupFacts& group, wire::Sequence id, Link& link, std::uint64_t first_chunk = 0);

  wire::Sequence id() const noexcept { return id_; }

  // ---- calls ----
  // Describes the call as it is told to others. Precondition: it is possible.
  wire::Description describe(const OperationCall& call, std::uint64_t number) const noexcept;
  // Returns the end of its chunks.
  std::uint64_t begin(const OperationCall& call, const wire::Description& what,
                      std::uint64_t number, TimeNs now);
  // It is over for this member, completed or not. Of what is completed the sequence keeps a copy as
  // long as other members may lack it.
  void end(std::uint64_t number, bool completed) noexcept;
  // A call of which every chunk is over; true once for each.
  struct Done {
    std::uint64_t number = 0;
    bool non_finite = false;
    bool unsure = false;  // it may have ended otherwise: its owner asks before it says so
  };
  bool poll_done(Done& done) noexcept;

  // ---- what arrives ----
  Verdict handle_result(const wire::Packet& packet, TimeNs now) noexcept;
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) noexcept;
  // The packet of that number is lost: what it carried of this sequence is sent again.
  void lose(std::uint16_t shard, std::uint32_t number) noexcept;
  // Of every packet: before it is handled. `sure`: what is below the floor is complete.
  void learn(const wire::GroupState& state, bool sure, TimeNs now) noexcept;
  // A call that a result differs from; kNothing: none. Its owner asks about it.
  static constexpr std::uint64_t kNothing = UINT64_MAX;
  std::uint64_t take_doubtful() noexcept { return std::exchange(doubtful_, kNothing); }
  void confirm_arrived(std::uint16_t shard) noexcept;
  // Somebody is stopped, and this member's floor is asked for.
  void ask_floor() noexcept { asked_ = true; }

  // ---- what leaves ----
  // The header of a packet of this sequence to a shard, which tells this member's floor.
  wire::GroupHeader header_to(std::uint16_t shard) noexcept;
  // How urgent the next chunk for the shard is; kIdle: there is none. Less is more urgent. Calls
  // from `number_limit` on wait, but for those that have ended. A chunk at the group's floor is
  // always the most urgent.
  static constexpr int kIdle = 256;
  int urgency(std::uint16_t shard, std::uint64_t number_limit) noexcept;
  // Whether nothing is to be sent to the shard behind the chunk that urgency() has found.
  bool is_last(std::uint16_t shard, std::uint64_t number_limit) noexcept;
  // Writes that chunk. Precondition: urgency() was not kIdle. `last`: nothing else is to be sent.
  void write_next(std::uint16_t shard, bool last, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) noexcept;
  bool poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) noexcept;
  bool poll_floor(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept;

  // ---- what was lost ----
  bool in_use() const noexcept { return recovery_.has_value(); }
  bool outstanding(std::uint16_t shard) const noexcept {
    return in_use() && !recovery_->nothing_outstanding(shard);
  }
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
    recovery_->hint(shard, signals, now, link_.flows[shard]);
  }
  void work(std::uint16_t shard, TimeNs now) noexcept {
    recovery_->work(shard, now, link_.flows[shard]);
  }
  TimeNs next_timeout() const noexcept;

  // ---- an appliance that is lost (sequence_resume.cc) ----
  // The link's flows are new. What this member has, it will give; what it has contributed without
  // a result, it will contribute again.
  void lose_appliance();
  // The sequence goes on with that floor of the group. False: it can't be that.
  bool resume(std::uint64_t floor, TimeNs now);

  // Some of these chunks was over and is still to be sent again.
  bool owes(std::uint64_t first, std::uint64_t end) const noexcept;

  std::uint64_t floor() const noexcept;  // this member's
  std::uint64_t group_floor() const noexcept { return group_floor_; }
  TimeNs last_progress_ns() const noexcept { return last_progress_ns_; }

 private:
  void send_again(std::uint32_t block, std::uint64_t chunks) noexcept;
  struct Departure {  // of a chunk whose result is not wanted
    std::uint32_t number = 0;
    std::uint32_t block = 0;
  };
  struct Choice {
    int urgency = kIdle;
    OpenCall* call = nullptr;
    std::uint64_t chunk = 0;
    bool again = false;
  };

  OpenCall* find(std::uint64_t chunk) noexcept;
  bool is_over(std::uint64_t chunk) const noexcept {
    return was_over_.has(chunk) || (chunk < admitted_ && !recovery_->lacks(place_of(chunk)));
  }
  // This member has the result for those that lack it.
  bool gives(const OpenCall& call, std::uint64_t chunk) const noexcept {
    return was_over_.has(chunk) && call.wants(group_, chunk);
  }
  bool sends(const OpenCall& call, std::uint64_t chunk) const noexcept {
    return call.contributes(group_, chunk) || gives(call, chunk);
  }
  std::uint32_t place_of(std::uint64_t chunk) const noexcept {
    return static_cast<std::uint32_t>(chunk % capacity_);
  }
  std::uint16_t shard_of(std::uint64_t chunk) const noexcept {
    return static_cast<std::uint16_t>(chunk / kChunksPerBlock % link_.shard_count());
  }
  std::uint64_t chunk_limit() const noexcept;  // admitted chunks end there
  void admit(TimeNs now) noexcept;
  void raise(std::uint64_t floor, bool sure, TimeNs now) noexcept;
  void over(OpenCall& call, std::uint64_t chunk, TimeNs now) noexcept;
  void count_over(OpenCall& call) noexcept;
  void advance_floor(OpenCall& call) const noexcept;
  void skip_foreign(OpenCall& call, std::uint16_t shard) const noexcept;
  Choice choose(std::uint16_t shard, std::uint64_t number_limit) noexcept;
  std::size_t write_part(const OpenCall& call, std::uint64_t chunk, wire::Part& body,
                         std::span<std::uint8_t> out, Transmit& transmit) noexcept;
  Priority least_urgent() const noexcept;
  bool is_stopped() const noexcept;
  bool floor_due() const noexcept;
  std::uint64_t wanted_slots() const noexcept;

  const GroupFacts& group_;
  const wire::Sequence id_;
  Link& link_;
  std::uint64_t capacity_ = 0;  // chunks, a multiple of blocks of all shards
  std::optional<Recovery> recovery_;
  std::vector<std::uint64_t> rounds_;   // of each block of places: how often it was used
  std::deque<OpenCall> calls_;          // in order
  KeptCalls kept_;                      // that have ended
  OverChunks was_over_;                 // when the last appliance was lost
  std::vector<std::uint64_t> foreign_;  // chunks of which another operation's result has come
  std::vector<std::deque<std::uint64_t>> again_;   // of each shard: lost chunks, to be sent again
  std::vector<std::deque<Departure>> departures_;  // of each shard
  std::deque<Done> done_;

  std::uint64_t group_floor_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t next_ = 0;      // the first chunk that is not called
  std::uint64_t admitted_ = 0;  // the first chunk that is not admitted
  std::uint64_t passed_ = 0;    // results up to it have come before their call
  std::uint64_t told_ = 0;      // this member's floor, as shard 0 was told last
  bool asked_ = false;          // somebody is stopped and asks for it
  TimeNs may_tell_ns_ = 0;
  TimeNs stopped_ns_ = 0;   // when to say (again) that the floor stops this member
  TimeNs may_grow_ns_ = 0;  // and when, if it could use more slots
  int stopped_count_ = 0;   // how often it was said in vain
  std::uint64_t doubtful_ = kNothing;
  TimeNs last_progress_ns_ = 0;
  Choice choice_;  // of urgency()
};

}  // namespace sluice::client

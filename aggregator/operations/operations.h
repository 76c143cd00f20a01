// A shard's part of a job of kind operations: what its groups' packets do, and what is to be sent.
//
// Pure: fields of packets go in, verdicts come out; results, notices and requests to the control
// side wait to be polled. core/shard_operations.cc drives it from packets. All calls are on the
// shard's lcore. No allocation after set-up; groups come with theirs (group.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/verdict.h"
#include "aggregator/operations/group.h"
#include "aggregator/operations/slot_pool.h"
#include "aggregator/operations/spec.h"
#include "aggregator/wire/group.h"

namespace sluice::agg {

// A complete chunk, to one rank. Its bytes are valid until the next call of the shard.
struct PartOut {
  const Group* group = nullptr;
  wire::Sequence sequence{};
  std::uint64_t chunk = 0;
  std::uint32_t hash = 0;
  Rank rank;
  Priority priority = 0;
  bool finite = true;
  bool divided = false;  // a mean of float32 that a member has given
  std::uint64_t payload_sum = 0;
  std::span<const std::uint8_t> payload;
};

// From shard 0 to one rank: a floor, or what became of an operation.
struct GroupNotice {
  Group* group = nullptr;
  wire::Sequence sequence{};
  bool is_outcome = false;
  wire::Floor floor;  // these bodies lack their feedback and the group's state
  wire::Outcome outcome;
  std::array<wire::Behind, wire::kMaxBehind> behind{};
};

// To the control side, which carries it out in every shard.
struct OperationsRequest {
  enum class Kind : std::uint8_t {
    kReserve,  // `slots` for the sequence: grow() with them, or with 0 when the job has not so many
    kHold,     // hold() the chunks [first, end) of the operation with this hash
    kSettled,  // all shards have done one of these: settled()
    kBreak,    // to the shards: the member `rank` has aborted the group: remove_member()
    kLeave,    // to the shards: it leaves, and has called the operations below `first`: likewise
  };
  Kind kind{};
  Group* group = nullptr;
  wire::Sequence sequence{};
  std::uint32_t slots = 0;
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint32_t hash = 0;
  Rank rank;
};

class OperationShard {
 public:
  OperationShard(const OperationsSpec& spec, ShardId shard, BuildProgress* progress = nullptr);
  static std::size_t memory_bytes(const OperationsSpec& spec) noexcept;

  // ---- packets ----
  Verdict part(Rank rank, const wire::Part& body, std::span<const std::uint8_t> payload) noexcept;
  Verdict call(Rank rank, const wire::Call& body) noexcept;
  Verdict floors(Rank rank, const wire::Floors& body) noexcept;
  // kProbe: it may be answered.
  Verdict probe(Rank rank, const wire::PartProbe& body) noexcept;

  // ---- answers to probes ----
  struct BlockState {
    std::uint64_t counted = 0;
    std::uint64_t complete = 0;
    Priority priority = 0;  // of the least urgent complete chunk
  };
  // Null: there is no such group any more.
  Group* find(std::uint16_t group) const noexcept {
    return group < groups_.size() ? groups_[group] : nullptr;
  }
  BlockState block_state(const Group& group, wire::Sequence sequence, std::uint32_t first,
                         Rank rank) noexcept;
  // The result of a chunk of that block. False: it cannot be had (any more).
  bool read(const Group& group, wire::Sequence sequence, std::uint32_t first, std::uint32_t index,
            Rank rank, PartOut& out) noexcept;

  // ---- what is to be sent ----
  bool has_results() const noexcept { return !pool_.queue_empty(); }
  bool poll_result(PartOut& out) noexcept;
  bool has_notice(Rank rank) const noexcept;
  bool poll_notice(Rank rank, GroupNotice& notice) noexcept;
  // The rank that has a notice since the last call; false: none has.
  bool poll_noticed(Rank& rank) noexcept;
  // The state of a sequence in a packet to a rank, which is told by it.
  wire::GroupState state_for(const Group& group, wire::Sequence sequence, Rank rank) noexcept;

  // ---- the control side ----
  bool has_requests() const noexcept { return request_count_ != 0; }
  bool poll_request(OperationsRequest& request) noexcept;
  void add(Group& group) noexcept;
  void remove(Group& group) noexcept;
  // It is no member of the group any more, which breaks that; null: of all of its groups. `called`:
  // it has called all operations below this number, modulo 2^32, and only another one breaks it.
  void remove_member(Rank rank, Group* group = nullptr,
                     std::optional<std::uint32_t> called = {}) noexcept;
  void grow(Group& group, wire::Sequence sequence, std::uint32_t slots) noexcept;
  void hold(const OperationsRequest& request) noexcept;
  void settled(Group& group) noexcept;

 private:
  struct Sender {  // of a packet
    Group* group = nullptr;
    std::uint16_t place = 0;
    wire::Sequence id{};
    SequenceSlice* sequence = nullptr;
  };
  Verdict enter(Rank rank, const wire::GroupHeader& header, Sender& sender) noexcept;
  void note_floor(const Sender& sender, std::uint32_t floor) noexcept;
  void raise(Group& group, wire::Sequence id, std::uint64_t floor) noexcept;
  Verdict check_part(const Sender& sender, const wire::Part& body,
                     std::uint64_t chunk) const noexcept;
  void fold(const Sender& sender, const wire::Part& body, std::uint32_t index,
            std::span<const std::uint8_t> payload) noexcept;
  void complete(const Group& group, std::uint32_t index) noexcept;
  bool all_complete(const OperationsRequest& request) noexcept;

  // operations_calls.cc
  void ask(const Sender& sender, std::uint64_t number, const wire::Description& what) noexcept;
  bool answer(Group& group, std::uint16_t place, const Asks::Ask& ask,
              GroupNotice& notice) noexcept;
  void judge(Group& group) noexcept;
  void want_slots(Group& group, wire::Sequence id, std::uint32_t wanted) noexcept;
  void follow_resumption(Group& group) noexcept;  // resume.cc
  void note_due(Group& group) noexcept;
  void make_due(const Group& group, std::uint16_t place) noexcept;
  void request(const OperationsRequest& request) noexcept;

  PartOut part_out(std::uint32_t index, Rank rank) noexcept;
  SequenceSlice& slice_of(Group& group, wire::Sequence id) const noexcept {
    return group.slices[shard_.value].sequences[static_cast<std::size_t>(id)];
  }

  const OperationsSpec spec_;
  const ShardId shard_;
  const std::size_t mask_word_count_;
  SlotPool pool_;
  std::array<Group*, kMaxGroups> groups_{};
  // Of shard 0, by rank: groups with a notice; and the ranks that have one, each once.
  std::vector<std::array<std::uint64_t, kMaxGroups / 64>> due_;
  std::vector<Rank> noticed_;
  std::size_t noticed_count_ = 0;
  std::vector<OperationsRequest> requests_;  // a ring
  std::size_t request_head_ = 0;
  std::size_t request_count_ = 0;
};

}  // namespace sluice::agg

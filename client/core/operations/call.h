// An operation as a member calls it, and its data: where a chunk is read and written.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/operation.h"
#include "client/core/calls/types.h"

namespace sluice::client {

inline constexpr Priority kUsualPriority = 128;

// `bytes` are of the data; of one rank's part for reduce-scatter and all-gather. What a kind does
// not need may be null. Both buffers are the operation's until its event. Input and output may be
// the same memory; of all-gather and reduce-scatter the part may be this rank's part of the whole.
struct OperationCall {
  wire::OperationKind kind{};
  Dtype dtype = Dtype::kBytes;
  Dtype wire = Dtype::kBytes;  // in which it travels; a narrower format rounds to nearest
  wire::Reduction reduction{};
  std::uint16_t root = wire::kNoRank;  // a rank of the job
  std::uint64_t bytes = 0;
  const void* input = nullptr;
  void* output = nullptr;
  Priority priority = kUsualPriority;  // 0 is the most urgent
  DurationNs patience_ns = kNever;     // then the member gives it up
  OperationDone done = {};
  bool held = false;  // its buffers are not there yet: Group::release()
};

// A group's facts, which its sequences share.
struct GroupFacts {
  std::uint16_t id = 0;
  std::uint32_t generation = 0;
  std::vector<Rank> members;  // in ascending order
  std::uint16_t place = 0;    // this member's
  std::uint16_t chunk_bytes = 0;
  bool survives = false;  // the loss of its appliance
};

// One that is under way in its sequence.
struct OpenCall {
  wire::Description what;
  std::uint64_t number = 0;
  std::uint64_t first = 0;  // chunk of the sequence
  std::uint64_t end = 0;
  std::uint32_t hash = 0;
  wire::Cut cut;
  const std::uint8_t* input = nullptr;
  std::uint8_t* output = nullptr;
  Priority priority = kUsualPriority;
  std::uint64_t left = 0;   // chunks that are not over for this member
  std::uint64_t floor = 0;  // the first chunk whose result it wants and lacks; `end`: none
  // The first chunk of which another operation's result has come: the floor stays below until shard
  // 0 has judged, or the chunk would count as had.
  std::uint64_t differs_from = UINT64_MAX;
  bool non_finite = false;
  bool ended = false;  // completed for its caller: what others may still lack is in `kept`
  std::vector<std::uint8_t> kept;  // as it travels, chunk_bytes apart, from chunk kept_from on
  std::uint64_t kept_from = 0;
  bool unsure = false;  // of some chunk only the floor says that it is over: it may be void
  // Of each shard the first of its chunks that has not been sent for the first time.
  std::array<std::uint64_t, kMaxShards> next_send{};

  bool contains(std::uint64_t chunk) const noexcept { return first <= chunk && chunk < end; }
  std::uint16_t owner_of(const GroupFacts& group, std::uint64_t chunk) const noexcept;
  bool is_owner(const GroupFacts& group, std::uint64_t chunk) const noexcept {
    return owner_of(group, chunk) == group.members[group.place].value;
  }
  bool wants(const GroupFacts& group, std::uint64_t chunk) const noexcept {
    return wire::wants_result(what.kind, is_owner(group, chunk));
  }
  bool contributes(const GroupFacts& group, std::uint64_t chunk) const noexcept {
    return wire::needs_all(what.kind) || is_owner(group, chunk);
  }
  void begin_sending(std::uint16_t shard_count) noexcept;

  // ---- data; cold calls copy, hot ones do not ----
  // What the member contributes of a chunk, or its result. Either `payload` is that, or it is
  // written to `out`. Returns the bytes that are written.
  std::size_t part_of(const GroupFacts& group, std::uint64_t chunk, bool result,
                      std::span<std::uint8_t> out,
                      std::span<const std::uint8_t>& payload) const noexcept;
  // `divided`: a mean is one already.
  void read_result(const GroupFacts& group, std::uint64_t chunk,
                   std::span<const std::uint8_t> payload, bool divided) noexcept;
  // It has ended completed: copies what is from that chunk on, in wire format, so that a mean or a
  // rounded sum is given bit for bit.
  void keep(const GroupFacts& group, std::uint64_t from);
};

// Completed calls with their copies, in order, for an appliance that knows nothing.
class KeptCalls {
 public:
  void add(OpenCall call);
  // The group's floor has passed what is below, of these and of those that are told again.
  void forget(std::uint64_t floor, std::deque<OpenCall>& calls) noexcept {
    while (!calls_.empty() && calls_.front().end <= floor) calls_.pop_front();
    while (!calls.empty() && calls.front().ended && calls.front().end <= floor) calls.pop_front();
  }
  // They are to be told again, with the open ones.
  void move_to(std::deque<OpenCall>& calls);

 private:
  std::deque<OpenCall> calls_;
};

// Which chunks were over for a member when its appliance was lost.
class OverChunks {
 public:
  bool has(std::uint64_t chunk) const noexcept {
    return chunk - first_ < over_.size() && over_[chunk - first_] != 0;
  }
  std::uint64_t end() const noexcept { return first_ + over_.size(); }
  void assign(std::uint64_t first, std::vector<std::uint8_t> over) noexcept {
    first_ = first;
    over_ = std::move(over);
  }

 private:
  std::uint64_t first_ = 0;
  std::vector<std::uint8_t> over_;
};

}  // namespace sluice::client

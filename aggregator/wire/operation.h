// What the members of a group do together, and how it is cut into chunks.
//
// A group is some ranks of a job of kind operations. Its members call operations in one order. The
// chunks of an operation are consecutive chunks of one of the group's four sequences; kind and
// bytes choose the sequence, so all members choose alike. Ranks here are those of the job; a member
// of a group has a place in the group's list of ranks, which is in ascending order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"

namespace sluice::wire {

enum class OperationKind : std::uint8_t {
  kAllReduce,      // the sum of all, to all
  kReduceScatter,  // of the sum of all a part to each
  kAllGather,      // the part of each, to all
  kBroadcast,      // the root's data, to all
  kReduce,         // the sum of all, to the root
  kBarrier,        // no data: over once all have called it
};

enum class Reduction : std::uint8_t { kSum, kMean };

enum class Sequence : std::uint8_t {
  kUp,     // what fills uplinks: reduce-scatter, reduce
  kDown,   // what fills downlinks: all-gather, broadcast
  kBoth,   // all-reduce, barrier
  kSmall,  // of any kind, up to kSmallBytes: it never stands behind a big one
};
inline constexpr std::size_t kSequenceCount = 4;
inline constexpr std::uint64_t kSmallBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMaxOperationBytes = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMaxOperationChunks = std::uint64_t{1} << 31;
inline constexpr std::uint16_t kNoRank = UINT16_MAX;

// Numbers of operations and of chunks travel as u32, which wrap, and are compared as serial numbers
// (RFC 1982). Both ends count in 64 bits: this is the number nearest to `near` that travels as
// `number`.
constexpr std::uint64_t unwrap(std::uint32_t number, std::uint64_t near) noexcept {
  const auto distance = static_cast<std::int32_t>(number - static_cast<std::uint32_t>(near));
  return near + static_cast<std::uint64_t>(std::int64_t{distance});
}

// Of one operation; all members must agree on all of it.
struct [[gnu::packed]] Description {
  std::uint64_t bytes = 0;   // of the data; of one rank's part for reduce-scatter and all-gather
  std::uint32_t number = 0;  // in its group, from 0
  std::uint32_t first = 0;   // the first of its chunks
  std::uint16_t root = kNoRank;  // of broadcast and reduce
  OperationKind kind{};
  Dtype dtype = Dtype::kBytes;  // of the caller's elements
  Dtype wire = Dtype::kBytes;   // in which they travel
  Reduction reduction{};

  friend constexpr bool operator==(const Description&, const Description&) = default;
};
static_assert(sizeof(Description) == 22);

constexpr bool has_root(OperationKind kind) noexcept {
  return kind == OperationKind::kBroadcast || kind == OperationKind::kReduce;
}
// Each rank has a part of its own.
constexpr bool has_parts(OperationKind kind) noexcept {
  return kind == OperationKind::kReduceScatter || kind == OperationKind::kAllGather;
}
// A chunk is complete once all members are in; else once its owner is.
constexpr bool needs_all(OperationKind kind) noexcept {
  return kind != OperationKind::kAllGather && kind != OperationKind::kBroadcast;
}
// A chunk has an owner: the root, or the rank whose part it is of.
constexpr bool has_owner(OperationKind kind) noexcept { return has_root(kind) || has_parts(kind); }
// Who gets a chunk's result. The owner of what needs nobody else has it already.
constexpr bool wants_result(OperationKind kind, bool is_owner) noexcept {
  if (!has_owner(kind)) return true;
  return needs_all(kind) == is_owner;
}
constexpr bool is_reduction(OperationKind kind) noexcept {
  return needs_all(kind) && kind != OperationKind::kBarrier;
}

// The chunks of an operation: chunk i is of part i mod parts, so neighbours have different owners
// and no chunk crosses a part.
class Cut {
 public:
  constexpr Cut(const Description& what, std::size_t member_count, std::size_t chunk_bytes) noexcept
      : part_bytes_(what.bytes / dtype_bytes(what.dtype) * dtype_bytes(what.wire)),
        chunk_bytes_(chunk_bytes),
        parts_(has_parts(what.kind) ? member_count : 1) {
    DCHECK(member_count != 0 && chunk_bytes != 0);
  }
  constexpr std::uint64_t chunk_count() const noexcept {
    return std::max<std::uint64_t>(1, (part_bytes_ + chunk_bytes_ - 1) / chunk_bytes_) * parts_;
  }
  // The place in the group of the rank whose part it is; 0 where there are no parts.
  constexpr std::size_t part_of(std::uint64_t index) const noexcept { return index % parts_; }
  // Where the chunk begins in its part, as it travels.
  constexpr std::uint64_t offset_of(std::uint64_t index) const noexcept {
    return index / parts_ * chunk_bytes_;
  }
  constexpr std::uint16_t bytes_of(std::uint64_t index) const noexcept {
    return static_cast<std::uint16_t>(
        std::min<std::uint64_t>(chunk_bytes_, part_bytes_ - offset_of(index)));
  }

 private:
  std::uint64_t part_bytes_;
  std::uint64_t chunk_bytes_;
  std::uint64_t parts_;
};

constexpr Sequence sequence_of(const Description& what, std::size_t member_count) noexcept {
  if (what.bytes * (has_parts(what.kind) ? member_count : 1) <= kSmallBytes)
    return Sequence::kSmall;
  switch (what.kind) {
    case OperationKind::kReduceScatter:
    case OperationKind::kReduce: return Sequence::kUp;
    case OperationKind::kAllGather:
    case OperationKind::kBroadcast: return Sequence::kDown;
    case OperationKind::kAllReduce:
    case OperationKind::kBarrier: break;
  }
  return Sequence::kBoth;
}

// Whether there can be such an operation; the root is checked against the group by its caller.
constexpr bool is_possible(const Description& what) noexcept {
  if (what.kind > OperationKind::kBarrier || what.reduction > Reduction::kMean) return false;
  if (what.dtype > Dtype::kBytes || what.wire > Dtype::kBytes) return false;
  if (what.bytes > kMaxOperationBytes || what.bytes % dtype_bytes(what.dtype) != 0) return false;
  if (has_root(what.kind) != (what.root < kMaxWorkers)) return false;
  if (!has_root(what.kind) && what.root != kNoRank) return false;
  if (what.kind == OperationKind::kBarrier && what.bytes != 0) return false;
  if (is_reduction(what.kind)) {
    if (what.dtype == Dtype::kBytes || what.wire == Dtype::kBytes) return false;
    return what.wire == what.dtype || what.dtype == Dtype::kFloat32;
  }
  // What is not summed travels as it is.
  return what.dtype == Dtype::kBytes && what.wire == Dtype::kBytes &&
         what.reduction == Reduction::kSum;
}

// Of the description in its group. Every packet of the operation carries it.
inline std::uint32_t hash_of(const Description& what, std::uint16_t group,
                             std::uint32_t generation) noexcept {
  std::uint64_t words[4] = {std::uint64_t{group} << 32 | generation, 0, 0, 0};
  static_assert(sizeof what <= sizeof words - sizeof words[0]);
  std::memcpy(&words[1], &what, sizeof what);
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words) {  // the mixer of SplitMix64
    hash += word + 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
    hash ^= hash >> 31;
  }
  return static_cast<std::uint32_t>(hash ^ hash >> 32);
}

}  // namespace sluice::wire

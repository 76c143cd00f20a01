// The ids of the protocol as distinct types, and the small enumerations that both ends share.
//
// A job is one training run, a rank one of its workers, a stream one of the three kinds of traffic
// that its kind has, a chunk a range of one tensor that fits one packet.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace sluice {

// An integer that does not mix with other ids. `value` is public: arithmetic is spelled out.
template <class Tag, class Integer>
struct Id {
  using Value = Integer;
  Integer value{};
  friend constexpr auto operator<=>(Id, Id) = default;
};

using JobId = Id<struct JobTag, std::uint16_t>;      // index into the appliance's job table
using Rank = Id<struct RankTag, std::uint16_t>;      // 0 .. world size - 1
inline constexpr Rank kAnyRank{UINT16_MAX};          // of a join: the job gives one
using ShardId = Id<struct ShardTag, std::uint16_t>;  // 0 .. shards - 1
using PathId = Id<struct PathTag, std::uint32_t>;    // names a proven network path of a member

using Step = std::uint32_t;        // from 1; 0 means "none"; never wraps
using ChunkIndex = std::uint32_t;  // within one stream's layout
using Cookie = std::uint64_t;      // proves membership; 0 is never valid
using Priority = std::uint8_t;     // 0 is the most urgent
inline constexpr Priority kLeastUrgent = 255;
inline constexpr unsigned kPrioritiesOfClass =
    8;  // priorities in a row that share a class of a port

enum class StreamId : std::uint8_t {
  kGradients = 0,    // a sum of all workers in each step
  kCollectives = 1,  // broadcast and barrier, at most kCollectiveChunks chunks each
  kState = 2,        // parameters and optimizer state, for resync
  kPushes = 3,       // updates to a store's blocks
  kPulls = 4,        // values of a store's blocks
  kOperations = 5,   // chunks of groups' sequences
};
inline constexpr std::size_t kStreamCount = 6;
// A stream's chunks belong to steps, which have records and slots. A store's blocks have clocks,
// and a group's sequences floors.
constexpr bool has_steps(StreamId stream) noexcept { return stream <= StreamId::kState; }

// The kind of a job: the appliance keeps sums of its workers' gradients, or their parameters
// (store/), or carries out operations of any length between groups of them (operations/).
enum class JobKind : std::uint8_t { kSums = 0, kStore = 1, kOperations = 2 };

// A job's kind is its list of streams. Arrays with an entry a stream of a job are in the order of
// that list. Chunks of the first stream are those of the job's tensors.
inline constexpr std::size_t kStreamsOfJob = 3;
using StreamList = std::array<StreamId, kStreamsOfJob>;
constexpr StreamList streams_of(JobKind kind) noexcept {
  switch (kind) {
    case JobKind::kSums: break;
    case JobKind::kStore: return {StreamId::kPushes, StreamId::kCollectives, StreamId::kPulls};
    case JobKind::kOperations:
      return {StreamId::kOperations, StreamId::kCollectives, StreamId::kState};
  }
  return {StreamId::kGradients, StreamId::kCollectives, StreamId::kState};
}
inline constexpr std::size_t kTensorStream = 0;
// The stream's place in that list.
constexpr std::size_t index_of(StreamId stream) noexcept {
  switch (stream) {
    case StreamId::kGradients:
    case StreamId::kPushes:
    case StreamId::kOperations: return kTensorStream;
    case StreamId::kCollectives: return 1;
    case StreamId::kState:
    case StreamId::kPulls: break;
  }
  return 2;
}

// Types of tensors' elements, and of elements on the wire. kBytes is opaque data, which is copied
// and never summed. kInt8 is no tensor's type: it is float32 elements on the wire, with a scale
// behind each chunk.
enum class Dtype : std::uint8_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBfloat16 = 2,
  kBytes = 3,
  kInt8 = 4
};

constexpr std::size_t dtype_bytes(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kFloat32: return 4;
    case Dtype::kFloat16:
    case Dtype::kBfloat16: return 2;
    case Dtype::kBytes:
    case Dtype::kInt8: return 1;
  }
  return 0;
}

constexpr bool is_summed(Dtype dtype) noexcept {
  return dtype <= Dtype::kBfloat16 || dtype == Dtype::kInt8;
}
// Formats in which float32 may travel, with a loss.
constexpr bool is_narrow(Dtype wire) noexcept { return wire != Dtype::kFloat32 && is_summed(wire); }

// The size of a chunk's elements on the wire.
inline constexpr std::size_t kScaleBytes = sizeof(float);
constexpr std::size_t payload_bytes(Dtype dtype, std::size_t elem_count) noexcept {
  return elem_count * dtype_bytes(dtype) +
         (dtype == Dtype::kInt8 && elem_count != 0 ? kScaleBytes : 0);
}

// A transfer is a broadcast on stream kState between two ranks: the root's data is passed on when
// the receiver has everything before it.
enum class CollectiveKind : std::uint8_t { kBroadcast = 0, kBarrier = 1, kTransfer = 2 };

// The average that workers compute from a sum, as the application chose it; all ranks must choose
// the same.
enum class AveragingChoice : std::uint8_t { kDefault = 0, kWeight = 1, kWorld = 2, kSum = 3 };

}  // namespace sluice

// The bodies of the packets of groups, on the data ports: operations of any length.
//
// A member's floor in a sequence is the lowest chunk of an operation that it has not called yet, or
// whose result it wants and lacks. The group's floor is the least of its members'. A member sends a
// chunk only below floor + slots, so one slot a chunk serves operations of any length. All floors
// and chunks are of the sequence that the header names.
#pragma once

#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/wire/header.h"
#include "aggregator/wire/operation.h"

namespace sluice::wire {

// In every packet of a member.
struct [[gnu::packed]] GroupHeader {
  std::uint32_t generation = 0;   // one more at each reconfiguration
  std::uint32_t floor = 0;        // the member's own
  std::uint32_t group_floor = 0;  // the newest that it knows
  std::uint16_t group = 0;
  Sequence sequence{};
  std::uint8_t reserved = 0;
};

// In every packet of the appliance.
struct [[gnu::packed]] GroupState {
  std::uint32_t generation = 0;
  std::uint32_t floor = 0;  // of the group
  std::uint32_t slots = 0;  // only grows; 0: the sequence has not been used yet
  // From shard 0: of the receiver's operations all below this are noted as called.
  std::uint32_t noted = 0;
  std::uint16_t group = 0;
  Sequence sequence{};
  // From shard 0: how many operations of the group have ended without being completed, 255 at
  // most. While none has, what is below the floor is complete, and not void.
  std::uint8_t ended = 0;
};

enum class CallRequest : std::uint8_t {
  kTell,    // a member has called it
  kAsk,     // and wants to know what became of it
  kCancel,  // and waits no longer for it
};

enum class OutcomeCode : std::uint8_t {
  kOpen,       // it is what the call said; some members have not called it, or chunks are open
  kCompleted,  // every chunk is complete in every shard
  kCancelled,  // some chunks were not when `rank` cancelled it: they are void
  kDiffers,    // `rank` and `other` have called different operations: see `expected`, `actual`
  kLost,       // `rank` is gone, and chunks wait for it
  kNoMemory,   // the sequence of the operation gets no slots: the job has none left
};

// To shard 0, which alone fixes what an operation is: by the first call of its number.
struct [[gnu::packed]] Call {
  static constexpr PacketType kType = PacketType::kCall;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  GroupHeader group;
  Description what;
  CallRequest request{};
  // What has become of it for the caller, as the appliance before has said; kOpen: nothing yet.
  // kCompleted: every chunk is complete.
  OutcomeCode heard{};
  std::uint16_t heard_rank = kNoRank;  // the rank that the outcome named
};

// A member's data for a chunk. Its fields repeat what a shard needs of the description.
struct [[gnu::packed]] Part {  // then payload_bytes
  static constexpr PacketType kType = PacketType::kPart;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  GroupHeader group;
  std::uint32_t chunk = 0;
  std::uint32_t hash = 0;  // of the description
  std::uint16_t owner = kNoRank;
  std::uint16_t payload_bytes = 0;
  OperationKind kind{};
  Dtype wire = Dtype::kBytes;
  Reduction reduction{};
  // 1: the result of the chunk, which the appliance before has made. A mean of float32 is divided.
  std::uint8_t given = 0;
};

// To shard 0: the member's floor alone.
struct [[gnu::packed]] Floors {
  static constexpr PacketType kType = PacketType::kFloors;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  GroupHeader group;
  std::uint8_t stopped = 0;  // 1: the group's floor keeps this member from sending
  std::uint8_t reserved = 0;
  // As many as it could use: twice what its windows let it have on the way.
  std::uint32_t wanted_slots = 0;
};

// What became of the chunks of the block of 64 that begins with `first`?
struct [[gnu::packed]] PartProbe {
  static constexpr PacketType kType = PacketType::kPartProbe;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  GroupHeader group;
  std::uint32_t first = 0;
  std::uint64_t want = 0;  // bit i: send the result of chunk first + i if it is complete
};

struct [[gnu::packed]] PartResult {  // then payload_bytes
  static constexpr PacketType kType = PacketType::kPartResult;
  static constexpr std::uint8_t kFlags = kFlagPulled | kFlagNonFinite | kFlagMean;
  FeedbackHeader feedback;
  GroupState group;
  std::uint32_t chunk = 0;
  std::uint32_t hash = 0;
  std::uint16_t payload_bytes = 0;
};

struct [[gnu::packed]] PartAnswer {
  static constexpr PacketType kType = PacketType::kPartAnswer;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  GroupState group;
  std::uint32_t first = 0;
  std::uint64_t counted = 0;   // bit i: this member's part is in, or the chunk is closed
  std::uint64_t complete = 0;  // bit i: the result exists and is not waiting to be sent
  std::uint32_t probe_number = 0;
};

// From shard 0: the group's floor alone.
struct [[gnu::packed]] Floor {
  static constexpr PacketType kType = PacketType::kFloor;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  GroupState group;
  std::uint8_t stopped = 0;  // 1: another member is kept from sending: tell your floor
  std::uint8_t reserved = 0;
};

// A member that has not called the operation.
struct [[gnu::packed]] Behind {
  std::uint16_t rank = 0;
  std::uint32_t operations = 0;  // by which it is behind
};

// From shard 0, of one operation; followed by behind_count Behind.
struct [[gnu::packed]] Outcome {
  static constexpr PacketType kType = PacketType::kOutcome;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  GroupState group;
  std::uint32_t number = 0;
  std::uint32_t called_by_all = 0;  // all operations below it are
  Description expected;             // as the first call has fixed it
  Description actual;               // of kDiffers
  std::uint16_t rank = kNoRank;
  std::uint16_t other = kNoRank;
  OutcomeCode code{};
  std::uint8_t behind_count = 0;
};
inline constexpr std::size_t kMaxBehind = 16;

// Where a member is in a group, as it tells an appliance that knows nothing of the group
// (MakeGroup, on the control port).
struct [[gnu::packed]] GroupPosition {
  // Of each sequence: the member's floor, and the newest of the group's that it has been told.
  std::uint64_t floors[kSequenceCount] = {};
  std::uint64_t group_floors[kSequenceCount] = {};
  // The first operation that it tells again, and one more than the last that is over for it. What
  // is before the first is over for all.
  std::uint64_t first_number = 0;
  std::uint64_t over_number = 0;
  // What has broken the group; kOpen: nothing that the member knows of.
  Description expected;
  Description actual;
  std::uint16_t rank = kNoRank;
  std::uint16_t other = kNoRank;
  OutcomeCode broken{};
};

static_assert(sizeof(GroupHeader) == 16 && sizeof(GroupState) == 20 && sizeof(Part) == 46 &&
              sizeof(PartResult) == 68);
static_assert(sizeof(PartResult) % 2 == 0,
              "a result's payload is summed once for all members, at an even offset");

}  // namespace sluice::wire

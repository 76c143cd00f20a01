// The headers with which every packet of Sluice begins, and the types of packets.
//
// A packet begins with a CommonHeader; on the data ports the header of the flow in its direction
// follows. The flow's headers have the priority, the flags and the numbers of all data packets, so
// a switch that only forwards a packet (peek.h), and the code that counts packets, need not know
// the body.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/wire/checksum.h"

namespace sluice::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, read in place");

// All bodies are [[gnu::packed]]. Under `#pragma pack` a reference could be bound to a field that
// is not aligned.

inline constexpr std::uint16_t kMagic = 0x51C5;
// The CommonHeader, REFUSE, and the nonce at the beginning of a JOIN are the same in every version
// from 4 on: a worker that joins an appliance of another version is told both versions.
inline constexpr std::uint8_t kVersion = 16;

enum class PacketType : std::uint8_t {
  // Control, port P.
  kJoin = 1,        // worker: ask to become a member; sent twice, first to get a challenge
  kChallenge = 2,   // appliance: prove the secret over this server nonce
  kAccept = 3,      // appliance: you are a member; here is the cookie
  kRefuse = 4,      // appliance: no, with a code and a text that prints both values
  kLeave = 5,       // worker: I contribute to no step from these on
  kKeepalive = 6,   // worker: I am alive and my path is this one; also the answer to a ping
  kStatus = 7,      // appliance: answer to a keepalive, leave; sent unasked when the job starts
  kPing = 8,        // appliance: are you there?
  kNotice = 9,      // appliance: the job has ended, and why
  kResync = 10,     // worker: I need another one's state; or: I have it
  kPreparing = 11,  // appliance: the job of this proven join is being made; ask again
  kDiffers = 12,    // appliance: no, the job has other tensors, and which is the first
  kMakeGroup = 13,  // worker: make this group, or let me leave it
  kGroupMade = 14,  // appliance: it is made, or left; or no, with a text
  // Data, port P + 1 + shard.
  kContribution = 16,  // worker: its part of a sum
  kProbe = 17,         // worker: what became of this block of 64 chunks? send the results named
  kCredit = 18,        // worker: only the flow header (credit, report flag)
  kFinished = 19,      // worker, to shard 0: my gradient is finished, whether or not it is sent
  kPiece = 20,         // worker: its part of a broadcast, a barrier or a transfer of state
  kPush = 21,          // worker: what it adds to a chunk of a store
  kPull = 22,          // worker: send these chunks of a store once they are new enough
  kCall = 23,          // worker, to shard 0: an operation of a group that it has called
  kPart = 24,          // worker: its data for a chunk of an operation
  kFloors = 25,        // worker, to shard 0: its floor in a sequence
  kPartProbe = 26,     // worker: what became of these chunks of a sequence? send those named
  kHeld = 27,      // worker: a result that it has of an appliance that is lost; or: it has no more
  kCopies = 28,    // worker: which values of a store's block it has of an appliance that is lost
  kCopy = 29,      // worker: such values of a chunk
  kResult = 32,    // appliance: the sum of a chunk
  kFeedback = 33,  // appliance: only the feedback header
  kAnswer = 34,    // appliance: to a probe
  kPieceResult = 35,  // appliance: a piece, to everybody whom it concerns
  kValues = 36,      // appliance: the parameters of a store's chunk, to the worker that pulled them
  kPartResult = 37,  // appliance: a chunk of an operation, to everybody whom it concerns
  kPartAnswer = 38,  // appliance: to a probe of a sequence
  kFloor = 39,       // appliance: the group's floor in a sequence
  kOutcome = 40,     // appliance: what became of an operation
};

constexpr bool is_control(PacketType type) noexcept {
  return type >= PacketType::kJoin && type <= PacketType::kGroupMade;
}
constexpr bool is_worker_data(PacketType type) noexcept {
  return type >= PacketType::kContribution && type <= PacketType::kCopy;
}
constexpr bool is_appliance_data(PacketType type) noexcept {
  return type >= PacketType::kResult && type <= PacketType::kOutcome;
}

// ---- flags of data packets; each body names those that it may have ----
inline constexpr std::uint8_t kFlagReport = 1 << 0;     // of workers: send feedback
inline constexpr std::uint8_t kFlagNil = 1 << 1;        // no data; result: of NILs only
inline constexpr std::uint8_t kFlagNonFinite = 1 << 2;  // result: some value is NaN or infinite
// Result: the payload is sum / weight already. Contribution: its elements are means already, so
// that the result is their sum, undivided.
inline constexpr std::uint8_t kFlagMean = 1 << 3;
inline constexpr std::uint8_t kFlagPulled = 1 << 4;  // results: sent because a probe asked
// Contribution: its worker has rounded float32 elements to a narrower format and keeps the loss as
// a residual. The result is rounded without bias, since no residual keeps the loss.
inline constexpr std::uint8_t kFlagRounded = 1 << 5;
// Contribution, result: only the elements of one or several chunks that are not zero (sparse.h).
inline constexpr std::uint8_t kFlagSparse = 1 << 6;
// Contribution: its worker wants no result of the chunk; for it the chunk is done when the packet
// has arrived.
inline constexpr std::uint8_t kFlagUnwanted = 1 << 7;

struct [[gnu::packed]] CommonHeader {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  PacketType type{};
  std::uint16_t job = 0;   // 0 before the join
  std::uint16_t rank = 0;  // the worker's, in both directions
  Cookie cookie = 0;       // the worker's, in both directions; 0 before the join
};

// On every worker data packet. A flow is (worker, shard).
struct [[gnu::packed]] FlowHeader {
  std::uint32_t number = 0;        // of this packet in its flow, from 1
  std::uint32_t timestamp_us = 0;  // echoed by feedback
  std::uint32_t credit = 0;        // highest appliance packet number that the worker can take
  // The chunk's priority. A probe or a request for feedback has that of the least urgent packet
  // that it asks about, which it must not overtake.
  Priority priority = 0;
  std::uint8_t flags = 0;
};

// On every appliance data packet.
struct [[gnu::packed]] FeedbackHeader {
  std::uint32_t number = 0;             // of this packet in the flow's other direction, from 1
  std::uint32_t received_count = 0;     // worker packets that arrived, each counted once
  std::uint32_t highest_number = 0;     // highest worker packet number that arrived
  std::uint32_t arrived_before = 0;     // bit i: number highest_number - 1 - i arrived
  std::uint32_t marked_count = 0;       // of those, with the congestion-experienced mark
  std::uint32_t echo_timestamp_us = 0;  // of the packet with the highest number
  std::uint32_t hold_us = 0;            // time since that packet arrived
  std::uint32_t deferred_count = 0;     // results withheld for want of credit, ever
  std::uint32_t open_step = 0;          // of the gradients; 0 before the job starts
  Priority priority = 0;  // of the chunk; of the least urgent result that an answer speaks of
  std::uint8_t flags = 0;
};

static_assert(sizeof(CommonHeader) == 16 && sizeof(FlowHeader) == 14 &&
              sizeof(FeedbackHeader) == 38);

// The header's part of a datagram's checksum, computed from its fields: reading back a header that
// has just been filled would wait for the narrow stores.
constexpr PartialSum sum_of(const FeedbackHeader& header) noexcept {
  return {std::uint64_t{header.number} + header.received_count + header.highest_number +
          header.arrived_before + header.marked_count + header.echo_timestamp_us + header.hold_us +
          header.deferred_count + header.open_step + header.priority +
          (std::uint64_t{header.flags} << 8)};
}

}  // namespace sluice::wire

// Every compile-time limit of the protocol and of both ends, in one place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice {

inline constexpr std::size_t kMaxWorkers = 1024;  // per job
inline constexpr std::size_t kMaskWords = kMaxWorkers / 64;
inline constexpr std::size_t kMaxJobs = 256;      // per appliance
inline constexpr std::size_t kMaxShards = 16;     // per appliance
inline constexpr std::uint32_t kMaxWindow = 8;    // retained steps of a stream
inline constexpr std::uint32_t kSyncWindow = 2;   // sufficient while k = n
inline constexpr std::uint32_t kAsyncWindow = 4;  // else: what a straggler may lag and pull
inline constexpr std::uint32_t kFullSteps = 2;    // the first steps are k = n, whatever the policy
inline constexpr std::uint32_t kLastStep = UINT32_MAX - 1;  // step numbers never wrap
inline constexpr std::uint32_t kChunksPerBlock = 64;        // the unit of probes and of sharding
inline constexpr std::uint32_t kCollectiveChunks = 64;      // one block: a collective has one shard
// Steps of a broadcast between two barriers: half of the window. A barrier after fewer steps ends
// the call, a broadcast or a mere barrier.
inline constexpr std::uint32_t kBroadcastsPerBarrier = 4;
inline constexpr std::size_t kMaxGroups = 256;  // per job of kind operations
inline constexpr std::size_t kMaxGroupNameBytes = 64;
inline constexpr std::uint32_t kFirstSlots = 256;  // of a sequence, at least
// Operations of a group that may be called by some of its members and not by all.
inline constexpr std::uint32_t kKeptCalls = 256;
inline constexpr std::uint32_t kMaxChunks = 1u << 24;  // per stream
inline constexpr std::size_t kMinChunkBytes = 64;
inline constexpr std::size_t kMaxChunkBytes = 8832;  // fits a 9,000-byte MTU
inline constexpr std::size_t kChunkAlignBytes = 64;  // chunk_bytes is a multiple of this
inline constexpr std::size_t kMaxJobNameBytes = 64;
inline constexpr std::size_t kMaxTextBytes = 400;    // of a refusal or a notice
inline constexpr std::size_t kMaxReasonBytes = 256;  // why a member ends its job
inline constexpr std::size_t kMaxMissingAges = 16;   // ranks listed in one probe answer
inline constexpr std::size_t kMaxDatagramBytes = 9000;

inline constexpr DurationNs kKeepaliveInterval = 250 * kMillisecond;
inline constexpr DurationNs kPingAfterSilence = kSecond;  // appliance asks a silent member
inline constexpr DurationNs kTakeoverSilence =
    3 * kSecond;  // a rank silent for this may be replaced
inline constexpr DurationNs kDefaultMemberTimeout = 30 * kSecond;
inline constexpr DurationNs kDefaultResyncHold = 30 * kSecond;  // the window waits for a resync
inline constexpr DurationNs kDefaultStoreKeep = 300 * kSecond;  // a store without workers
inline constexpr DurationNs kJoinDeadline = 5 * kSecond;        // no answer at all: give up
inline constexpr DurationNs kIdleProbeInterval = 25 * kMillisecond;  // counted but incomplete

inline constexpr std::uint16_t kDefaultPort = 7700;  // JOIN here; data on + 1 + shard

// Member masks travel and are stored as ceil(n / 64) words.
constexpr std::size_t mask_words(std::size_t worker_count) noexcept {
  return (worker_count + 63) / 64;
}

// The shard that owns a chunk: aligned blocks of 64 chunks are assigned to shards in turn.
constexpr std::uint16_t shard_of(std::uint32_t chunk, std::uint16_t shard_count) noexcept {
  return static_cast<std::uint16_t>((chunk / kChunksPerBlock) % shard_count);
}

}  // namespace sluice

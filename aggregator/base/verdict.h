// The name of every outcome that a packet can have. The name is also its counter and its metric
// label.
//
// Add a verdict here and it is counted, exported and documented; there is no second list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// X(enumerator, metric label, what a non-zero value means)
#define SLUICE_VERDICTS(X)                                                                         \
  X(kFolded, "folded", "contributions added into a sum")                                           \
  X(kCompleted, "completed", "contributions that completed a slot and released its result")        \
  X(kNilFolded, "nil_folded", "contributions without data: the worker did not use the tensor")     \
  X(kPassed, "passed",                                                                             \
    "packets of a rank that waits for a step and has nothing more for this chunk")                 \
  X(kDuplicate, "duplicate", "contributions that arrived twice; the second was ignored")           \
  X(kLate, "late", "contributions that arrived after their slot was complete")                     \
  X(kStale, "stale",                                                                               \
    "late gradients for a later step, in a job that drops them or beyond its staleness bound")     \
  X(kTooOld, "too_old", "packets for a step that left the window")                                 \
  X(kTooNew, "too_new", "packets for a step that is not open yet")                                 \
  X(kNotAllowed, "not_allowed", "contributions of a rank outside this step's may mask")            \
  X(kShapeMismatch, "shape_mismatch", "contributions whose size or dtype differs from the slot's") \
  X(kCollectiveMismatch, "collective_mismatch",                                                    \
    "collectives whose kind, root or size differ between ranks")                                   \
  X(kBadChunk, "bad_chunk", "chunk or block index outside the layout")                             \
  X(kBadStream, "bad_stream", "stream id that does not exist or has no layout")                    \
  X(kWrongShard, "wrong_shard", "packets sent to a data port that does not own their chunk")       \
  X(kUnknownJob, "unknown_job", "packets for a job that does not exist")                           \
  X(kBadCookie, "bad_cookie", "packets whose cookie proves nothing: a stranger or a forger")       \
  X(kStaleCookie, "stale_cookie", "packets of a process whose rank was taken over")                \
  X(kBadRank, "bad_rank", "rank outside the job's world size")                                     \
  X(kNotStarted, "not_started", "contributions before all ranks have joined")                      \
  X(kJobEnded, "job_ended", "packets for a job that has failed or finished")                       \
  X(kProbe, "probe", "probes answered")                                                            \
  X(kFinished, "finished", "reports that a worker's gradient was finished")                        \
  X(kCredit, "credit", "credit updates")                                                           \
  X(kJoin, "join", "join requests handled")                                                        \
  X(kJoinRefused, "join_refused", "join requests refused")                                         \
  X(kKeepalive, "keepalive", "keepalives")                                                         \
  X(kLeave, "leave", "members that left")                                                          \
  X(kResync, "resync", "requests of members that need another one's state, and their reports")     \
  X(kTruncated, "truncated", "packets shorter than their headers say")                             \
  X(kBadLength, "bad_length", "length fields that contradict each other or exceed the limits")     \
  X(kBadMagic, "bad_magic", "datagrams that are not of this protocol")                             \
  X(kBadVersion, "bad_version", "packets of another protocol version")                             \
  X(kBadType, "bad_type", "packet types unknown or not expected at this port")                     \
  X(kBadField, "bad_field", "enumerations or reserved fields with values that do not exist")       \
  X(kBadChecksum, "bad_checksum", "frames whose IP or UDP checksum is wrong")                      \
  X(kFragment, "fragment", "IP fragments, which are never reassembled")                            \
  X(kNotOurs, "not_ours", "frames for other hosts: forwarded, not aggregated")                     \
  X(kUnsupported, "unsupported", "frames for our address that no service here answers")

enum class Verdict : std::uint8_t {
#define X(name, label, help) name,
  SLUICE_VERDICTS(X)
#undef X
};

struct VerdictInfo {
  std::string_view label;
  std::string_view help;
};

inline constexpr auto kVerdictInfo = std::to_array<VerdictInfo>({
#define X(name, label, help) {label, help},
    SLUICE_VERDICTS(X)
#undef X
});

inline constexpr std::size_t kVerdictCount = kVerdictInfo.size();

constexpr std::string_view label(Verdict verdict) noexcept {
  return kVerdictInfo[static_cast<std::size_t>(verdict)].label;
}

}  // namespace sluice

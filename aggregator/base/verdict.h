// The names of all outcomes that a packet can have. A name is also a counter and a metric label.
//
// Add a verdict here and it is counted, exported and documented; there is no second list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// How useful a packet was: the metric label `use`.
enum class PacketUse : std::uint8_t {
  kUseful,     // it did what it was sent for
  kUseless,    // sound, but too late, too early, twice, refused or not wanted
  kForeign,    // sound, but not from a member
  kMalformed,  // no honest peer sends it
};

// X(enumerator, use, metric label, what a non-zero value means)
#define SLUICE_VERDICTS(X)                                                                         \
  X(kFolded, kUseful, "folded", "contributions added into a sum")                                  \
  X(kCompleted, kUseful, "completed",                                                              \
    "contributions that completed a slot and released its result")                                 \
  X(kNilFolded, kUseful, "nil_folded",                                                             \
    "contributions without data, of one or more chunks: the worker did not use the tensors")       \
  X(kPassed, kUseful, "passed",                                                                    \
    "packets of a rank that waits for a step and has nothing more for these chunks")               \
  X(kDuplicate, kUseless, "duplicate", "contributions that arrived twice; the second was ignored") \
  X(kLate, kUseless, "late", "contributions that arrived after their slot was complete")           \
  X(kStale, kUseless, "stale",                                                                     \
    "late gradients for a later step, in a job that drops them or beyond its staleness bound")     \
  X(kTooOld, kUseless, "too_old", "packets for a step or a chunk that left the window")            \
  X(kTooNew, kUseless, "too_new", "packets for a step or a chunk that is not open yet")            \
  X(kNotAllowed, kUseless, "not_allowed",                                                          \
    "contributions of a rank that is not eligible for this step")                                  \
  X(kShapeMismatch, kUseless, "shape_mismatch",                                                    \
    "contributions whose size or dtype differs from the slot's")                                   \
  X(kCollectiveMismatch, kUseless, "collective_mismatch",                                          \
    "collectives whose kind, root or size differ between ranks")                                   \
  X(kBadChunk, kMalformed, "bad_chunk", "chunk or block index outside the layout")                 \
  X(kBadStream, kMalformed, "bad_stream", "stream id that does not exist or has no layout")        \
  X(kWrongShard, kUseless, "wrong_shard",                                                          \
    "packets sent to a data port that does not own their chunk")                                   \
  X(kUnknownJob, kForeign, "unknown_job", "packets for a job that does not exist")                 \
  X(kBadCookie, kForeign, "bad_cookie",                                                            \
    "packets whose cookie proves nothing: a stranger or a forger")                                 \
  X(kStaleCookie, kForeign, "stale_cookie", "packets of a process whose rank was taken over")      \
  X(kBadRank, kForeign, "bad_rank", "rank outside the job's world size")                           \
  X(kNotStarted, kUseless, "not_started", "contributions before all ranks have joined")            \
  X(kJobEnded, kUseless, "job_ended", "packets for a job that has failed or finished")             \
  X(kProbe, kUseful, "probe", "probes answered")                                                   \
  X(kCall, kUseful, "call", "operations called, asked about or cancelled")                         \
  X(kFloors, kUseful, "floors", "floors of members")                                               \
  X(kUnknownGroup, kUseless, "unknown_group", "packets for a group without their sender")          \
  X(kOtherGeneration, kUseless, "other_generation",                                                \
    "packets of another generation of their group")                                                \
  X(kFinished, kUseful, "finished", "reports that a worker's gradient was finished")               \
  X(kCredit, kUseful, "credit", "credit updates")                                                  \
  X(kGroup, kUseful, "group", "groups made, or left by a member")                                  \
  X(kJoin, kUseful, "join", "join requests handled")                                               \
  X(kJoinRefused, kUseless, "join_refused", "join requests refused")                               \
  X(kKeepalive, kUseful, "keepalive", "keepalives")                                                \
  X(kLeave, kUseful, "leave", "members that left")                                                 \
  X(kResync, kUseful, "resync",                                                                    \
    "requests of members that need another one's state, and their reports")                        \
  X(kTruncated, kMalformed, "truncated", "packets shorter than their headers say")                 \
  X(kBadLength, kMalformed, "bad_length",                                                          \
    "length fields that contradict each other or exceed the limits")                               \
  X(kBadIndex, kMalformed, "bad_index",                                                            \
    "sparse elements outside their chunk, out of order, or not as many as they say")               \
  X(kBadMagic, kMalformed, "bad_magic", "datagrams that are not of this protocol")                 \
  X(kBadVersion, kMalformed, "bad_version", "packets of another protocol version")                 \
  X(kBadType, kMalformed, "bad_type", "packet types unknown or not expected at this port")         \
  X(kBadField, kMalformed, "bad_field",                                                            \
    "enumerations or reserved fields with values that do not exist")                               \
  X(kBadChecksum, kMalformed, "bad_checksum", "frames whose IP or UDP checksum is wrong")          \
  X(kFragment, kUseless, "fragment", "IP fragments, which are never reassembled")                  \
  X(kNotOurs, kUseful, "not_ours", "frames for other hosts: forwarded, not aggregated")            \
  X(kUnsupported, kUseless, "unsupported", "frames for our address that no service here answers")

enum class Verdict : std::uint8_t {
#define X(name, use, label, help) name,
  SLUICE_VERDICTS(X)
#undef X
  // A check found nothing wrong, and its caller goes on. This is no outcome, so it is not counted
  // and has no label.
  kAccepted,
};

// Whether a check found nothing wrong.
constexpr bool ok(Verdict verdict) noexcept { return verdict == Verdict::kAccepted; }

struct VerdictInfo {
  PacketUse use{};
  std::string_view label;
  std::string_view help;
};

inline constexpr auto kVerdictInfo = std::to_array<VerdictInfo>({
#define X(name, use, label, help) {PacketUse::use, label, help},
    SLUICE_VERDICTS(X)
#undef X
});

inline constexpr std::size_t kVerdictCount = kVerdictInfo.size();

constexpr std::string_view label(Verdict verdict) noexcept {
  return kVerdictInfo[static_cast<std::size_t>(verdict)].label;
}

constexpr PacketUse use_of(Verdict verdict) noexcept {
  return kVerdictInfo[static_cast<std::size_t>(verdict)].use;
}

// Whether a verdict is more useful than another: a packet of several chunks has their most useful
// verdict.
constexpr bool is_better(Verdict verdict, Verdict than) noexcept {
  return verdict == Verdict::kCompleted ||
         (use_of(verdict) == PacketUse::kUseful && use_of(than) != PacketUse::kUseful);
}

constexpr std::string_view label(PacketUse use) noexcept {
  switch (use) {
    case PacketUse::kUseful: return "useful";
    case PacketUse::kUseless: return "useless";
    case PacketUse::kForeign: return "foreign";
    case PacketUse::kMalformed: return "malformed";
  }
  return "?";
}

}  // namespace sluice

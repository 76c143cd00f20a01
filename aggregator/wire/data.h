// The bodies of data packets, port P + 1 + shard.
//
// Sums, pieces and stores share their headers, probes and answers, and nothing else: a contribution
// to a sum (stream kGradients) is of a step of parameters and has a weight; a piece (streams
// kCollectives and kState) is of an operation that all ranks must agree on; pushes and pulls are of
// a store's blocks, which have clocks of their own. Each body names its
// type and the flags that it may have.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/header.h"

namespace sluice::wire {

// ---- sums ----

// Chunks without data, or with little, travel together. With kFlagNil a packet has no elements but
// names, in a u64 of a bit each, the chunks of one block of 64 that it speaks of, `chunk` being the
// first of them. With kFlagSparse another u64 follows, of those that have an entry, and then the
// entries (sparse.h). All else in it holds for each, elem_count too. To have no value is not to
// have no data. Without them elem_count elements follow.
struct [[gnu::packed]] Contribution {
  static constexpr PacketType kType = PacketType::kContribution;
  static constexpr std::uint8_t kFlags =
      kFlagReport | kFlagNil | kFlagMean | kFlagRounded | kFlagSparse | kFlagUnwanted;
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  std::uint32_t base_step = 0;  // the step whose parameters it was computed on
  std::uint32_t weight = 0;     // samples; 0 is legal
  std::uint16_t elem_count = 0;
  Dtype dtype{};
  // How the result's elements travel. 0: as these; else 1 + their Dtype: of rounded elements the
  // sum in float32, of float32 the mean, rounded without bias.
  std::uint8_t result = 0;

  Dtype result_dtype() const noexcept {
    return result == 0 ? dtype : static_cast<Dtype>(result - 1);
  }
};
constexpr std::uint8_t result_code(Dtype dtype, Dtype result) noexcept {
  return result == dtype ? std::uint8_t{0}
                         : static_cast<std::uint8_t>(1 + static_cast<int>(result));
}

struct [[gnu::packed]] ResultHeader {  // then mask_words u64, then as a contribution
  static constexpr PacketType kType = PacketType::kResult;
  static constexpr std::uint8_t kFlags =
      kFlagNil | kFlagNonFinite | kFlagMean | kFlagPulled | kFlagSparse;
  FeedbackHeader feedback;
  std::uint16_t k = 0;  // the k that this slot was summed with
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  std::uint64_t weight = 0;  // total of the contributions in the mask
  // How long before this packet was written the chunk's first contribution came, and the one that
  // completed it (of several chunks, those of the first): for traces.
  std::uint32_t first_age_us = 0;
  std::uint32_t complete_age_us = 0;
  // Ranks that the sum could have: those who might contribute when it was complete, and those in
  // the mask. Never fewer than the mask has.
  std::uint16_t may_count = 0;
  std::uint16_t elem_count = 0;
  Dtype dtype{};
  std::uint8_t mask_words = 0;
};

// ---- pieces ----

// What all ranks must agree on about a step of stream kCollectives or kState: its first piece fixes
// it.
struct [[gnu::packed]] Operation {
  std::uint32_t size_bytes = 0;  // of the whole step, all chunks; 0 for a barrier
  std::uint16_t root = 0;        // rank whose data it is
  CollectiveKind kind{};

  friend constexpr bool operator==(const Operation&, const Operation&) = default;
};
constexpr StreamId stream_of(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kTransfer ? StreamId::kState : StreamId::kCollectives;
}

// Then payload_bytes: the root's data, or none from a rank that is only present.
struct [[gnu::packed]] Piece {
  static constexpr PacketType kType = PacketType::kPiece;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  Operation operation;
  std::uint16_t payload_bytes = 0;
};

// No payload although the operation has a size: its root is gone.
struct [[gnu::packed]] PieceResult {  // then mask_words u64, then payload_bytes
  static constexpr PacketType kType = PacketType::kPieceResult;
  static constexpr std::uint8_t kFlags = kFlagPulled;
  FeedbackHeader feedback;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  Operation operation;
  std::uint8_t mask_words = 0;
  std::uint16_t payload_bytes = 0;
};

// ---- stores ----

// A layer begins a block of its own, so chunk i of block b has the index 64 * b + i; the rest of a
// layer's last block is no chunk. What a block's chunks are is fixed by its initial values.
struct [[gnu::packed]] Push {  // then elem_count float32
  static constexpr PacketType kType = PacketType::kPush;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t iteration = 0;  // 0: initial values
  std::uint32_t chunk = 0;
  double rate = 0;  // learning rate, where the store has the optimizer
  std::uint16_t elem_count = 0;
  std::uint8_t block_chunks = 0;  // how many chunks its block has, 1 .. 64
  std::uint8_t reserved = 0;
};

// Answered with Values for each chunk, once, when the block's clock has come to `need` and the
// sender's own pushes to `own`: until then it is parked. A later one of the same block replaces it.
struct [[gnu::packed]] Pull {
  static constexpr PacketType kType = PacketType::kPull;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t block = 0;
  std::uint64_t chunks = 0;  // bit i: chunk 64 * block + i
  std::uint32_t need = 0;
  std::uint32_t own = 0;
};

struct [[gnu::packed]] Values {  // then elem_count float32
  static constexpr PacketType kType = PacketType::kValues;
  static constexpr std::uint8_t kFlags = kFlagPulled;
  FeedbackHeader feedback;
  std::uint32_t chunk = 0;
  std::uint32_t clock = 0;     // of the block: all of these iterations are in
  std::uint32_t own = 0;       // the receiver's own iterations that are in
  std::uint16_t at_clock = 0;  // members that hold the clock where it is: a hint
  std::uint16_t waiting = 0;   // pulls parked at the block: a hint
  std::uint16_t elem_count = 0;
};

// ---- of all streams ----
//
// Of a store, stream kGradients is asked about pushes, step is the iteration; kState about pulls,
// step is one more than their `own`. A push is counted or not, a pull counted when it is parked or
// answered, and complete when its values can be had and are not on their way.

struct [[gnu::packed]] Probe {
  static constexpr PacketType kType = PacketType::kProbe;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t block = 0;
  std::uint64_t want = 0;  // bit i: send the result of chunk 64 * block + i if it is complete
  StreamId stream{};
};

struct [[gnu::packed]] Credit {
  static constexpr PacketType kType = PacketType::kCredit;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
};

// Without it the policy could not see the times that cancelling hides. With kFlagNil no gradient is
// finished: the rank has only come to the step.
struct [[gnu::packed]] Finished {
  static constexpr PacketType kType = PacketType::kFinished;
  static constexpr std::uint8_t kFlags = kFlagReport | kFlagNil;
  FlowHeader flow;
  std::uint32_t step = 0;  // whose parameters the gradient was computed on
};

struct [[gnu::packed]] Feedback {
  static constexpr PacketType kType = PacketType::kFeedback;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  std::uint16_t shard = 0;  // whose flow it reports; other packets name a chunk or a block
};

enum class AnswerStatus : std::uint8_t {
  kOpen = 0,     // the step is open or closed but in the window: the bitmaps are exact
  kGone = 1,     // the step has left the window: nobody knows
  kNotOpen = 2,  // the step is in the future
};

struct [[gnu::packed]] MissingAge {
  std::uint16_t rank = 0;
  std::uint32_t last_heard_ms = 0;
};

// Then mask_words u64 (ranks missing from first_incomplete), then age_count MissingAge.
struct [[gnu::packed]] Answer {
  static constexpr PacketType kType = PacketType::kAnswer;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  std::uint32_t step = 0;
  std::uint32_t block = 0;
  std::uint64_t counted = 0;  // bit i: this worker's part of chunk 64 * block + i is in
  // bit i: that chunk's result exists and is not about to be sent anyway.
  std::uint64_t complete = 0;
  std::uint32_t probe_number = 0;      // decides every worker packet number up to it
  std::uint32_t open_step = 0;         // of this stream
  std::uint32_t first_incomplete = 0;  // chunk index in this block, or 0xFFFFFFFF
  StreamId stream{};
  AnswerStatus status{};
  std::uint8_t mask_words = 0;
  std::uint8_t age_count = 0;
};
inline constexpr std::uint32_t kNoChunk = 0xFFFFFFFF;

static_assert(sizeof(Contribution) == 34 && sizeof(ResultHeader) == 66 && sizeof(Piece) == 31 &&
              sizeof(PieceResult) == 52 && sizeof(Push) == 34 && sizeof(Values) == 52);
static_assert(sizeof(ResultHeader) % 2 == 0 && sizeof(PieceResult) % 2 == 0,
              "a result's payload is summed once for all members, at an even offset");

// Bytes around a chunk's payload in the biggest packet that carries it, for n workers.
constexpr std::size_t result_overhead_bytes(std::size_t worker_count) noexcept {
  static_assert(sizeof(ResultHeader) >= sizeof(PieceResult) &&
                sizeof(ResultHeader) >= sizeof(Values));
  return sizeof(CommonHeader) + sizeof(ResultHeader) + 8 * mask_words(worker_count);
}
// The UDP payload that a path must carry for chunks of this size: the padded size of a JOIN.
constexpr std::size_t datagram_bytes(std::size_t chunk_bytes, std::size_t worker_count) noexcept {
  return result_overhead_bytes(worker_count) + chunk_bytes;
}

}  // namespace sluice::wire

// The bodies of data packets, port P + 1 + shard.
//
// Sums, pieces and stores share their headers, probes and answers, and nothing else: a contribution
// to a sum (stream kGradients) is of a step of parameters and has a weight; a piece (streams
// kCollectives and kState) is of an operation that all ranks must agree on; a push and a pull
// (streams kPushes and kPulls) are of a store's blocks, which have clocks of their own. Each body
// names its type and the flags that it may have.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/header.h"

namespace sluice::wire {

// ---- sums ----

// Followed by elem_count elements; or, with kFlagNil, by a u64 mask of the chunks of one block of
// 64 that the packet is about, and no elements; or, with kFlagSparse, by that mask, a u64 mask of
// the chunks that have an entry, and the entries (sparse.h). `chunk` is the first of the chunks,
// and all other fields hold for each of them, elem_count too. A sparse chunk without an entry has
// data, all zeros; a NIL chunk has none.
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
  // The format of the result's elements. 0: as these; else 1 + their Dtype: for rounded elements
  // the sum in float32, for float32 elements the mean, rounded without bias.
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
  std::uint16_t k = 0;  // with which this slot was completed
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  std::uint64_t weight = 0;  // the total of the contributions in the mask
  // The age, when this packet was written, of the chunk's first contribution and of the one that
  // completed it (of several chunks, those of the first chunk): for traces.
  std::uint32_t first_age_us = 0;
  std::uint32_t complete_age_us = 0;
  // The number of ranks that the sum could have: those that were eligible when it was completed,
  // and those in the mask.
  std::uint16_t may_count = 0;
  std::uint16_t elem_count = 0;
  Dtype dtype{};
  std::uint8_t mask_words = 0;
};

// A result that an appliance which is lost has made, as its sender got it, in a job with k < n: see
// Status::resume_step. Without data as a contribution, never sparse. `chunk` is kNoChunk: the
// sender has given to this shard all that it has.
struct [[gnu::packed]] Held {  // then mask_words u64, then as a contribution
  static constexpr PacketType kType = PacketType::kHeld;
  static constexpr std::uint8_t kFlags = kFlagReport | kFlagNil | kFlagMean | kFlagNonFinite;
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  std::uint64_t weight = 0;
  std::uint16_t k = 0;
  std::uint16_t may_count = 0;
  std::uint16_t elem_count = 0;
  Dtype dtype{};
  std::uint8_t mask_words = 0;
};

// ---- pieces ----

// The operation of a step of stream kCollectives or kState. Its first piece fixes it, and all ranks
// must agree.
struct [[gnu::packed]] Operation {
  std::uint32_t size_bytes = 0;  // of the whole step, all chunks; 0 for a barrier
  std::uint16_t root = 0;        // the rank that gives the data
  CollectiveKind kind{};

  friend constexpr bool operator==(const Operation&, const Operation&) = default;
};
constexpr StreamId stream_of(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kTransfer ? StreamId::kState : StreamId::kCollectives;
}

// Followed by payload_bytes: the root's data, or none from the other ranks.
struct [[gnu::packed]] Piece {
  static constexpr PacketType kType = PacketType::kPiece;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  Operation operation;
  std::uint16_t payload_bytes = 0;
};

// If it has no payload although the operation has a size, the root is gone.
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

// A layer begins a block of its own, and chunk i of block b has the index 64 * b + i; the rest of a
// layer's last block has no chunks. A block's initial values fix its chunks.
struct [[gnu::packed]] Push {  // then elem_count float32
  static constexpr PacketType kType = PacketType::kPush;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t iteration = 0;  // 0: initial values
  std::uint32_t chunk = 0;
  double rate = 0;  // learning rate, if the store runs the optimizer
  std::uint16_t elem_count = 0;
  std::uint8_t block_chunks = 0;  // how many chunks its block has, 1 .. 64
  std::uint8_t reserved = 0;
};

// Answered once with Values of each chunk, when the block's clock has reached `need` and the
// sender's own pushes have reached `own`; until then the pull is parked. A later pull of the same
// block replaces it.
struct [[gnu::packed]] Pull {
  static constexpr PacketType kType = PacketType::kPull;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t block = 0;
  std::uint64_t chunks = 0;  // bit i: chunk 64 * block + i
  std::uint32_t need = 0;
  std::uint32_t own = 0;
};

// The mask has the ranks whose last iteration in the chunk is odd; with bound 0 the clock tells as
// much, and there is none. `version` grows with whatever changes the chunk or the mask.
struct [[gnu::packed]] Values {  // then mask_words u64, then elem_count float32
  static constexpr PacketType kType = PacketType::kValues;
  static constexpr std::uint8_t kFlags = kFlagPulled;
  FeedbackHeader feedback;
  std::uint32_t chunk = 0;
  std::uint32_t clock = 0;     // of the block: all iterations up to it are in
  std::uint32_t own = 0;       // the receiver's own iterations that are in
  std::uint16_t at_clock = 0;  // members that hold the clock where it is: a hint
  std::uint16_t waiting = 0;   // pulls parked at the block: a hint
  std::uint16_t elem_count = 0;
  std::uint64_t version = 0;
  std::uint8_t mask_words = 0;
  std::uint8_t reserved = 0;
};

// The chunks of a block as the sender has them of an appliance that is lost, and where it stands.
// Asked about by a probe of stream kPushes with the step kCopiesStep.
struct [[gnu::packed]] Copies {  // then block_chunks u32: 0 or 1 + the version - `base`
  static constexpr PacketType kType = PacketType::kCopies;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t block = 0;
  std::uint32_t pushed = 0;  // its iterations up to it are in its copies, or are not pushed again
  std::uint64_t base = 0;
  std::uint8_t block_chunks = 0;
  std::uint8_t pushes = 0;  // 1: it has pushed iteration `pushed` + 1, or does
};
inline constexpr std::uint32_t kCopiesStep = 0xFFFFFFFF;

// Sent by the one member that an answer has asked for it.
struct [[gnu::packed]] Copy {  // then mask_words u64 as of Values, then elem_count float32
  static constexpr PacketType kType = PacketType::kCopy;
  static constexpr std::uint8_t kFlags = kFlagReport;
  FlowHeader flow;
  std::uint32_t chunk = 0;
  std::uint32_t clock = 0;  // of the block, with bound 0
  std::uint64_t version = 0;
  std::uint16_t elem_count = 0;
  std::uint8_t mask_words = 0;
  std::uint8_t reserved = 0;
};

// ---- of all streams ----
//
// Of stream kPushes a probe's step is the iteration, and a push is counted or not. Of stream kPulls
// it is one more than the pull's `own`; a pull is counted when it is parked or answered, and
// complete when its values can be had and are not on their way. Of the step kCopiesStep an answer
// says kNotOpen: the copies have not been stated; kGone: other members have not stated theirs;
// kOpen: `counted` has the chunks that the member need not give.

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

// Tells the policy how long a gradient took, also one that is never contributed. With kFlagNil no
// gradient is finished: the rank has only reached the step.
struct [[gnu::packed]] Finished {
  static constexpr PacketType kType = PacketType::kFinished;
  static constexpr std::uint8_t kFlags = kFlagReport | kFlagNil;
  FlowHeader flow;
  std::uint32_t step = 0;  // the step whose parameters the gradient was computed on
};

struct [[gnu::packed]] Feedback {
  static constexpr PacketType kType = PacketType::kFeedback;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  std::uint16_t shard =
      0;  // the shard whose flow it reports; other packets name a chunk or a block
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

// Followed by mask_words u64 (the ranks missing from first_incomplete), then age_count MissingAge.
struct [[gnu::packed]] Answer {
  static constexpr PacketType kType = PacketType::kAnswer;
  static constexpr std::uint8_t kFlags = 0;
  FeedbackHeader feedback;
  std::uint32_t step = 0;
  std::uint32_t block = 0;
  std::uint64_t counted = 0;  // bit i: this worker's part of chunk 64 * block + i is in
  // bit i: that chunk's result exists and is not waiting to be sent
  std::uint64_t complete = 0;
  std::uint32_t probe_number = 0;  // of the probe: settles the fate of all worker packets up to it
  std::uint32_t open_step = 0;     // of this stream
  std::uint32_t first_incomplete = 0;  // chunk index in this block, or 0xFFFFFFFF
  StreamId stream{};
  AnswerStatus status{};
  std::uint8_t mask_words = 0;
  std::uint8_t age_count = 0;
};
inline constexpr std::uint32_t kNoChunk = 0xFFFFFFFF;

static_assert(sizeof(Contribution) == 34 && sizeof(ResultHeader) == 70 && sizeof(Piece) == 31 &&
              sizeof(PieceResult) == 56 && sizeof(Push) == 34 && sizeof(Values) == 66);
static_assert(sizeof(ResultHeader) % 2 == 0 && sizeof(PieceResult) % 2 == 0,
              "a result's payload is summed once for all members, at an even offset");

// The bytes around a chunk's payload in the biggest packet that carries it, for n workers.
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

// One shard's part of a parameter store: parameters, clocks, and parked pulls.
//
// Pure: pushes, pulls and changes of membership go in, verdicts and answers come out; the
// constructor allocates all memory. It knows no packets: the caller has parsed a packet, and writes
// an answer's values into another one before its next call. All calls are on the shard's thread.
//
// For each block of chunks and each rank the shard keeps v, the last iteration of which all chunks
// are counted, and the chunks of the next iteration that are counted. The block's clock c is the
// least v of its members; n is the number of members whose v is c. A pull is parked until c and the
// puller's own v have reached the iterations that it names; the event that moves them queues its
// answers. A block's initial values, which fix the number of its chunks and of their elements, come
// before all other pushes and pulls of it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/prefault.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "aggregator/store/gauges.h"
#include "aggregator/store/spec.h"
#include "aggregator/store/table.h"

namespace sluice::agg {

struct StorePush {
  Rank rank;
  Step iteration = 0;  // from 1; 0: initial values
  ChunkIndex chunk = 0;
  double rate = 0;                 // learning rate, if the store runs the optimizer
  std::uint32_t block_chunks = 0;  // the number of chunks of the block
  std::span<const std::uint8_t> values;
  TimeNs now = 0;  // only ages depend on it
};

struct StorePull {
  Rank rank;
  std::uint32_t block = 0;
  std::uint64_t chunks = 0;  // bit i: chunk i of the block
  Step need = 0;             // every member's iterations up to it must be in
  Step own = 0;              // the puller's own pushes up to it must be in
  Priority priority = 0;     // of its answers
  TimeNs now = 0;            // as above
};

struct StoreAnswer {
  Rank rank;
  ChunkIndex chunk = 0;
  Step clock = 0;              // c: all iterations up to it are in
  std::uint16_t at_clock = 0;  // n
  std::uint16_t waiting = 0;   // pulls parked at the block
  Step own = 0;                // v of the receiver
  Priority priority = 0;
  std::span<const float> values;
  StoreVersion version = 0;            // of the chunk, see wire::Values
  std::span<const std::uint64_t> odd;  // with a bound above 0: ranks, see wire::Values
};

// What a member has of a block, of an appliance that is lost; see wire::Copies.
struct StoreCopies {
  Rank rank;
  std::uint32_t block = 0;
  Step pushed = 0;
  bool pushes = false;
  std::uint32_t chunk_count = 0;
  std::array<StoreVersion, kChunksPerBlock> versions{};
};

// A chunk's values as a member gives them; see wire::Copy.
struct StoreCopy {
  Rank rank;
  ChunkIndex chunk = 0;
  Step clock = 0;
  StoreVersion version = 0;
  std::span<const std::uint64_t> odd;
  std::span<const std::uint8_t> values;
};

class StoreShard {
 public:
  enum class MemberState : std::uint8_t {
    kGone,
    kLeaving,   // its packets are refused; not yet left out of all minima
    kHolding,   // holds the clocks of more and more blocks
    kHeld,      // holds all of them: greatest_clock() will not grow beyond its first iteration
    kStarting,  // gets its first iteration, block by block
    kLive,
  };

  // All ranks are live from iteration 1. `spec` has passed check_store(). Throws std::bad_alloc,
  // also when `progress` says that the store is not wanted any more. `updates` is the number of
  // updates that each chunk has had: 0, except in tests of very long runs.
  StoreShard(const StoreSpec& spec, ShardId id, std::uint16_t shard_count,
             BuildProgress* progress = nullptr, std::uint64_t updates = 0);

  // The bytes that such a shard allocates.
  static std::size_t memory_bytes(const StoreSpec& spec, ShardId id,
                                  std::uint16_t shard_count) noexcept;

  // kFolded: the push is counted; kCompleted: and the block's clock has moved. kTooNew: it is out
  // of order, or computed from parameters that could not have been read yet; its sender sends it
  // again.
  Verdict push(const StorePush& push) noexcept;
  // kProbe: each chunk will be answered, now or once the pull need not wait any more. kDuplicate:
  // the pull is older than the rank's last one.
  Verdict pull(const StorePull& pull) noexcept;
  // The next answer, of one chunk to one rank. False: none is due now.
  bool poll_answer(StoreAnswer& answer) noexcept;
  bool has_answers() const noexcept { return !turns_.empty(); }

  // ---- recovery of lost packets; `block` is a block of this shard ----
  // The chunks of the rank's push of `iteration` that are counted.
  std::uint64_t counted(std::uint32_t block, Rank rank, Step iteration) const noexcept;
  struct PullState {
    std::uint64_t taken = 0;  // chunks of the pull, which is parked, queued or answered
    std::uint64_t ready = 0;  // chunks of these whose values can be sent and are not queued
    bool waits = false;       // the pull is parked
    Priority priority = 0;
  };
  // The state of the rank's pull that names `own` of its own iterations.
  PullState pull_state(std::uint32_t block, Rank rank, Step own) const noexcept;
  // The answer of the chunk as it would be now. False: the rank's last pull still has to wait.
  bool read(ChunkIndex chunk, Rank rank, StoreAnswer& answer) const noexcept;
  // Sets the bits of the ranks for whose pushes the rank's last pull waits.
  void find_missing(std::uint32_t block, Rank rank, std::span<std::uint64_t> ranks) const noexcept;

  // ---- a store that goes on from an appliance that is lost: store_resume.cc ----
  // `ranks` are its members, and state what they have of each block. The newest values of each
  // chunk are given by the first member that has them; then the block is open. Before all blocks
  // are, nothing is counted or answered, and members neither leave nor join. Called once, before
  // any packet, if the specification says so.
  void resume(std::span<const std::uint64_t> ranks) noexcept;
  bool resumes() const noexcept { return closed_blocks_ != 0; }
  Verdict state(const StoreCopies& copies) noexcept;
  Verdict give(const StoreCopy& copy) noexcept;
  struct Awaited {
    enum class Stated : std::uint8_t { kNothing, kByThisMember, kByAll };
    Stated stated{};
    std::uint64_t chunks = 0;  // kByAll: that the member is to give, and has not given
  };
  Awaited awaited(std::uint32_t block, Rank rank) const noexcept;

  // Removes a member that has died or left. Its pushes stay applied.
  void remove(Rank rank) noexcept;
  // Lets a member join in two steps. hold() holds all clocks for it (precondition: kGone or
  // kLeaving). When they are held in every shard, start() makes it a member (precondition: kHeld)
  // from one more than the greatest greatest_clock() of all shards on.
  void hold(Rank rank) noexcept;
  void start(Rank rank, Step first_iteration) noexcept;
  MemberState state(Rank rank) const noexcept { return members_[rank.value]; }
  // The greatest clock of this shard's blocks, see StoreGauges.
  Step greatest_clock() const noexcept {
    return gauges_.greatest_clock.load(std::memory_order_relaxed);
  }
  // Bounded work that no packet triggers: goes on with remove(), hold() and start(). True while
  // some is left.
  bool poll_work() noexcept;
  // The rows, and counts of chunks, that this work has read so far.
  std::uint64_t rows_swept() const noexcept { return rows_swept_; }
  const StoreGauges& gauges() const noexcept { return gauges_; }
  // Any thread.
  bool has_initial_values() const noexcept {
    return gauges_.initial_blocks.load(std::memory_order_relaxed) == block_count_;
  }

  // The state of a block of this shard.
  Step clock(std::uint32_t block) const noexcept { return table_.block(local(block)).clock; }
  std::uint16_t at_clock(std::uint32_t block) const noexcept {
    return table_.block(local(block)).at_clock;
  }
  std::uint16_t parked(std::uint32_t block) const noexcept {
    return table_.block(local(block)).parked;
  }
  Step pushed(std::uint32_t block, Rank rank) const noexcept {
    return table_.row(local(block), rank).pushed;
  }
  std::span<const float> parameters(ChunkIndex chunk) const noexcept;
  bool owns(std::uint32_t block) const noexcept {
    return block < spec_.block_count && block % shard_count_ == id_.value;
  }

 private:
  using Block = StoreTable::Block;
  using Row = StoreTable::Row;
  using Chunk = StoreTable::Chunk;
  static constexpr Step kAbsent = StoreTable::kAbsent;
  static constexpr std::uint32_t kNoRow = StoreTable::kNoRow;
  // Rows and chunks read in a piece of work: some 50 us.
  static constexpr std::uint64_t kRowsPerSweep = 16'384;

  // How far a rank has pushed the shard's blocks.
  struct Progress {
    Step least = 0;  // v
    std::uint32_t at_least = 0;
    std::uint32_t at_next = 0;  // blocks at least + 1
  };
  struct Turn {  // a row with answers to send
    std::uint64_t urgency = 0;
    std::uint64_t number = 0;  // first come, first served
    std::uint32_t block = 0;   // local
    Rank rank;
    friend bool operator<(const Turn& left, const Turn& right) noexcept {
      return left.urgency != right.urgency ? left.urgency > right.urgency
                                           : left.number > right.number;
    }
  };
  // What members have stated of a block that is not open.
  struct Resumed {
    std::uint16_t stated = 0;  // by how many members
    bool open = false;
    std::uint64_t left = 0;  // chunks that are still to be given
    struct Newest {
      StoreVersion version = kNoVersion;
      Rank giver;
      Step clock = 0;
    };
    std::array<Newest, kChunksPerBlock> newest{};  // of its chunks
    struct OfMember {
      bool stated = false;
      bool pushes = false;
      Step pushed = 0;
    };
    std::vector<OfMember> members;
  };
  struct Change {
    Rank rank;
    MemberState to{};  // kGone, kHeld or kLive
    Step first = 0;
  };

  std::uint32_t local(std::uint32_t block) const noexcept {
    DCHECK(owns(block));
    return block / shard_count_;
  }
  float* place(std::uint32_t number) const noexcept {
    return places_.get() + number * place_floats_;
  }

  // store_resume.cc
  void open(std::uint32_t local_block) noexcept;

  // store_push.cc
  Verdict initialise(std::uint32_t local_block, std::uint32_t index,
                     const StorePush& push) noexcept;
  bool count(std::uint32_t local_block, std::uint32_t index, Rank rank, Step iteration) noexcept;
  void note_pushed(Rank rank, Step iteration) noexcept;
  void survey(Rank rank) noexcept;
  void gather(std::uint32_t local_block, std::uint32_t index, const StorePush& push) noexcept;
  void apply_gathered(std::uint32_t local_block, std::uint32_t index) noexcept;
  void apply(std::uint32_t local_block, std::uint32_t index, double rate, float divisor,
             const std::uint8_t* values) noexcept;
  bool advance(std::uint32_t local_block) noexcept;
  void note_clock(Step clock) noexcept {
    if (clock > greatest_clock()) gauges_.greatest_clock.store(clock, std::memory_order_relaxed);
  }

  // store_pull.cc
  void consider(std::uint32_t local_block, Rank rank) noexcept;
  void wake(std::uint32_t local_block) noexcept;
  void park(std::uint32_t local_block, Rank rank) noexcept;
  void unpark(std::uint32_t local_block, Rank rank) noexcept;

  // The invariant of a block, between any two events.
  bool consistent(std::uint32_t local_block) const noexcept;
  bool counts_missing(std::uint32_t local_block) const noexcept;

  // store_members.cc
  void change(Rank rank, MemberState now, const Change& change) noexcept;
  void carry_out(std::uint32_t local_block, const Change& change) noexcept;
  void count_missing(std::uint32_t local_block, std::uint64_t was, std::uint64_t is) noexcept;

  const StoreSpec spec_;
  const ShardId id_;
  const std::uint16_t shard_count_;
  const std::uint32_t block_count_;  // of this shard
  const std::size_t place_floats_;   // of the gathered sum of a chunk
  StoreTable table_;
  FloatArray places_;
  std::vector<std::uint32_t> free_places_;     // the last one used is the next: it is in the cache
  std::vector<std::uint64_t> gathered_ranks_;  // in_rank_order: a mask a chunk
  std::vector<Resumed> resumed_;               // of each block, if the store resumes
  std::uint32_t closed_blocks_ = 0;            // of these
  std::vector<MemberState> members_;
  std::vector<Turn> turns_;  // a heap; a row at most once
  std::uint64_t turn_number_ = 0;
  std::vector<Change> changes_;  // the first is under way, from block change_at_
  std::uint32_t change_at_ = 0;
  std::uint64_t rows_swept_ = 0;
  StoreGauges gauges_;
  std::vector<Progress> progress_;  // by rank
  std::uint32_t oldest_parked_ = kNoRow, newest_parked_ = kNoRow;
  TimeNs now_ns_ = 0;  // of the last push or pull
};

}  // namespace sluice::agg

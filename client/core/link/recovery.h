// What became of every chunk of the step under way, and what to ask the appliance about.
//
// A chunk is queued, sent (fate unknown), counted (the appliance has it, its result is open),
// complete (the result exists and is not here) or done. The appliance keeps no timers, so all
// recovery is the worker's: probes name an aligned block of 64 chunks, and the answer says which of
// them are counted and complete. A block is probed when
//  - feedback shows a gap in the worker's numbers but not which ones are missing (those that it
//    shows are sent again without a question, see holes.h), and chunks are below it,
//  - its timeout ran out (RTO from real samples, doubled for each probe that stays unanswered),
//  - the appliance's numbers show lost or withheld results: all open blocks once, oldest first,
//  - nothing came for 25 ms: the oldest block only, so that a straggler is not probed for; when it
//    turns out to lack results that exist, all open blocks.
// Only results that an answer or a deferral has shown to exist are asked for: others may stand in a
// queue in front of this worker, and pulling them makes it longer.
// Blocks of a shard are independent: as many probes are in flight as the window allows.
// It knows no tensors and sends nothing itself: the streams (gradients.h, collective.h) do. Pure,
// no allocation after construction; the session's thread only.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/block.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/time.h"
#include "aggregator/wire/packet.h"
#include "client/core/link/flow.h"

namespace sluice::client {

class Recovery {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // `run_starts`: chunks that may share a packet are in runs of neighbours, here are their firsts
  // (a layout's tensors), and chunk_count. Empty: none do. Read by the constructor only.
  Recovery(ChunkIndex chunk_count, std::uint16_t shard_count,
           std::span<const ChunkIndex> run_starts = {});

  // A new step: every chunk is unknown again. Precondition: nothing is pulled any more, or the
  // flows are new.
  void begin_step() noexcept;

  // This worker contributes the chunk and wants its result; it goes to the scheduler now.
  void expect(ChunkIndex chunk) noexcept { expect_run(chunk, chunk + 1); }
  // The same of [first, end).
  void expect_run(ChunkIndex first, ChunkIndex end) noexcept;
  // The same of chunks of a block, without data: one packet takes all such chunks of a block that
  // wait, and one of them stands with the scheduler for all. Returns that one, if it shall now.
  std::uint64_t expect_absent(std::uint32_t block, std::uint64_t chunks) noexcept;
  // The same with little data: one packet takes as many as fit of its run in the block. True: this
  // one shall stand with the scheduler.
  bool expect_shared(ChunkIndex chunk) noexcept;
  // Only its result is wanted. `probe_at_ns`: ask for it then at the latest.
  void await(ChunkIndex chunk, TimeNs probe_at_ns) noexcept;

  // All that was wanted of the block is here: its chunks may be expected anew, without a new step.
  void renew(std::uint32_t block, Flow& flow) noexcept;

  // Nothing of the step is wanted any more: as begin_step(), but in the middle of one.
  void abandon(std::span<Flow> flows) noexcept;
  // The appliance has closed every chunk of the step: what is queued need not be sent, what was
  // sent not a second time, and all that is still wanted is the results. `probe_at_ns`: as for
  // await().
  void close_step(TimeNs probe_at_ns) noexcept;
  // Only its result is wanted, which exists and is not on its way.
  void pull(ChunkIndex chunk) noexcept;

  // The scheduler hands the chunk out. Returns, as bits, the chunks of its block that can leave in
  // its packet. None: they need not be sent after all.
  std::uint64_t take(ChunkIndex chunk) noexcept;
  // These of what take() has returned had no place. Returns the chunk that goes to the scheduler.
  ChunkIndex put_back(std::uint32_t block, std::uint64_t chunks) noexcept;
  // They left as packet `number`. True: some had been sent before.
  bool sent(std::uint32_t block, std::uint64_t chunks, std::uint32_t number, TimeNs now,
            const Flow& flow) noexcept;
  bool sent(ChunkIndex chunk, std::uint32_t number, TimeNs now, const Flow& flow) noexcept {
    return sent(chunk / kChunksPerBlock, chunk_bit(chunk), number, now, flow);
  }
  bool wants(ChunkIndex chunk) const noexcept {
    return has_chunk(blocks_[chunk / kChunksPerBlock].active, chunk);
  }
  // It does, and has not got it.
  bool lacks(ChunkIndex chunk) const noexcept {
    return has_chunk(blocks_[chunk / kChunksPerBlock].lacking(), chunk);
  }
  bool was_sent(ChunkIndex chunk) const noexcept {
    return has_chunk(blocks_[chunk / kChunksPerBlock].ever_sent, chunk);
  }
  // The chunk is done once it is counted: its result does not come.
  void want_no_result(ChunkIndex chunk) noexcept;
  // Of these chunks of a block, those.
  std::uint64_t unwanted(std::uint32_t block, std::uint64_t chunks) const noexcept {
    return blocks_[block].unwanted & blocks_[block].lacking() & chunks;
  }
  // A packet of such chunks of the block has arrived, as far as feedback can tell. When it was the
  // last, the block is probed: nothing else would tell what was counted.
  void confirm(std::uint32_t block) noexcept;
  // Their results are here. Returns the chunks without those whose result was here before, or that
  // nobody asked for.
  std::uint64_t results(std::uint32_t block, std::uint64_t chunks, TimeNs now, Flow& flow) noexcept;
  bool result(ChunkIndex chunk, TimeNs now, Flow& flow) noexcept {
    return results(chunk / kChunksPerBlock, chunk_bit(chunk), now, flow) != 0;
  }
  // An answer for the step under way. What is lost is queued again: returns the chunks of the block
  // that the caller hands to the scheduler.
  std::uint64_t answer(const wire::Answer& answer, TimeNs now, Flow& flow) noexcept;

  struct Lost {
    std::uint32_t block = 0;
    std::uint64_t chunks = 0;
  };
  // The packet of that number is lost. What it carried is queued again, if it still matters: the
  // caller hands the returned chunks to the scheduler.
  Lost lose(std::uint16_t shard, std::uint32_t number, Flow& flow) noexcept;

  struct ProbePlan {
    std::uint32_t block = 0;
    std::uint64_t want = 0;
  };
  // plan_probe() has something to look at. Asked for each packet that leaves.
  bool may_probe(std::uint16_t shard) const noexcept {
    const FlowState& state = flow_states_[shard];
    return state.due_head != kNone || state.sweep_cursor != kNone || state.withheld;
  }
  // The next block to ask about, if any; the caller sends it and then calls probe_sent().
  bool plan_probe(std::uint16_t shard, Flow& flow, ProbePlan& plan) noexcept;
  void probe_sent(std::uint16_t shard, const ProbePlan& plan, TimeNs now, Flow& flow) noexcept;

  // What feedback told.
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now,
            const Flow& flow) noexcept;
  // Acts on hints and timers that are due. After every datagram and timeout.
  void work(std::uint16_t shard, TimeNs now, Flow& flow) noexcept;
  TimeNs next_timeout() const noexcept;

  // No contribution of the shard is outstanding, whatever the window says.
  bool nothing_outstanding(std::uint16_t shard) const noexcept {
    return flow_states_[shard].outstanding_count == 0;
  }

 private:
  // What is asked about a block. Its answer is awaited in kAsked only.
  enum class Phase : std::uint8_t {
    kClosed,  // nothing of it is on the wire or awaited
    kOpen,    // in the open list: something was sent or is awaited, and is not done
    kDue,     // likewise, and it is to be probed
    kAsked,   // likewise, and was
  };
  struct Block {
    std::uint64_t active = 0;    // wanted in this step
    std::uint64_t queued = 0;    // to be sent: with the scheduler, or with one that stands for them
    std::uint64_t absent = 0;    // contributed without data
    std::uint64_t shared = 0;    // contributed with data that shares a packet
    std::uint64_t unwanted = 0;  // done once counted
    std::uint64_t ever_sent = 0;
    std::uint64_t awaited = 0;  // only the result: this worker contributes nothing
    std::uint64_t sent = 0;
    std::uint64_t counted = 0;
    std::uint64_t complete = 0;
    std::uint64_t done = 0;
    std::uint64_t pulled = 0;  // asked for by the probe under way
    TimeNs deadline_ns = kNever;
    TimeNs asked_ns = 0;               // of the last probe
    std::uint32_t highest_number = 0;  // of the packets that carried its chunks
    std::uint32_t previous = kNone;    // open list of its flow
    std::uint32_t next = kNone;
    std::uint32_t next_due = kNone;
    std::uint8_t backoff = 0;
    Phase phase = Phase::kClosed;
    bool listed = false;  // in the list of blocks to probe, which skips those that are not kDue
    bool idle = false;    // to be probed because nothing came for a while
    bool again = false;   // to be probed once more when what was asked is answered

    std::uint64_t lacking() const noexcept { return active & ~done; }
    // Wanted, and the appliance knows of it, or may.
    std::uint64_t unknown() const noexcept { return lacking() & (sent | counted | complete); }
    bool open() const noexcept { return phase != Phase::kClosed; }
    bool asked() const noexcept { return phase == Phase::kAsked; }
    void become(Phase other) noexcept;
  };
  // Whether results are, of which it is not known which ones. Then all open blocks are asked about
  // once, in a sweep: no count of what has turned up since would tell when to stop, as what was
  // pulled may be something else.
  enum class Missing : std::uint8_t {
    kNothing,
    kPerhaps,  // numbers were skipped, which may only be late
    kCertain,  // results were deferred, or a tail was lost
  };
  // The part of the state that belongs to one shard's flow.
  struct FlowState {
    std::uint32_t open_head = kNone;
    std::uint32_t open_tail = kNone;
    std::uint32_t due_head = kNone;
    std::uint32_t due_tail = kNone;
    std::uint32_t sweep_cursor = kNone;  // next block to ask about lost results
    std::uint32_t outstanding_count = 0;
    std::uint32_t asked_count = 0;
    Missing missing = Missing::kNothing;
    std::uint32_t missing_from = 0;  // of kPerhaps: the first number, and the last one
    std::uint32_t missing_to = 0;    // that had been skipped when the wait began
    bool withheld = false;           // results were deferred, and are not on their way
    TimeNs gap_ns = kNever;          // when what is below a gap is asked about
    TimeNs next_sweep_ns = 0;
    TimeNs idle_ns = kNever;      // when the oldest block is asked about if nothing comes
    TimeNs may_idle_ns = 0;       // not before: of an interval one such probe, steps do not matter
    TimeNs deadline_ns = kNever;  // no block's deadline is earlier

    // What was skipped from the number `first` on is lost if it has not come after a while.
    void expect_late(std::uint32_t first, TimeNs now, const Flow& flow) noexcept;
  };

  FlowState& flow_state_of(std::uint32_t block) noexcept {
    return flow_states_.size() == 1 ? flow_states_[0] : flow_states_[block % flow_states_.size()];
  }
  void open(FlowState& state, std::uint32_t index) noexcept;
  void close(FlowState& state, std::uint32_t index, Flow& flow) noexcept;
  static TimeNs end_of_silence(const FlowState& state, TimeNs now, const Flow& flow) noexcept;
  void arm(FlowState& state, Block& block, TimeNs now, const Flow& flow) noexcept;
  void make_due(FlowState& state, std::uint32_t index) noexcept;
  bool pop_due(FlowState& state, const Flow& flow, ProbePlan& plan) noexcept;
  bool next_of_sweep(FlowState& state, Flow& flow, ProbePlan& plan) noexcept;
  void end_probe(FlowState& state, Block& block, Flow& flow) noexcept;
  static void check(const Block& block) noexcept;
  bool balanced(std::uint32_t shard) const noexcept;
  std::uint64_t run_of(std::uint32_t index, std::uint64_t bit) const noexcept;
  std::uint64_t queue(std::uint32_t index, std::uint64_t chunks) noexcept;
  static void clear_outstanding(FlowState& state, Block& block, std::uint64_t chunks) noexcept;
  static std::uint64_t pick(const Block& block, bool withheld, std::uint32_t limit) noexcept;
  void expire(FlowState& state, std::uint32_t index, Flow& flow) noexcept;
  void scan_deadlines(FlowState& state, TimeNs now, Flow& flow) noexcept;
  void probe_gap(FlowState& state, Flow& flow) noexcept;
  static void count_arrived(FlowState& state, Block& block, const Flow& flow) noexcept;
  bool probe_oldest(FlowState& state, const Flow& flow) noexcept;

  std::vector<Block> blocks_;
  std::vector<std::uint64_t> run_starts_;  // of each block: the chunks that begin a run
  std::vector<std::uint32_t> numbers_;     // of the packet that carried each chunk last
  std::vector<FlowState> flow_states_;
  bool closed_ = false;  // the appliance has closed the step
};

}  // namespace sluice::client

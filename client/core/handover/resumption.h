// How the members of a synchronous job finish, at the appliance that has come back, the step that
// they were in when it was lost.
//
// An appliance that has restarted knows no sum. Each member states, in the order of ranks, its
// step, how many collectives it has ended, and of which chunks of its step it has the result. All
// members read all states, so all derive the same fate of each chunk of the first step:
//
// - A result that some member has and some member lacks is given by exactly one member, the first
//   that has it, bit for bit. All others take part without data and without weight.
// - What no member has is contributed again by all.
//
// What the caller guarantees, and why that is enough, is said in handover.h, which does the same
// for sums of whole tensors at another appliance. Here it holds chunk by chunk: a member keeps the
// newest result of each chunk until it has the next step's, and its contribution to a chunk until
// it has the result.
//
// The appliance names the first step: the least that a member stated as it joined. A member may
// have had the rest of its step from packets that were still on their way, so all members may be
// one step ahead of it. A member that is two steps away from it was never in this job.
//
// An example of three members in step 7, of two chunks. A and C have the result of chunk 0, nobody
// has that of chunk 1. A gives chunk 0, B takes it, C takes part without data; all three contribute
// chunk 1 again. If C had ended step 7, it would have both: then A gives chunk 0, C gives chunk 1.
//
// If the appliance is lost once more before all have read the states, they are stated again to the
// next one; nothing has changed but that some member may know more results of the same step.
//
// Pure: it decides, the caller sends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/block.h"
#include "aggregator/base/types.h"

namespace sluice::client {

class Resumption {
 public:
  // What a member states.
  struct State {
    Step step = 0;                       // that it is in
    std::uint32_t calls = 0;             // collectives that it has ended
    std::vector<std::uint64_t> results;  // of its step: a bit a chunk
  };

  // `own`: this member's state. `first_step`: as the appliance says.
  Resumption(std::uint16_t members, Rank self, ChunkIndex chunk_count, Step first_step, State own);

  static std::size_t words(ChunkIndex chunk_count) noexcept {
    return (chunk_count + kChunksPerBlock - 1) / kChunksPerBlock;
  }

  // ---- the exchange ----
  // Whose state comes next; the number of members: all are here.
  Rank next() const noexcept { return next_; }
  bool is_over() const noexcept { return next_.value == members_; }
  // That member's state as it travels: this one's own, or to be filled in.
  std::span<std::uint8_t> buffer() noexcept { return buffer_; }
  // It is filled in. False: no member of this job can be in such a state.
  bool take() noexcept;

  // ---- once it is over ----
  Step first_step() const noexcept { return first_step_; }
  // This member has all results of the first step and takes part for others.
  bool is_ahead() const noexcept { return own_.step != first_step_; }
  // Some member has the result of this chunk of the first step.
  bool is_held(ChunkIndex chunk) const noexcept { return bit(held_, chunk); }
  bool has(ChunkIndex chunk) const noexcept { return is_ahead() || bit(own_.results, chunk); }
  // This member gives it to those that lack it.
  bool gives(ChunkIndex chunk) const noexcept {
    return bit(first_here_, chunk) && !bit(all_, chunk);
  }
  // The collective that this member was in is over, because it is for another one.
  bool is_call_over() const noexcept { return most_calls_ > own_.calls; }

 private:
  static bool bit(const std::vector<std::uint64_t>& words, ChunkIndex chunk) noexcept {
    return has_chunk(words[chunk / kChunksPerBlock], chunk);
  }
  void write_own() noexcept;

  const std::uint16_t members_;
  const Rank self_;
  const Step first_step_;
  const State own_;
  Rank next_{0};
  std::vector<std::uint8_t> buffer_;
  std::vector<std::uint64_t> held_;        // by some member
  std::vector<std::uint64_t> all_;         // by every member
  std::vector<std::uint64_t> first_here_;  // this member is the first that has it
  std::uint32_t least_calls_ = UINT32_MAX;
  std::uint32_t most_calls_ = 0;
};

}  // namespace sluice::client

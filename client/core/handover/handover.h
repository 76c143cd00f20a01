// How the members of a job finish, at another aggregator, the step that they began at one that is
// lost.
//
// With the aggregator every sum is lost that was under way. Some members have a row's result, some
// lack it, and no member knows what the others have. So each member states its step, how many
// collectives it has ended, and which results it has. This exchange of states is itself a sum at
// the new aggregator: a member fills in its own places and leaves the others' zero. From the sum
// all members derive the same fate of each row. A result that a member has is given to the others
// by exactly one member, bit for bit. A row whose result no member has is contributed again by all.
//
// What the caller guarantees:
//
// - A member contributes to a step only when it has every result of the step before.
// - The rows of a step depend on each other so that no member has all its results while a root
//   (see Kind) still lacks one.
// - A member keeps the bytes of a contribution until its row is done, and the bytes of a result
//   that it may have to give until it has the next step's result of that row.
//
// Why that is enough:
//
// - All members are in one step s, or some are in s + 1. A result of s + 1 needs a contribution
//   from every member, and no member contributes to s + 1 before it has all of s. So a member in
//   s + 1 has every result of s, and no member has a result of s + 1.
// - A result of kAllReduce is the same on every member that has it, so any of them may give it. A
//   result of kReduce is of use to its root alone: nothing is given. The value of kBroadcast is the
//   root's from the moment when it contributes, so the root gives it.
// - The giver still has the bytes. It overwrites them with the next step's result, and by the first
//   point no member has that.
// - No contribution counts twice. A row is contributed again only if no member has its result, so
//   no member has used another sum of it.
//
// An example of three members. A has slice 7's sum R and is in the next step; C has R, too; the
// aggregator dies before B has R. A gives the R that it kept, C takes part without data, B takes R.
// If no member had R, all three would contribute again.
//
// A collective is over for all members once it is over for one: it ends with a barrier, to which a
// member contributes only when it has all bytes. A member whose collective was under way does it
// again, unless another member's state counts one collective more.
//
// Pure: it decides, the caller submits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregator/base/types.h"

namespace sluice::client {

class Handover {
 public:
  // What a row is among the members.
  enum class Kind : std::uint8_t {
    kAllReduce,  // every member gets the sum
    kReduce,     // the root alone gets the sum
    kBroadcast,  // the root contributes, every other member gets that
  };
  // What this member does with a row of first_step() at the new aggregator.
  enum class Fate : std::uint8_t {
    kContributeFirst,  // no member has the result, and this one has not contributed yet: it will
    kContributeAgain,  // no member has the result
    kGive,             // this member gives the result to all that lack it
    kTake,             // this member lacks the result and gets it
    kNothing,          // this member needs none: it takes part without data
  };
  enum class State : std::uint8_t {
    kSettled,     // nothing is lost
    kExchanging,  // the sum of states is awaited
    kKnown,       // rows have fates
  };

  Handover(std::uint32_t members, std::uint32_t self) noexcept : members_(members), self_(self) {}

  // Before the first step, on all members in the same order: the rows' numbers are 0, 1, ...
  std::uint32_t add_row(Kind kind, std::uint32_t root);

  // ---- what this member does with a row, at any aggregator ----
  // It contributes in this step: once more, if it has before.
  void contribute(std::uint32_t row, Step step) noexcept;
  // The row's result is here, or this member, which wants none, knows that it was counted.
  void finish(std::uint32_t row) noexcept;
  Step contributed(std::uint32_t row) const noexcept { return rows_[row].step; }
  // It has contributed and is not done.
  bool awaits(std::uint32_t row) const noexcept { return rows_[row].phase == Phase::kContributed; }

  // ---- the exchange of states ----
  // The aggregator is lost while this member is in `step` and has ended so many collectives.
  void begin(Step step, std::uint32_t collectives);
  // In: this member's state; out: the sum of all members'.
  std::span<float> states() noexcept { return states_; }
  static std::size_t state_elems(std::uint32_t members, std::size_t rows) noexcept;
  // The sum is in states().
  void end_exchange();
  State state() const noexcept { return state_; }
  // The step that was handed over is done; the members may lose an aggregator again.
  void settle() noexcept;

  // ---- kKnown ----
  Step first_step() const noexcept { return first_step_; }  // the step that is finished first
  Fate fate(std::uint32_t row) const noexcept;
  // It takes part in first_step() without being done with it: what becomes of the row there is
  // awaited.
  bool needs(std::uint32_t row) const noexcept {
    return contributed(row) == first_step_ && awaits(row);
  }
  // It has already contributed to the step after first_step().
  bool is_ahead_in(std::uint32_t row) const noexcept { return contributed(row) > first_step_; }
  // The collective that this member was in is over.
  bool is_collective_over() const noexcept;

 private:
  static constexpr std::uint32_t kWordBits = 16;  // a sum of such words is exact in a float
  enum class Phase : std::uint8_t { kIdle, kContributed, kDone };
  struct Row {
    Kind kind{};
    std::uint32_t root = 0;
    Step step = 0;  // the newest one to which this member has contributed
    Phase phase{};  // in that step
  };

  static std::uint32_t words(std::uint32_t members) noexcept {
    return (members + kWordBits - 1) / kWordBits;
  }
  bool can_give(const Row& row, Step step) const noexcept;
  bool has(std::uint32_t member, std::uint32_t row) const noexcept;
  bool is_ahead(std::uint32_t member) const noexcept;
  std::optional<std::uint32_t> holder_of(std::uint32_t row) const noexcept;

  const std::uint32_t members_;
  const std::uint32_t self_;
  std::vector<Row> rows_;
  std::vector<float> states_;  // steps and collectives by member, then who has each row's result
  Step begun_ = 0;             // this member's step when the aggregator was lost
  std::uint32_t collectives_ = 0;  // those that it had ended then
  Step first_step_ = 0;
  State state_ = State::kSettled;
};

}  // namespace sluice::client

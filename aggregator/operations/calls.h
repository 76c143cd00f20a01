// What a group's operations are, who has called them, and what became of them. Shard 0 alone has
// it.
//
// The first call of a number fixes what the operation is. An operation is judged once: completed
// if every chunk of it is complete in every shard, else ended; all members are told the same. What
// ends operations is a member that waits no longer (one operation), or a break: a member is lost,
// two have called different operations, or one is called that a member which has left has not.
// After a break every operation that a member asks about is judged.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "aggregator/core/mask.h"
#include "aggregator/wire/group.h"

namespace sluice::agg {

// What became of an operation, or broke its group, as members are told.
struct Fate {
  wire::OutcomeCode code = wire::OutcomeCode::kOpen;
  std::uint16_t rank = wire::kNoRank;
  std::uint16_t other = wire::kNoRank;
  wire::Description expected;  // of kDiffers: of the operation that two members disagree about
  wire::Description actual;

  bool open() const noexcept { return code == wire::OutcomeCode::kOpen; }
};

class Calls {
 public:
  struct Operation {
    std::uint64_t number = 0;
    wire::Description what;
    std::uint16_t by = wire::kNoRank;  // the rank whose call fixed it; kNoRank: not fixed
    std::uint16_t count = 0;           // members that have called it
    std::uint16_t cancelled_by = wire::kNoRank;
    bool to_judge = false;
    wire::OutcomeCode heard = wire::OutcomeCode::kOpen;  // of members, at the appliance before
    wire::OutcomeCode code = wire::OutcomeCode::kOpen;   // see fate_of()
    bool open() const noexcept { return code == wire::OutcomeCode::kOpen; }
  };

  // `ranks`: of the group's members, in ascending order.
  Calls(std::span<const Rank> ranks, std::size_t mask_word_count);
  // Besides the object.
  static constexpr std::size_t memory_bytes(std::size_t member_count,
                                            std::size_t mask_word_count) noexcept {
    return kRing * (sizeof(Operation) + 2 * 8 * mask_word_count) +
           member_count * (sizeof(Rank) + 3 * sizeof(std::uint64_t) + 1);
  }

  // A member calls an operation, or asks about it. kTooNew: too far ahead of the others' calls, it
  // is not noted. kCollectiveMismatch: it differs from what is fixed, and the group is broken.
  Verdict call(std::size_t place, std::uint64_t number, const wire::Description& what) noexcept;
  // The member has heard at the appliance before what became of an operation that it has called.
  // Complete is what it has called, which another member's call of the number may not be.
  void hear(std::size_t place, std::uint64_t number, const wire::Description& what,
            wire::OutcomeCode code, std::uint16_t rank) noexcept;
  // The nearest to what the group is at.
  std::uint64_t number_of(std::uint32_t number) const noexcept {
    return wire::unwrap(number, called_by_all_);
  }
  // Null: none is known any more, or not yet.
  Operation* find(std::uint64_t number) noexcept;
  // All below it are called by all members that live.
  std::uint64_t called_by_all() const noexcept { return called_by_all_; }
  // Those that have not called the operation, the first ones. Returns how many.
  std::size_t find_behind(std::uint64_t number,
                          std::array<wire::Behind, wire::kMaxBehind>& behind) const noexcept;

  // One more than the newest that it has called.
  std::uint64_t next_of(std::size_t place) const noexcept { return next_[place]; }
  // All below it are noted.
  std::uint64_t noted(std::size_t place) const noexcept { return noted_[place]; }
  void remove(std::size_t place) noexcept;  // it is lost
  // It calls nothing from this number on, and has called all below.
  void leave(std::size_t place, std::uint64_t from) noexcept;
  bool lives(std::size_t place) const noexcept { return lives_[place]; }

  // ---- a group of an appliance that is lost; before the first call ----
  // What is before `first` is over for all, and the member tells again what is before `over`.
  void resume(std::size_t place, std::uint64_t first, std::uint64_t over) noexcept;
  void set_broken(const Fate& why) noexcept;
  // Where the operations begin, once all members' positions are known.
  void begin_at_least() noexcept { advance(); }
  // Some live member has not told all again, or what members have heard is not carried out.
  bool resuming() noexcept;

  // ---- judgement ----
  const Fate& broken() const noexcept { return broken_; }  // open: it is not
  Fate fate_of(const Operation& operation) const noexcept;
  // Whether the operation is to be judged and is not: then it waits for a turn.
  bool wants_judgement(Operation& operation) noexcept;
  // The next whose turn it is; null: none, or one is being judged.
  Operation* begin_judgement() noexcept;
  // Operations that have ended without being completed, 255 at most.
  std::uint8_t ended() const noexcept { return ended_; }
  bool judging() const noexcept { return judging_ != kNothing; }
  // All shards have looked.
  void end_judgement(bool complete) noexcept;

 private:
  static constexpr std::uint64_t kNothing = UINT64_MAX;
  // A member waits for as many operations as it may be ahead: they are all kept.
  static constexpr std::uint64_t kRing = 2 * kKeptCalls;
  void advance() noexcept;
  void check_left(std::size_t place) noexcept;
  bool all_told() const noexcept;
  std::uint64_t* mask_of(std::uint64_t number) noexcept {
    return &masks_[number % kRing * 2 * mask_word_count_];
  }
  // Of places that have heard that it is completed.
  std::uint64_t* heard_of(std::uint64_t number) noexcept {
    return mask_of(number) + mask_word_count_;
  }

  const std::vector<Rank> ranks_;
  const std::size_t mask_word_count_;
  std::vector<Operation> kept_;       // of number n at n % kRing
  std::vector<std::uint64_t> masks_;  // of each two: see mask_of() and heard_of()
  std::vector<std::uint64_t> next_;   // of each place: one more than the newest that it has called
  std::vector<std::uint64_t> noted_;  // of each place: the first that it has not called
  std::vector<std::uint64_t> told_to_;  // of each place: what it has to tell again ends there
  std::vector<std::uint8_t> lives_;
  std::uint64_t called_by_all_ = 0;
  std::uint64_t judging_ = kNothing;
  bool resuming_ = false;
  std::uint8_t ended_ = 0;
  Fate broken_;
  std::uint64_t left_from_ = UINT64_MAX;  // the first operation that a member does not call
  std::uint16_t left_ = wire::kNoRank;    // that member
};

}  // namespace sluice::agg

// Members that leave and join, a bounded number of blocks at a time.
#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/store/store.h"

namespace sluice::agg {

void StoreShard::change(Rank rank, MemberState now, const Change& change) noexcept {
  CHECK(changes_.size() < changes_.capacity());  // a rank has four under way at most
  members_[rank.value] = now;
  changes_.push_back(change);
}

void StoreShard::remove(Rank rank) noexcept {
  const MemberState from = state(rank);
  if (from == MemberState::kGone || from == MemberState::kLeaving) return;
  // An earlier change that has not begun need not be carried out.
  const auto begun = changes_.begin() + (changes_.empty() ? 0 : 1);
  changes_.erase(std::remove_if(begun, changes_.end(),
                                [rank](const Change& each) { return each.rank == rank; }),
                 changes_.end());
  change(rank, MemberState::kLeaving, {.rank = rank, .to = MemberState::kGone});
}

void StoreShard::hold(Rank rank) noexcept {
  CHECK(state(rank) == MemberState::kGone || state(rank) == MemberState::kLeaving);
  change(rank, MemberState::kHolding, {.rank = rank, .to = MemberState::kHeld});
}

void StoreShard::start(Rank rank, Step first_iteration) noexcept {
  CHECK(state(rank) == MemberState::kHeld && first_iteration > greatest_clock());
  change(rank, MemberState::kStarting,
         {.rank = rank, .to = MemberState::kLive, .first = first_iteration});
}

bool StoreShard::poll_work() noexcept {
  if (changes_.empty() || resumes()) return false;
  const Change change = changes_.front();
  const std::uint64_t begun = rows_swept_;
  for (; change_at_ < block_count_ && rows_swept_ - begun < kRowsPerSweep; ++change_at_)
    carry_out(change_at_, change);
  if (change_at_ < block_count_) return true;
  change_at_ = 0;
  survey(change.rank);
  changes_.erase(changes_.begin());
  // The rank reaches its new state with the last of its changes.
  const bool is_last =
      std::ranges::none_of(changes_, [&](const Change& each) { return each.rank == change.rank; });
  if (is_last) members_[change.rank.value] = change.to;
  return !changes_.empty();
}

// Carries the change out in a block, and the answers that waited for it. Counts the rank's row
// before and after; only a clock that moves has all rows read.
void StoreShard::carry_out(std::uint32_t at, const Change& change) noexcept {
  Block& block = table_.block(at);
  Row& row = table_.row(at, change.rank);
  const bool was_present = row.pushed != kAbsent, was_at_clock = row.pushed == block.clock;
  const std::uint64_t was_missing = was_at_clock ? ~row.counted : 0;
  if (change.to != MemberState::kLive) {  // another process's
    if (row.parked) unpark(at, change.rank);
    row = {.queued = row.queued};
  }
  switch (change.to) {
    case MemberState::kGone: row.pushed = kAbsent; break;
    case MemberState::kHeld: row.pushed = block.clock; break;
    default:
      CHECK(row.pushed == block.clock && change.first > block.clock);
      row.pushed = change.first - 1;
      for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
        table_.note_last(at, index, change.rank, row.pushed);
        ++table_.chunk(at, index).version;  // copies of before have another process's mask
      }
  }
  const bool is_present = row.pushed != kAbsent, is_at_clock = row.pushed == block.clock;
  block.present = static_cast<std::uint16_t>(block.present + is_present - was_present);
  block.at_clock = static_cast<std::uint16_t>(block.at_clock + is_at_clock - was_at_clock);
  ++rows_swept_;
  if (spec_.gathers()) count_missing(at, was_missing, is_at_clock ? ~row.counted : 0);
  if (block.present != 0 && block.at_clock == 0) {
    rows_swept_ += 2 * std::uint64_t{spec_.world_size};
    advance(at);
    wake(at);
  } else if (row.wanted != 0) {
    consider(at, change.rank);
  }
  DCHECK(consistent(at));
}

// Updates the counts for a member whose push was missing in the chunks `was`, and is missing in
// `is` now.
void StoreShard::count_missing(std::uint32_t at, std::uint64_t was, std::uint64_t is) noexcept {
  rows_swept_ += kChunksPerBlock;
  for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
    Chunk& chunk = table_.chunk(at, index);
    chunk.missing =
        static_cast<std::uint16_t>(chunk.missing + (is >> index & 1) - (was >> index & 1));
    if (chunk.missing == 0 && chunk.gathered != 0 && table_.block(at).present != 0)
      apply_gathered(at, index);
  }
}

}  // namespace sluice::agg

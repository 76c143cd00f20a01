// A sequence whose appliance is lost: what it keeps for that, and how it goes on at another one.
//
// A result that this member has is in the output of an open call, or in the copy of one that has
// ended. So is a contribution whose result it does not want: counted at the appliance that is lost,
// it may be in no result.
#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/operations/sequence.h"

namespace sluice::client {

bool Sequence::owes(std::uint64_t first, std::uint64_t end) const noexcept {
  for (std::uint64_t chunk = std::max(first, group_floor_); chunk < std::min(end, was_over_.end());
       ++chunk)
    if (was_over_.has(chunk) && const_cast<Sequence*>(this)->find(chunk) != nullptr &&
        (chunk >= admitted_ || recovery_->lacks(place_of(chunk))))
      return true;
  return false;
}

void Sequence::lose_appliance() {
  kept_.move_to(calls_);
  std::vector<std::uint8_t> over;
  const std::uint64_t end = in_use() ? std::max(admitted_, was_over_.end()) : group_floor_;
  for (std::uint64_t chunk = group_floor_; chunk < end; ++chunk) {
    OpenCall* const call = find(chunk);
    bool is_mine = is_over(chunk) && std::ranges::find(foreign_, chunk) == foreign_.end();
    // What is only counted is so at the appliance that is lost: it does not complete the call.
    if (is_mine && call != nullptr && !call->ended && !call->wants(group_, chunk)) {
      ++call->left;
      is_mine = false;
    }
    over.push_back(is_mine);
  }
  was_over_.assign(group_floor_, std::move(over));
  foreign_.clear();
  done_.clear();
  for (OpenCall& call : calls_) {
    call.differs_from = UINT64_MAX;
    if (!call.ended && call.left == 0)
      done_.push_back({.number = call.number, .non_finite = call.non_finite, .unsure = true});
  }
  admitted_ = group_floor_;
  capacity_ = capacity_for(link_);
  again_.assign(link_.shard_count(), {});
  departures_.assign(link_.shard_count(), {});
  slots_ = 0;
  asked_ = false;
  doubtful_ = kNothing;
  may_tell_ns_ = may_grow_ns_ = stopped_ns_ = 0;
  stopped_count_ = 0;
  passed_ = 0;
  choice_ = {};
  if (in_use()) recovery_.emplace(static_cast<ChunkIndex>(capacity_), link_.shard_count());
}

bool Sequence::resume(std::uint64_t floor, TimeNs now) {
  if (floor < group_floor_ || floor > this->floor()) return false;
  // What is below is over for all: counted, or void.
  for (std::uint64_t chunk = group_floor_; chunk < std::min(floor, next_); ++chunk) {
    OpenCall* const call = find(chunk);
    if (call == nullptr || call->ended || was_over_.has(chunk)) continue;
    call->unsure = true;
    count_over(*call);
  }
  group_floor_ = admitted_ = floor;
  told_ = this->floor();
  kept_.forget(floor, calls_);
  for (OpenCall& call : calls_) {
    call.hash = wire::hash_of(call.what, group_.id, group_.generation);
    call.begin_sending(link_.shard_count());
  }
  if (in_use()) rounds_.assign(capacity_ / kChunksPerBlock, floor / capacity_);
  last_progress_ns_ = now;
  return true;
}

}  // namespace sluice::client

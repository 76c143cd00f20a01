// The views of a store that may move: which ranks it goes on without, so that two appliances never
// do so with different ones.
//
// A rank that is silent here may be alive at the next appliance, and members there cannot tell who
// has stayed. So each rank that is lost, leaves or is taken by a new process makes a new view,
// which every status tells. The shards learn of it, and it is settled, when every member that is
// live here has said that it knows it: from then on only processes that know the view have values
// that were made in it. The store begins at the next appliance with all ranks but those that are
// out of the newest view that one of them knows, and without processes that have missed a settled
// one. Once a member has moved, no view is settled here any more.
//
// Private to this folder, part of a JobControl. Control thread only.
#pragma once

#include <cstdint>

#include "aggregator/jobs/context.h"
#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/rank_holders.h"

namespace sluice::agg {

class Views {
 public:
  Views(JobEntry& entry, RankHolders& ranks) noexcept : entry_(entry), ranks_(ranks) {}

  // A rank is out of the store, or in it again. The caller tells the members.
  void change() noexcept;
  // The rank is lost: the shards go on without it once the view is settled.
  void lose(Rank rank) noexcept;
  // The member has been told of that view.
  void know(Rank rank, std::uint32_t known) noexcept;
  enum class Settled : std::uint8_t {
    kNothing,
    kView,      // the members are to be told
    kExchange,  // and ranks are lost while values are given: all are to join anew
  };
  Settled settle() noexcept;
  bool is_settled() const noexcept { return entry_.view == entry_.settled_view; }

 private:
  JobEntry& entry_;
  RankHolders& ranks_;
};

// ---- of a store that goes on from a lost appliance ----

// The member that knows the newest view. Null: there is none yet.
const MemberEntry* newest_view(const JobEntry& entry) noexcept;
// A process of the member's rank that knows the view `known` is in that of `newest`.
bool is_in_view(const JobEntry& entry, const MemberEntry& of_rank, std::uint32_t known,
                const MemberEntry& newest) noexcept;
// Every rank gives what it has, or is one without which the store has gone on already, or has a
// process with nothing to give. `has_waited`: no other process of that rank has come in time, so
// this one need not know the newest view. It may be in it, and have moved before it was told.
bool all_in_view(const JobEntry& entry, bool has_waited) noexcept;

}  // namespace sluice::agg

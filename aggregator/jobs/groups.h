// The groups of a job of kind operations, as the control side makes and removes them.
//
// Members agree about a group by its name: the first that asks makes it, the others must name the
// same ranks. A group is removed when all its members have left it or are gone. Its object lives on
// until no shard has it and no event of a shard can mean it. Private to this folder; control thread
// only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/core/mask.h"
#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/context.h"
#include "aggregator/operations/group.h"
#include "aggregator/operations/reservations.h"

namespace sluice::agg {

class Groups {
 public:
  Groups(JobEntry& entry, ControlContext& context) noexcept : entry_(entry), context_(context) {}

  // A member makes a group, or takes part in it. Asked again, it gets the same answer.
  struct Answer {
    const Group* group = nullptr;
    Refusal refusal;  // where there is no group
  };
  Answer make(Rank rank, std::string_view name, const MemberMask& ranks);

  // ---- a job that goes on from an appliance that is lost ----
  // A member was in the group there, at the position; none: it has left it there, or aborted it.
  // Its join has said of how many groups it will say so (JobEntry). Groups go on once all members
  // have said all; neither a group nor a refusal: it asks again.
  Answer resume(Rank rank, std::string_view name, const MemberMask& ranks,
                const std::optional<wire::GroupPosition>& position);
  // Some member has not said all yet: no group is made anew meanwhile, which may be one of those.
  bool returning() const noexcept;

  // A member has called so many operations of it, modulo 2^32, and calls no more.
  void leave(Rank rank, std::string_view name, std::uint32_t called);
  // Nor does it complete what it has called: the group is broken.
  void abort(Rank rank, std::string_view name);
  // The same of a rank that has left the job or is lost, which the shards know.
  void remove_member(Rank rank);
  // A shard asks something of all of them.
  void handle(const OperationsRequest& request);
  void tick(TimeNs now);

  std::size_t count() const noexcept { return groups_.size(); }

 private:
  struct Entry {
    std::string name;  // empty: it is removed
    MemberMask ranks;
    MemberMask present;               // members that have neither left nor been lost
    Rank founder;                     // who made it
    std::uint16_t lost = UINT16_MAX;  // a rank that is gone; UINT16_MAX: none
    TimeNs removed_ns = 0;            // since when no shard has it; 0: some has
    std::unique_ptr<Group> group;
  };
  struct Returning {  // a group of the appliance that is lost
    std::string name;
    MemberMask ranks;
    Rank founder;  // who told of it first
    MemberMask told;
    std::vector<std::optional<wire::GroupPosition>> positions;  // by rank
    Refusal refusal;                                            // why it could not be made here
  };

  Entry* find(std::string_view name) noexcept;
  Answer create(Rank founder, std::string_view name, const MemberMask& ranks,
                std::vector<Rank> members);
  void go_on();
  void go_on(Returning& one);
  std::uint16_t free_id() const noexcept;
  std::size_t bytes_of(std::size_t member_count) const noexcept;
  void depart(Entry& entry, Rank rank);
  void command(ShardCommand::Kind kind, const OperationsRequest& request);
  Refusal refuse(std::string why) const;

  JobEntry& entry_;
  ControlContext& context_;
  std::optional<Reservations> reservations_;  // since the first group
  std::vector<Entry> groups_;
  std::vector<Returning> returning_;
  std::vector<std::uint32_t> told_counts_;  // of each rank: the groups that it has told of
  std::uint32_t next_generation_ = 1;
};

}  // namespace sluice::agg

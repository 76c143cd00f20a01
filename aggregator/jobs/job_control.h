// The control of one job from its first join to its end: ranks are taken, lost and taken again,
// state is transferred, members leave, the job ends and its memory is given back.
//
// Private to this folder. Jobs finds the job that a packet or an event means, and calls its
// control. Datagrams, commands and orders go to the context's outbox; answers to requests are
// written by replies.h. Control thread only.
#pragma once

#include <memory>
#include <string>

#include "aggregator/jobs/contributions.h"
#include "aggregator/jobs/groups.h"
#include "aggregator/jobs/rank_holders.h"
#include "aggregator/jobs/state_transfers.h"
#include "aggregator/jobs/views.h"

namespace sluice::agg {

class JobControl {
 public:
  // A new job, whose memory is ordered. `spec.id` is free, and `founder` has asked for the job.
  JobControl(ControlContext& context, const JoinRequest& founder, JobSpec spec);

  const JobEntry& entry() const noexcept { return entry_; }
  MemberEntry& member(Rank rank) noexcept { return entry_.member(rank); }

  // Joins with proof, of a request that agrees with the job.
  ControlResult take_rank(const JoinRequest& asked, const Request& request);
  // Another run wants the job's name. Hosts of dead processes answer a ping with a hint, living
  // processes are heard within a keepalive, and silence ends by itself. So no member becomes a
  // suspect by this.
  void ask_members(const JoinRequest& asked);
  // Another run takes the name: all members of this one are silent, left or gone. Or the run itself
  // comes back with a higher epoch, and no member of this one is heard any more.
  void replace(const Request& request);
  // The appliance is to end: the members are told that they are asked to go on with another one, or
  // that one of them does.
  void drain(wire::Drain drain);
  // Another run goes on with the store that is kept.
  void adopt(const JoinRequest& asked);

  // Requests of members. A member spoke; it may have been removed too early.
  void hear(const Request& request);
  // `why`: of kAborted.
  void leave(Rank rank, const wire::Leave& leave, std::string_view why, TimeNs now);
  // Makes a group or lets the member leave one. Bytes of the answer; 0: there is none yet.
  std::size_t make_group(const Request& request);
  Verdict resync(Rank rank, const wire::Resync& body, TimeNs now);
  // A hint says that the process is gone: it is asked with a ping.
  void suspect(Rank rank, TimeNs now);
  // The same of a connection that ended: pings that went over it count for nothing.
  void suspect_anew(Rank rank, TimeNs now);

  void handle_event(const ShardEvent& event, TimeNs now);
  void handle_memory(MemoryOrder order, TimeNs now);
  void tick(TimeNs now);
  // The job has ended, and its members could have asked for long enough why: nothing needs it.
  bool is_over(TimeNs now) const noexcept;

  // The operator ends the job or one rank's part in it; see Jobs::kick().
  Status kick(std::optional<Rank> rank, TimeNs now);
  // Ends the job with a notice to all members that are still in it.
  void fail(wire::NoticeCode code, Rank about, std::string why, TimeNs now);
  // A normal end: the job has no members any more. The name is free at once.
  void retire(TimeNs now);

 private:
  // job_control.cc
  ControlResult admit_to_running(const Request& request);
  void revive(Rank rank, TimeNs now);
  void start_if_complete(TimeNs now);
  void tell_status();  // to all members, unasked
  void advance_transfers(TimeNs now);
  void check_wanted(TimeNs now);

  // ending.cc: how ranks are lost, how the job ends, and when its memory goes back.
  void check_member(Rank rank, TimeNs now);
  void lose(Rank rank, wire::NoticeCode code, TimeNs now);
  bool let_go(Rank rank, wire::NoticeCode code, TimeNs now);
  void check_ends(TimeNs now);
  void evict(StateTransfers::Eviction eviction, TimeNs now);
  void remove_member(Rank rank);
  void note_loss(Rank rank, wire::NoticeCode code, std::string why, TimeNs now);
  std::string describe_loss_by(Rank rank, wire::NoticeCode code, TimeNs now) const;
  void release();
  void expire(TimeNs now);
  void give_back(std::unique_ptr<Job> job);

  // keep.cc: stores without workers, and without initial values.
  bool keep(TimeNs now);
  void check_initial_values(TimeNs now);

  ControlContext& context_;
  JobEntry entry_;
  RankHolders ranks_{entry_, context_};
  StateTransfers transfers_{entry_, context_};
  Contributions contributions_{context_.furthest_searches};
  Views views_{entry_, ranks_};      // of a store with a standby
  Groups groups_{entry_, context_};  // of a job of kind operations
};

}  // namespace sluice::agg

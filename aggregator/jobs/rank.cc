// Whether a process gets a rank of a job that its request agrees with.
#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

using Kind = RankDecision::Kind;

RankDecision refuse(wire::RefuseCode code, std::string why) {
  return {.kind = Kind::kRefuse, .refusal = no(code, std::move(why))};
}
RankDecision refuse_taken(std::string why) {
  return refuse(wire::RefuseCode::kRankTaken, std::move(why));
}

// A rank of a synchronous job is beyond its beginning. Before, no rank has a result of a step or a
// collective to which another one has not contributed: a process that no appliance has admitted, or
// that has not heard of it, lacks nothing.
bool has_gone_on(Step step, std::uint32_t calls) noexcept { return step > 1 || calls != 0; }

// With k < n, or of a store that may move, two processes of one rank come from an appliance that is
// lost, where one of them had taken the other's place. That one knows of newer exchanges or views,
// or is in a later step.
bool came_later(const wire::Join& join, const MemberEntry& holder) noexcept {
  if (join.was_member == 0 || !holder.was_member) return false;
  if (join.exchange_over == holder.exchange_over && join.view != holder.view)
    return join.view > holder.view;
  return join.exchange_over != holder.exchange_over ? join.exchange_over > holder.exchange_over
                                                    : join.resume_step > holder.resume_step;
}

// The holder of the rank spoke a moment ago.
RankDecision decide_held(const JoinRequest& request, const JobEntry& entry, DurationNs silent_ns) {
  const MemberEntry& member = entry.member(request.rank);
  CHECK(member.is(MemberPhase::kJoined) && silent_ns <= kTakeoverSilence);
  if (entry.forming() && (entry.spec.policy.tolerates_stragglers() || entry.in_views()) &&
      came_later(request.join, member))
    return {.kind = Kind::kTake, .refusal = {}};
  // Nobody could take over the state of the last live member: only its silence ends it.
  if (entry.goes_on() && entry.live_count() > 1 && !member.liveness.was_cleared(request.now))
    return {.kind = Kind::kAskHolder, .refusal = {}};
  return refuse_taken(
      text("rank %u of job '%s' is held by %s, heard %.1f s ago, and %s asks for it: give each "
           "process its own rank, and in a BCube the addresses of its own switches; a silent "
           "process can be replaced after %.0f s",
           unsigned{request.rank.value}, entry.name.c_str(), member.address.c_str(),
           seconds(silent_ns), std::string(request.address).c_str(), seconds(kTakeoverSilence)));
}

// The holder ended its part, or may have. The join may be for the program's next job, while the
// other ranks are about to leave this one.
RankDecision decide_left(const JoinRequest& request, const JobEntry& entry) {
  const DurationNs left_ns_ago = request.now - entry.member(request.rank).left_ns;
  CHECK(entry.running());
  if (left_ns_ago < kRejoinGrace) return {.kind = Kind::kIgnore, .refusal = {}};
  return refuse_taken(text(
      "rank %u of job '%s' left %.1f s ago and %u of %u ranks are still in it: use another job "
      "name or ordinal",
      unsigned{request.rank.value}, entry.name.c_str(), seconds(left_ns_ago),
      unsigned{entry.count(MemberPhase::kJoined)}, unsigned{entry.world_size()}));
}

// A rank that did not come in time is lost to its groups, or its store, which have gone on.
Refusal check_late_resumption(const JoinRequest& request, const JobEntry* entry) {
  const bool late = request.join.resume_step != 0 && !request.asks_any_rank() && entry != nullptr &&
                    entry->running() && entry->run_id == request.join.run_id &&
                    entry->member(request.rank).nonce != request.join.nonce;
  if (!late) return {};
  return no(wire::RefuseCode::kEnded,
            text("job '%s' has gone on without rank %u, which came later than "
                 "limits.member_timeout_s after the appliance was back: start that rank again",
                 entry->name.c_str(), unsigned{request.rank.value}));
}

}  // namespace

// A new process has none of the results that the others have, and its contributions of before may
// be in them.
Refusal check_resumption(const JoinRequest& request, const JobsOptions& options,
                         const JobEntry* entry) {
  using wire::RefuseCode;
  const wire::Join& join = request.join;
  if (join.kind != JobKind::kSums) return check_late_resumption(request, entry);
  // With k < n a new process gets another rank's state.
  if (effective_policy(request, options).tolerates_stragglers()) return {};
  if (entry == nullptr || !entry->forming() || entry->run_id != join.run_id) return {};
  for (std::uint16_t index = 0; index < entry->world_size(); ++index) {
    const MemberEntry& other = entry->member(Rank{index});
    if (index == request.rank.value || !other.is(MemberPhase::kJoined)) continue;
    const bool is_new = has_gone_on(other.resume_step, other.resume_calls) && join.was_member == 0;
    if (!is_new && (!has_gone_on(join.resume_step, join.resume_calls) || other.was_member))
      continue;
    const std::uint16_t old = is_new ? index : request.rank.value;
    return no(
        RefuseCode::kEnded,
        text("job '%s' goes on with step %u of an appliance that is lost, where rank %u was "
             "in it, and rank %u is a new process: a synchronous job needs all processes "
             "that it had; start it again from a checkpoint",
             entry->name.c_str(), std::uint32_t{is_new ? other.resume_step : join.resume_step},
             unsigned{old}, unsigned{is_new ? request.rank.value : index}));
  }
  return {};
}

RankDecision decide_rank(const JoinRequest& request, const JobEntry& entry,
                         const PausableClock& clock) {
  const MemberEntry& member = entry.member(request.rank);
  const bool same = member.nonce == request.join.nonce;
  if (entry.forming() && entry.is_store() && entry.spec.store->resumes &&
      request.join.resume_step == 0)
    return {.kind = Kind::kLater, .refusal = {}};
  CHECK(!entry.ended() && entry.run_id == request.join.run_id);
  if (member.is(MemberPhase::kJoined) && same) return {.kind = Kind::kAcceptAgain, .refusal = {}};
  if (member.is(MemberPhase::kGone) && same && entry.forming())
    return {.kind = Kind::kRevive, .refusal = {}};
  if (member.has_left() && same) return {.kind = Kind::kIgnore, .refusal = {}};
  if (member.is(MemberPhase::kEvicted) && same)
    return refuse(wire::RefuseCode::kEnded, member.notice);
  if (member.stale_cookie != 0 && member.stale_nonce == request.join.nonce)
    return refuse_taken(text("rank %u of job '%s' was taken over by the process at %s",
                             unsigned{request.rank.value}, entry.name.c_str(),
                             member.address.c_str()));
  if (member.is(MemberPhase::kJoined)) {
    const DurationNs silent_ns = request.now - entry.last_heard_ns(request.rank, clock);
    if (silent_ns <= kTakeoverSilence) return decide_held(request, entry, silent_ns);
  }
  const bool unheard = member.is(MemberPhase::kGone) && entry.is_synchronous();
  if (member.is_elsewhere() && entry.goes_on())
    return {.kind = Kind::kIgnore, .refusal = {}};  // another process finds the job where it is now
  const bool left = member.is(MemberPhase::kLeft) && entry.running() && !entry.is_elastic();
  if (unheard || left) return decide_left(request, entry);
  return {.kind = entry.goes_on() ? Kind::kTakeOfRunning : Kind::kTake, .refusal = {}};
}

}  // namespace sluice::agg

#include "aggregator/jobs/job_control.h"

#include <algorithm>

#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

std::string describe_operation(const wire::Operation& one) {
  if (one.kind == CollectiveKind::kBarrier) return "a barrier";
  return text("a broadcast of %u bytes from rank %u", one.size_bytes, unsigned{one.root});
}

}  // namespace

JobControl::JobControl(ControlContext& context, const JoinRequest& founder, JobSpec spec)
    : context_(context) {
  CHECK(founder.rank.value < spec.world_size || founder.asks_any_rank());
  const wire::Join& join = founder.join;
  const Rank first = founder.asks_any_rank() ? Rank{0} : founder.rank;
  entry_.id = spec.id;
  entry_.serial = context_.next_serial++;
  entry_.name = spec.name;
  entry_.ordinal = join.ordinal;
  entry_.run_id = join.run_id;
  entry_.epoch = join.epoch;
  entry_.gradients = join.layouts[kTensorStream];
  entry_.averaging = join.averaging;
  entry_.wire = join.wire;
  entry_.store = join.store;
  entry_.keep = join.keep;
  entry_.prune = join.prune;
  entry_.tensor_count = join.tensor_count;
  entry_.print_tensors = join.print_tensors;
  entry_.prints.assign(founder.prints.begin(), founder.prints.end());
  entry_.layout_rank = first;
  entry_.founder_host = host_of(founder.address);
  entry_.datagram_bytes = join.datagram_bytes;
  entry_.members.resize(spec.world_size);
  entry_.member(first).address = founder.address;
  entry_.memory_bytes = Job::memory_bytes(spec);
  entry_.spec = std::move(spec);
  entry_.options = context.options;

  CHECK(entry_.unclaimed() && entry_.memory_bytes != 0);
  entry_.change_to(JobMemory::kMaking);
  entry_.progress = std::make_shared<BuildProgress>();
  context_.outbox.orders.push_back({.kind = MemoryOrder::Kind::kMake,
                                    .serial = entry_.serial,
                                    .bytes = entry_.memory_bytes,
                                    .spec = entry_.spec,
                                    .job = nullptr,
                                    .progress = entry_.progress});
}

// ---- joins ----

ControlResult JobControl::take_rank(const JoinRequest& asked, const Request& request) {
  CHECK(entry_.listed);
  entry_.asked_ns = request.now;
  if (entry_.memory() == JobMemory::kMaking) return preparing(request, entry_.percent_made());
  if (asked.asks_any_rank()) {
    Request given = request;
    given.given = entry_.rank_for(asked.join.nonce);
    if (!given.given)
      return refuse(
          request,
          no(wire::RefuseCode::kLimit,
             text("job '%s' has %u processes, and its world size allows no more: end one, "
                  "or start the job with a greater world size",
                  entry_.name.c_str(), unsigned{entry_.world_size()})),
          true);
    JoinRequest as = asked;
    as.rank = *given.given;
    return take_rank(as, given);
  }
  CHECK(asked.rank.value < entry_.world_size());
  const MemberEntry& holder = entry_.member(asked.rank);
  // It was given up, and asks because it has heard nothing.
  if (holder.is(MemberPhase::kGone) && holder.nonce == asked.join.nonce && entry_.goes_on()) {
    hear(request);
    return {.verdict = Verdict::kJoin, .bind = true, .job = entry_.id, .rank = asked.rank};
  }
  const RankDecision decision = decide_rank(asked, entry_, context_.clock);
  switch (decision.kind) {
    case RankDecision::Kind::kRefuse: return refuse(request, decision.refusal, true);
    case RankDecision::Kind::kLater:
      entry_.member(asked.rank).has_newcomer = true;
      if (asked.join.was_member != 0) entry_.member(asked.rank).newcomer_view = asked.join.view;
      start_if_complete(request.now);
      [[fallthrough]];
    case RankDecision::Kind::kIgnore: return {.verdict = Verdict::kJoin};
    case RankDecision::Kind::kAskHolder:
      suspect(asked.rank, request.now);
      return {.verdict = Verdict::kJoin};  // the worker asks again
    case RankDecision::Kind::kAcceptAgain:
      entry_.member(asked.rank).liveness.hear(request.now);
      entry_.member(asked.rank).address = asked.address;
      if (entry_.forming()) ranks_.note_resumption(request);
      break;
    case RankDecision::Kind::kRevive:
      if (entry_.forming()) ranks_.note_resumption(request);
      revive(asked.rank, request.now);
      break;
    case RankDecision::Kind::kTakeOfRunning: return admit_to_running(request);
    case RankDecision::Kind::kTake:
      ranks_.occupy(request);
      start_if_complete(request.now);
      break;
  }
  return accept(request, entry_, *context_.options);
}

// A rank of a job that went on without it, or does so now. The join is not answered before shard 0
// knows the process: the worker asks again.
ControlResult JobControl::admit_to_running(const Request& request) {
  CHECK(entry_.goes_on() && entry_.running());
  const Rank rank = request.rank();
  MemberEntry& member = entry_.member(rank);
  const bool same = member.nonce == request.join().nonce;
  if (entry_.is_store() && entry_.job->gathers()) return {.verdict = Verdict::kJoin};
  if (member.is(MemberPhase::kReturning)) {
    if (same) member.liveness.hear(request.now);
    ranks_.repeat_rejoin(rank, request.now);
    return {.verdict = Verdict::kJoin, .bind = same, .job = entry_.id, .rank = rank};
  }
  if (entry_.in_views()) {
    if (entry_.has_moved()) return {.verdict = Verdict::kJoin};
    if (member.live()) lose(rank, wire::NoticeCode::kMemberSilent, request.now);
    if (entry_.ended() || !views_.is_settled()) return {.verdict = Verdict::kJoin};
  }
  if (member.live()) remove_member(rank);  // silent for too long
  if (entry_.is_kept())
    entry_.loss = text("job '%s': its other workers are still to come", entry_.name.c_str());
  if (!same) ranks_.occupy(request);
  member.address = request.origin.address;
  member.rejoined = true;
  member.needs_state = !entry_.is_store() && !entry_.is_operations();
  ranks_.rejoin(rank, request.now);
  if (entry_.in_views()) {
    views_.change();
    tell_status();
  }
  return {.verdict = Verdict::kJoin, .bind = true, .job = entry_.id, .rank = rank};
}

// The holder was only frozen. Jobs that go on have RankHolders::rejoin().
void JobControl::revive(Rank rank, TimeNs now) {
  CHECK(entry_.forming() || entry_.is_synchronous());
  MemberEntry& member = entry_.member(rank);
  member.change_to(MemberPhase::kJoined);
  member.liveness.hear(now);
  entry_.shared(rank).reachable.store(true, std::memory_order_release);
  start_if_complete(now);
}

void JobControl::start_if_complete(TimeNs now) {
  if (!entry_.forming() || entry_.memory() != JobMemory::kHeld) return;
  const bool waited = have_waited(entry_, context_.options->member_timeout_ns, now);
  const std::uint16_t needed = entry_.is_elastic() ? std::uint16_t{1} : entry_.world_size();
  const bool all = entry_.in_views() && entry_.spec.store->resumes
                       ? all_in_view(entry_, waited)
                       : entry_.count(MemberPhase::kJoined) + entry_.newcomers() >= needed;
  if (!all && !(waited && entry_.resumes_without_rest())) return;
  const Resumed resumed = entry_.resumed();
  if (!resumed.givers.empty()) ranks_.resume(resumed, now);
  if (!all && entry_.is_operations()) ranks_.go_on_without_absent();
  entry_.job->start(context_.clock.caller_time(now), resumed);
  entry_.run();
  entry_.initial_ns = now;
  tell_status();
}

void JobControl::ask_members(const JoinRequest& asked) {
  CHECK(!entry_.ended() && entry_.run_id != asked.join.run_id);
  entry_.rival_run_id = asked.join.run_id;
  entry_.rival_ns = asked.now;
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank)
    if (entry_.member(Rank{rank}).is(MemberPhase::kJoined))
      context_.outbox.send(entry_, Rank{rank}, wire::PacketType::kPing);
}

void JobControl::drain(wire::Drain drain) {
  if (entry_.ended() || entry_.drain >= drain) return;
  entry_.drain = drain;
  tell_status();
}

void JobControl::tell_status() {
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank)
    if (entry_.member(Rank{rank}).is(MemberPhase::kJoined))
      context_.outbox.send(entry_, Rank{rank}, wire::PacketType::kStatus);
}

// ---- members' requests; leave() stands in ending.cc ----

void JobControl::hear(const Request& request) {
  const Rank rank = request.rank();
  MemberEntry& member = entry_.member(rank);
  CHECK(!member.is(MemberPhase::kFree) && member.cookie != 0);
  member.liveness.hear(request.now);
  member.address = request.origin.address;
  if (entry_.job != nullptr)
    entry_.shared(rank).last_heard_ns.store(context_.clock.caller_time(request.now),
                                            std::memory_order_relaxed);
  if (request.packet.type() == wire::PacketType::kKeepalive)
    views_.know(rank, request.packet.body<wire::Keepalive>().view);
  if (member.is(MemberPhase::kReturning)) ranks_.repeat_rejoin(rank, request.now);
  if (!member.is(MemberPhase::kGone)) return;
  if (entry_.forming() || entry_.is_synchronous()) revive(rank, request.now);
  if (entry_.goes_on() && !entry_.in_views()) ranks_.rejoin(rank, request.now);
}

Verdict JobControl::resync(Rank rank, const wire::Resync& body, TimeNs now) {
  // Elsewhere no rank falls behind.
  if (!entry_.goes_on() || entry_.is_store() || entry_.is_operations()) return Verdict::kNotAllowed;
  if (!entry_.member(rank).is(MemberPhase::kJoined)) return Verdict::kResync;
  if (body.done != 0)
    transfers_.finish(rank, body.number);
  else
    transfers_.ask(rank, body.number, now);
  advance_transfers(now);
  return Verdict::kResync;
}

std::size_t JobControl::make_group(const Request& request) {
  const auto& body = request.packet.body<wire::MakeGroup>();
  if (!entry_.is_operations() || !entry_.running() || !member(request.rank()).live()) return 0;
  const std::string_view name(body.name, body.name_bytes);
  const bool makes = body.request == wire::GroupRequest::kMake;
  if (body.request == wire::GroupRequest::kAbort) groups_.abort(request.rank(), name);
  if (body.request == wire::GroupRequest::kLeave) groups_.leave(request.rank(), name, body.called);
  MemberMask ranks;
  for (std::size_t word = 0; word < request.packet.mask_word_count(); ++word)
    ranks.words()[word] = request.packet.mask_word(word);
  Groups::Answer answer;
  if (body.resumes != 0)
    answer =
        groups_.resume(request.rank(), name, ranks,
                       makes ? std::optional(wire::GroupPosition(body.position)) : std::nullopt);
  else if (makes && groups_.returning())
    return 0;
  else if (makes)
    answer = groups_.make(request.rank(), name, ranks);
  if (makes && answer.group == nullptr && answer.refusal.ok()) return 0;  // it asks again
  const std::string& why = answer.refusal.text;
  wire::GroupMade made{
      .number = body.number,
      .text_bytes = static_cast<std::uint16_t>(std::min(why.size(), kMaxTextBytes)),
      .request = body.request};
  if (answer.group != nullptr) {
    made.group = answer.group->id;
    made.generation = answer.group->generation;
    for (std::size_t id = 0; id < wire::kSequenceCount; ++id)
      made.floors[id] = answer.group->begins_at[id];
  }
  return wire::encode(request.reply,
                      {.job = entry_.id.value,
                       .rank = request.rank().value,
                       .cookie = member(request.rank()).cookie},
                      made, {},
                      {reinterpret_cast<const std::uint8_t*>(why.data()), made.text_bytes});
}

// An evicted target makes way for the next one.
void JobControl::advance_transfers(TimeNs now) {
  while (entry_.goes_on()) {
    std::optional<StateTransfers::Eviction> eviction = transfers_.advance(now);
    if (!eviction) return;
    evict(std::move(*eviction), now);
  }
}

void JobControl::suspect(Rank rank, TimeNs now) {
  CHECK(!entry_.ended());
  MemberEntry& member = entry_.member(rank);
  if (member.is(MemberPhase::kJoined) && member.liveness.suspect(now))
    context_.outbox.send(entry_, rank, wire::PacketType::kPing);
}

void JobControl::suspect_anew(Rank rank, TimeNs now) {
  CHECK(!entry_.ended());
  MemberEntry& member = entry_.member(rank);
  if (member.is(MemberPhase::kJoined) && member.liveness.suspect_anew(now))
    context_.outbox.send(entry_, rank, wire::PacketType::kPing);
}

// ---- shards and memory ----

void JobControl::handle_event(const ShardEvent& event, TimeNs now) {
  CHECK(event.rank.value < entry_.world_size());
  switch (event.kind) {
    case ShardEvent::Kind::kJobReleased:
      CHECK(entry_.memory() == JobMemory::kLeaving && entry_.releases_left != 0);
      if (--entry_.releases_left == 0) give_back(std::move(entry_.job));
      break;
    case ShardEvent::Kind::kCollectiveMismatch:
      fail(wire::NoticeCode::kCollective, event.rank,
           text("job '%s': ranks disagree about collective %u: the first packet said %s, rank %u "
                "at %s says %s; all ranks must call the same collectives in the same order",
                entry_.name.c_str(), event.step, describe_operation(event.expected).c_str(),
                unsigned{event.rank.value}, entry_.members[event.rank.value].address.c_str(),
                describe_operation(event.actual).c_str()),
           now);
      break;
    case ShardEvent::Kind::kMemberAdmitted: ranks_.admitted(event.rank, now); break;
    case ShardEvent::Kind::kTransferOpened: transfers_.opened(event.step); break;
    case ShardEvent::Kind::kTransferLost:
      // The target waits for what will not come, unless another rank has it.
      if (!transfers_.has_lost_source(event.step)) break;
      if (auto eviction = transfers_.replace_source(now)) evict(std::move(*eviction), now);
      advance_transfers(now);
      break;
    case ShardEvent::Kind::kGroupsRequest:
      if (!entry_.ended()) groups_.handle(event.groups);
      break;
    case ShardEvent::Kind::kStepLimit:
      fail(wire::NoticeCode::kStepLimit, event.rank,
           text("job '%s': stream %u has used its last step number %u: start a new job from a "
                "checkpoint",
                entry_.name.c_str(), static_cast<unsigned>(event.stream), event.step),
           now);
      break;
  }
}

void JobControl::handle_memory(MemoryOrder order, TimeNs now) {
  CHECK(entry_.serial == order.serial);
  if (order.kind == MemoryOrder::Kind::kGiveBack) {
    CHECK(entry_.memory() == JobMemory::kGoing && order.job == nullptr);
    entry_.change_to(JobMemory::kNone);
    return;
  }
  CHECK(entry_.memory() == JobMemory::kMaking && entry_.job == nullptr);
  if (order.job == nullptr) {
    entry_.change_to(JobMemory::kNone);
    if (entry_.ended()) return;
    // All that ask within the next seconds are told.
    entry_.no_memory = text(
        "job '%s' needs %zu MiB and the appliance's system has less left: lower "
        "limits.total_memory_mib (%zu) or stop other programs there",
        entry_.name.c_str(), mebibytes(entry_.memory_bytes),
        context_.options->max_total_memory_bytes >> 20);
    entry_.end(now);
  } else if (entry_.ended()) {  // nobody waits for it any more
    give_back(std::move(order.job));
  } else {
    entry_.job = std::move(order.job);
    entry_.change_to(JobMemory::kHeld);
    entry_.held_since_ns = now;
    context_.outbox.command(entry_, ShardCommand::Kind::kAddJob);
  }
}

// ---- time ----

void JobControl::tick(TimeNs now) {
  entry_.check();
  contributions_.forget();
  for (Rank rank{0}; rank.value < entry_.world_size() && !entry_.ended(); ++rank.value) {
    const MemberEntry& member = entry_.member(rank);
    if (member.is(MemberPhase::kReturning)) ranks_.repeat_rejoin(rank, now);
    check_member(rank, now);
    if (!member.is(MemberPhase::kJoined)) continue;
    if (auto eviction = transfers_.check_idle_return(rank, now)) evict(std::move(*eviction), now);
  }
  check_wanted(now);
  start_if_complete(now);
  switch (views_.settle()) {
    case Views::Settled::kNothing: break;
    case Views::Settled::kView: tell_status(); break;
    case Views::Settled::kExchange:
      fail(wire::NoticeCode::kMoved, Rank{},
           "job '" + entry_.name + "' has lost ranks while values were given: join again", now);
  }
  if (entry_.is_synchronous()) check_ends(now);
  advance_transfers(now);
  if (entry_.goes_on() && entry_.is_store()) {
    ranks_.start_joiners(now);
    check_initial_values(now);
    const bool outlived = now - entry_.kept_since_ns >= context_.options->store_keep_ns;
    if (entry_.is_kept() && outlived) retire(now);
  }
  if (entry_.ended()) expire(now);
  if (entry_.is_operations() && entry_.running()) groups_.tick(now);
}

bool JobControl::is_over(TimeNs now) const noexcept {
  return entry_.ended() && entry_.memory() == JobMemory::kNone &&
         now - entry_.ended_ns >= kNoticeRepeat;
}

// Workers that want a job ask again: one that none has asked for lately is not wanted any more.
void JobControl::check_wanted(TimeNs now) {
  if (!entry_.forming() || !entry_.unclaimed() || now - entry_.asked_ns <= kJoinDeadline) return;
  retire(now);
}

}  // namespace sluice::agg

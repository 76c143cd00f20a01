// Transfers of state: which rank gives its parameters and optimizer state to one that has none or
// fell too far behind, and how long the window waits for it.
//
// One transfer a job at a time; further requests wait in line, and for them the window does not
// wait. Everything is driven by the target, which repeats its request until a status names it.
#include <algorithm>
#include <array>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

constexpr Step kHoldAhead = 3;  // no record that far ahead of the open step exists yet

}  // namespace

ControlResult Jobs::resync(const Request& request) {
  const Identity speaker = identify(request.packet);
  const Rank rank = request.rank();
  if (speaker.replaced)
    return {.verdict = Verdict::kStaleCookie,
            .reply_bytes = write_replaced(*speaker.entry, rank, request)};
  if (speaker.member == nullptr) return {.verdict = speaker.why};

  JobEntry& entry = *speaker.entry;
  MemberEntry& member = *speaker.member;
  hear(entry, request);
  ControlResult result{.verdict = Verdict::kResync, .bind = true, .job = entry.id, .rank = rank};
  if (!entry.goes_on() || entry.is_store()) {
    result.verdict = Verdict::kNotAllowed;  // nobody falls behind there
  } else if (member.is(MemberPhase::kJoined)) {
    const wire::Resync& body = request.packet.body<wire::Resync>();
    if (body.done != 0)
      finish_resync(entry, rank, body.number);
    else
      ask_for_state(entry, rank, body.number, request.now);
    advance_resyncs(entry, request.now);
  }
  result.reply_bytes = write_answer(entry, rank, 0, request);
  return result;
}

void Jobs::ask_for_state(JobEntry& entry, Rank rank, std::uint32_t number, TimeNs now) {
  CHECK(entry.goes_on() && entry.member(rank).is(MemberPhase::kJoined));
  if (number <= entry.member(rank).resyncs_done) return;  // a late copy
  if (entry.resyncs.ask(rank, number) == Resyncs::Asked::kRestarted)
    open_transfer(entry, entry.resyncs.source(), now);
}

void Jobs::finish_resync(JobEntry& entry, Rank rank, std::uint32_t number) {
  MemberEntry& member = entry.member(rank);
  CHECK(member.is(MemberPhase::kJoined));
  member.resyncs_done = std::max(member.resyncs_done, number);
  member.needs_state = false;  // also when the appliance gave the transfer up meanwhile
  if (entry.resyncs.is_target(rank) && entry.resyncs.number() == number) end_transfer(entry);
}

// All that time or the last packet changed. Called again until nothing moves: an evicted target
// makes way for the next.
void Jobs::advance_resyncs(JobEntry& entry, TimeNs now) {
  Resyncs& resyncs = entry.resyncs;
  if (resyncs.active() && entry.goes_on()) check_transfer(entry, now);
  while (!resyncs.active() && resyncs.has_line() && entry.goes_on()) {
    const Rank target = resyncs.next();
    Rank source;
    if (choose_source(entry, target, now, source))
      start_transfer(entry, source, now);
    else
      evict(entry, target, describe_no_source(entry, target), now);
  }
}

void Jobs::check_transfer(JobEntry& entry, TimeNs now) {
  CHECK(entry.goes_on() && entry.job != nullptr);
  Resyncs& resyncs = entry.resyncs;
  const Rank target = resyncs.target();
  const Rank source = resyncs.source();
  CHECK(target != source && entry.member(target).live());
  Rank other;
  const bool others = choose_source(entry, target, now, other);
  if (resyncs.held_ns(now) >= options_.resync_hold_ns)
    return evict(entry, target,
                 others ? describe_hold(entry, now) : describe_no_source(entry, target), now);
  if (resyncs.is_overdue(now)) open_transfer(entry, source, now);
  const bool usable = can_give_state(entry, source, target);
  if (usable && now - last_heard(entry, source) <= kTakeoverSilence) return;
  if (others && other != source) return open_transfer(entry, other, now);
  // Without another source the target may have all that it needs already. Shard 0 sees when it
  // waits for more; its events may be lost, so it is asked again.
  if (!usable && resyncs.ask_for_loss(now)) command(ShardCommand::Kind::kSourceLost, entry, source);
}

void Jobs::start_transfer(JobEntry& entry, Rank source, TimeNs now) {
  CHECK(source != entry.resyncs.next() && entry.job != nullptr);
  entry.resyncs.start(now);
  Member& shared = entry.shared(entry.resyncs.target());
  const auto gradients = index_of(StreamId::kGradients);
  const Step open = entry.job->windows[gradients].open_step.load(std::memory_order_acquire);
  const Step joined = shared.joined_from[gradients].load(std::memory_order_relaxed);
  CHECK(joined != kNoStep);  // shard 0 has let it in
  shared.hold_from.store(std::max(joined, std::min(open, kLastStep - kHoldAhead) + kHoldAhead),
                         std::memory_order_release);
  open_transfer(entry, source, now);
}

// A process that returned and never asks for state would be waited for wherever k needs it.
void Jobs::check_idle_return(JobEntry& entry, Rank rank, TimeNs now) {
  const MemberEntry& member = entry.member(rank);
  CHECK(member.is(MemberPhase::kJoined));
  const DurationNs idle_ns = now - member.admitted_ns;
  if (!member.needs_state || idle_ns <= options_.resync_hold_ns || entry.resyncs.is_target(rank) ||
      entry.resyncs.in_line(rank))
    return;
  evict(entry, rank,
        text("job '%s': rank %u at %s joined the running job %.1f s ago and has not asked for the "
             "state of another rank, for which the job waits at most %.1f s (limits.resync_hold_s)",
             entry.name.c_str(), unsigned{rank.value}, member.address.c_str(), seconds(idle_ns),
             seconds(options_.resync_hold_ns)),
        now);
}

// From now on statuses name no transfer until shard 0 has opened its first step.
void Jobs::open_transfer(JobEntry& entry, Rank source, TimeNs now) {
  CHECK(can_give_state(entry, source, entry.resyncs.target()) || entry.resyncs.source() == source);
  entry.resyncs.open(source, now);
  const Rank target = entry.resyncs.target();
  entry.job->transfer.source_and_target.store(std::uint32_t{source.value} << 16 | target.value,
                                              std::memory_order_release);
  command(ShardCommand::Kind::kOpenTransfer, entry, target);
}

void Jobs::transfer_opened(JobEntry& entry, Step step) {
  Resyncs& resyncs = entry.resyncs;
  if (!resyncs.opened(step)) return;  // of a transfer that is over
  queue(entry, resyncs.source(), wire::PacketType::kStatus);
  queue(entry, resyncs.target(), wire::PacketType::kStatus);
}

// The target waits for what will not come, unless somebody else has it.
void Jobs::transfer_lost(JobEntry& entry, Step step, TimeNs now) {
  const Resyncs& resyncs = entry.resyncs;
  if (!entry.goes_on() || resyncs.state() != Resyncs::State::kOpen || step < resyncs.first_step() ||
      can_give_state(entry, resyncs.source(), resyncs.target()))
    return;
  const Rank target = resyncs.target();
  Rank other;
  if (choose_source(entry, target, now, other))
    open_transfer(entry, other, now);
  else
    evict(entry, target, describe_no_source(entry, target), now);
  advance_resyncs(entry, now);
}

// The window moves on; both ends are told.
void Jobs::end_transfer(JobEntry& entry) {
  const Rank source = entry.resyncs.source();
  const Rank target = entry.resyncs.target();
  entry.resyncs.end();
  CHECK(!entry.resyncs.active() && entry.job != nullptr);
  entry.shared(target).hold_from.store(kNoStep, std::memory_order_release);
  command(ShardCommand::Kind::kHoldReleased, entry, target);
  for (const Rank rank : {source, target})
    if (entry.member(rank).is(MemberPhase::kJoined)) queue(entry, rank, wire::PacketType::kStatus);
}

// The rank is gone. Where it was the source, advance_resyncs() finds another.
void Jobs::forget_resync(JobEntry& entry, Rank rank) {
  if (entry.resyncs.forget(rank)) end_transfer(entry);
  CHECK(!entry.resyncs.is_target(rank) && !entry.resyncs.in_line(rank));
}

// A member that has the job's state: not one that waits for it itself.
bool Jobs::can_give_state(const JobEntry& entry, Rank rank, Rank target) const noexcept {
  const MemberEntry& member = entry.member(rank);
  return rank != target && member.is(MemberPhase::kJoined) && !member.needs_state &&
         !entry.resyncs.in_line(rank);
}

// The member that has come furthest, since its state is the newest; silent ones only if all are.
bool Jobs::choose_source(const JobEntry& entry, Rank target, TimeNs now, Rank& source) const {
  bool found = false;
  bool best_speaks = false;
  Step best_step = 0;
  for (std::uint16_t index = 0; index < entry.world_size(); ++index) {
    const Rank rank{index};
    if (!can_give_state(entry, rank, target)) continue;
    const bool speaks = now - last_heard(entry, rank) <= kPingAfterSilence;
    const Step step = entry.job->members[index].reached.load(std::memory_order_relaxed);
    if (found && (best_speaks > speaks || (best_speaks == speaks && best_step >= step))) continue;
    found = true;
    source = rank;
    best_speaks = speaks;
    best_step = step;
  }
  CHECK(!found || can_give_state(entry, source, target));
  return found;
}

std::string Jobs::describe_hold(const JobEntry& entry, TimeNs now) const {
  const Rank target = entry.resyncs.target();
  return text(
      "job '%s': rank %u at %s has waited %.1f s for the state of rank %u, and the window "
      "waits for at most %.1f s (limits.resync_hold_s): raise it, or join again when the "
      "network is less busy",
      entry.name.c_str(), unsigned{target.value}, entry.member(target).address.c_str(),
      seconds(entry.resyncs.held_ns(now)), unsigned{entry.resyncs.source().value},
      seconds(options_.resync_hold_ns));
}

// Names everybody who is left and the source that was lost, so that its log is looked at.
std::string Jobs::describe_no_source(const JobEntry& entry, Rank target) const {
  const Resyncs& resyncs = entry.resyncs;
  std::array<std::uint64_t, kMaskWords> others{};
  std::size_t count = 0;
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank) {
    if (Rank{rank} == target || !entry.members[rank].live()) continue;
    set_bit(others.data(), Rank{rank});
    ++count;
  }
  std::string why =
      text("job '%s': rank %u at %s needs the state of another rank", entry.name.c_str(),
           unsigned{target.value}, entry.member(target).address.c_str());
  if (resyncs.is_target(target) && !entry.member(resyncs.source()).live())
    why += text("; rank %u, which was to give it, is gone", unsigned{resyncs.source().value});
  if (count == 0)
    why += "; nobody else is in the job";
  else
    why += "; " + list_ranks(others.data(), others.size()) + (count == 1 ? " needs" : " need") +
           " it as well";
  return why + ": start the job again from a checkpoint";
}

}  // namespace sluice::agg

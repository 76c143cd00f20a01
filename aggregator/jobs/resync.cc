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
  const Standing standing = identify(request.packet);
  const Rank rank = request.rank();
  if (standing.replaced)
    return {.verdict = Verdict::kStaleCookie,
            .reply_bytes = write_replaced(*standing.entry, rank, request)};
  if (standing.member == nullptr) return {.verdict = standing.why};

  Entry& entry = *standing.entry;
  Member& member = *standing.member;
  hear(entry, request);
  ControlResult result{.verdict = Verdict::kResync, .bind = true, .job = entry.id, .rank = rank};
  if (!entry.goes_on()) {
    result.verdict = Verdict::kNotAllowed;  // nobody falls behind there
  } else if (member.phase == Member::Phase::kJoined) {
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

// The same number again is the same request; a new one means that the process gave the old one up.
void Jobs::ask_for_state(Entry& entry, Rank rank, std::uint32_t number, TimeNs now) {
  Resyncs& resyncs = entry.resyncs;
  if (number <= entry.members[rank.value].resyncs_done) return;  // a late copy
  if (resyncs.active && resyncs.current.target == rank) {
    if (resyncs.current.number == number) return;
    resyncs.current.number = number;  // the window has waited since the first request all the same
    open_transfer(entry, resyncs.source, now);
    return;
  }
  const auto waiting = std::find_if(resyncs.line.begin(), resyncs.line.end(),
                                    [&](const Resyncs::Wish& wish) { return wish.target == rank; });
  if (waiting == resyncs.line.end())
    resyncs.line.push_back({.target = rank, .number = number});
  else
    waiting->number = number;
}

void Jobs::finish_resync(Entry& entry, Rank rank, std::uint32_t number) {
  const Resyncs& resyncs = entry.resyncs;
  Member& member = entry.members[rank.value];
  member.resyncs_done = std::max(member.resyncs_done, number);
  member.needs_state = false;  // also when the appliance gave the transfer up meanwhile
  if (!resyncs.active || resyncs.current.target != rank || resyncs.current.number != number) return;
  end_transfer(entry);
}

// All that time or the last packet changed. Called again until nothing moves: an expelled target
// makes way for the next.
void Jobs::advance_resyncs(Entry& entry, TimeNs now) {
  Resyncs& resyncs = entry.resyncs;
  if (resyncs.active && entry.goes_on()) check_transfer(entry, now);
  while (!resyncs.active && !resyncs.line.empty() && entry.goes_on()) {
    const Rank target = resyncs.line.front().target;
    Rank source;
    if (choose_source(entry, target, now, source))
      start_transfer(entry, source, now);
    else
      expel(entry, target, describe_no_source(entry, target), now);
  }
}

void Jobs::check_transfer(Entry& entry, TimeNs now) {
  Resyncs& resyncs = entry.resyncs;
  const Rank target = resyncs.current.target;
  const DurationNs held_ns = now - resyncs.started_ns;
  Rank other;
  const bool others = choose_source(entry, target, now, other);
  if (held_ns >= options_.resync_hold_ns) {
    if (!others) return expel(entry, target, describe_no_source(entry, target), now);
    expel(entry, target,
          text("job '%s': rank %u at %s has waited %.1f s for the state of rank %u, and the window "
               "waits for at most %.1f s (limits.resync_hold_s): raise it, or join again when the "
               "network is less busy",
               entry.name.c_str(), unsigned{target.value},
               entry.members[target.value].address.c_str(), seconds(held_ns),
               unsigned{resyncs.source.value}, seconds(options_.resync_hold_ns)),
          now);
    return;
  }
  if (resyncs.first_step == 0 && now - resyncs.opened_ns >= kShardAnswer) {
    resyncs.openings_due = 0;
    open_transfer(entry, resyncs.source, now);
  }
  const bool usable = can_give_state(entry, resyncs.source, target);
  if (usable && now - last_heard(entry, resyncs.source) <= kTakeoverSilence) return;
  if (others && other != resyncs.source) return open_transfer(entry, other, now);
  // Without another source the target may have all that it needs already. Shard 0 sees when it
  // waits for more; its events may be lost, so it is asked again.
  if (usable || now < resyncs.next_lost_ns) return;
  resyncs.next_lost_ns = now + kShardAnswer;
  commands_.push_back(
      {.kind = ShardCommand::Kind::kSourceLost, .job = entry.job.get(), .rank = resyncs.source});
}

void Jobs::start_transfer(Entry& entry, Rank source, TimeNs now) {
  Resyncs& resyncs = entry.resyncs;
  resyncs.current = resyncs.line.front();
  resyncs.line.pop_front();
  resyncs.active = true;
  resyncs.started_ns = now;

  agg::Member& shared = entry.job->members[resyncs.current.target.value];
  const auto gradients = index_of(StreamId::kGradients);
  const Step open = entry.job->windows[gradients].open_step.load(std::memory_order_acquire);
  const Step joined = shared.joined_from[gradients].load(std::memory_order_relaxed);
  shared.hold_from.store(std::max(joined, std::min(open, kLastStep - kHoldAhead) + kHoldAhead),
                         std::memory_order_release);
  open_transfer(entry, source, now);
}

// A process that returned and never asks for state would be waited for wherever k needs it.
void Jobs::check_idle_return(Entry& entry, Rank rank, TimeNs now) {
  const Member& member = entry.members[rank.value];
  const Resyncs& resyncs = entry.resyncs;
  const DurationNs idle_ns = now - member.admitted_ns;
  if (!member.needs_state || idle_ns <= options_.resync_hold_ns ||
      (resyncs.active && resyncs.current.target == rank) || resyncs.waits(rank))
    return;
  expel(entry, rank,
        text("job '%s': rank %u at %s joined the running job %.1f s ago and has not asked for the "
             "state of another rank, for which the job waits at most %.1f s (limits.resync_hold_s)",
             entry.name.c_str(), unsigned{rank.value}, member.address.c_str(), seconds(idle_ns),
             seconds(options_.resync_hold_ns)),
        now);
}

// From now on statuses name no transfer until shard 0 has opened its first step.
void Jobs::open_transfer(Entry& entry, Rank source, TimeNs now) {
  Resyncs& resyncs = entry.resyncs;
  resyncs.source = source;
  resyncs.first_step = 0;
  resyncs.opened_ns = now;
  resyncs.next_lost_ns = 0;
  ++resyncs.openings_due;
  entry.job->transfer.source_and_target.store(
      std::uint32_t{source.value} << 16 | resyncs.current.target.value, std::memory_order_release);
  commands_.push_back({.kind = ShardCommand::Kind::kOpenTransfer,
                       .job = entry.job.get(),
                       .rank = resyncs.current.target});
}

void Jobs::transfer_opened(Entry& entry, Step step) {
  Resyncs& resyncs = entry.resyncs;
  if (resyncs.openings_due != 0) --resyncs.openings_due;
  if (!resyncs.active || resyncs.openings_due != 0) return;  // of a transfer that is over
  resyncs.first_step = step;
  queue(entry, resyncs.source, wire::PacketType::kStatus);
  queue(entry, resyncs.current.target, wire::PacketType::kStatus);
}

// The target waits for what will not come, unless somebody else has it.
void Jobs::transfer_lost(Entry& entry, Step step, TimeNs now) {
  const Resyncs& resyncs = entry.resyncs;
  if (!entry.goes_on() || !resyncs.active || resyncs.first_step == 0 || step < resyncs.first_step ||
      can_give_state(entry, resyncs.source, resyncs.current.target))
    return;
  const Rank target = resyncs.current.target;
  Rank other;
  if (choose_source(entry, target, now, other))
    open_transfer(entry, other, now);
  else
    expel(entry, target, describe_no_source(entry, target), now);
  advance_resyncs(entry, now);
}

// The window moves on; both ends are told.
void Jobs::end_transfer(Entry& entry) {
  Resyncs& resyncs = entry.resyncs;
  const Rank target = resyncs.current.target;
  resyncs.active = false;
  resyncs.first_step = 0;
  entry.job->members[target.value].hold_from.store(kNoStep, std::memory_order_release);
  commands_.push_back(
      {.kind = ShardCommand::Kind::kHoldReleased, .job = entry.job.get(), .rank = target});
  for (const Rank rank : {resyncs.source, target})
    if (entry.members[rank.value].phase == Member::Phase::kJoined)
      queue(entry, rank, wire::PacketType::kStatus);
}

// The rank is gone. Where it was the source, advance_resyncs() finds another.
void Jobs::forget_resync(Entry& entry, Rank rank) {
  Resyncs& resyncs = entry.resyncs;
  std::erase_if(resyncs.line, [&](const Resyncs::Wish& wish) { return wish.target == rank; });
  if (resyncs.active && resyncs.current.target == rank) end_transfer(entry);
}

// A member that has the job's state: not one that waits for it itself.
bool Jobs::can_give_state(const Entry& entry, Rank rank, Rank target) const noexcept {
  const Member& member = entry.members[rank.value];
  return rank != target && member.phase == Member::Phase::kJoined && !member.needs_state &&
         !entry.resyncs.waits(rank);
}

// The member that has come furthest, since its state is the newest; silent ones only if all are.
bool Jobs::choose_source(const Entry& entry, Rank target, TimeNs now, Rank& source) const {
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
  return found;
}

// Names everybody who is left and the source that was lost, so that its log is looked at.
std::string Jobs::describe_no_source(const Entry& entry, Rank target) const {
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
           unsigned{target.value}, entry.members[target.value].address.c_str());
  if (resyncs.active && resyncs.current.target == target &&
      !entry.members[resyncs.source.value].live())
    why += text("; rank %u, which was to give it, is gone", unsigned{resyncs.source.value});
  if (count == 0)
    why += "; nobody else is in the job";
  else
    why += "; " + list_ranks(others.data(), others.size()) + (count == 1 ? " needs" : " need") +
           " it as well";
  return why + ": start the job again from a checkpoint";
}

}  // namespace sluice::agg

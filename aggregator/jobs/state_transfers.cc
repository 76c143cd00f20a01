#include "aggregator/jobs/state_transfers.h"

#include <algorithm>
#include <array>

#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

constexpr Step kHoldAhead = 3;  // no record that far ahead of the open step exists yet

}  // namespace

void StateTransfers::ask(Rank rank, std::uint32_t number, TimeNs now) {
  CHECK(entry_.goes_on() && entry_.member(rank).is(MemberPhase::kJoined));
  if (number <= entry_.member(rank).resyncs_done) return;  // a late copy
  if (entry_.resyncs.ask(rank, number) == Resyncs::Asked::kRestarted)
    open(entry_.resyncs.source(), now);
}

void StateTransfers::finish(Rank rank, std::uint32_t number) {
  MemberEntry& member = entry_.member(rank);
  CHECK(member.is(MemberPhase::kJoined));
  member.resyncs_done = std::max(member.resyncs_done, number);
  member.needs_state = false;  // also when the appliance gave the transfer up meanwhile
  if (entry_.resyncs.is_target(rank) && entry_.resyncs.number() == number) end();
}

std::optional<StateTransfers::Eviction> StateTransfers::advance(TimeNs now) {
  CHECK(entry_.goes_on());
  const Resyncs& resyncs = entry_.resyncs;
  if (resyncs.active()) return check(now);
  if (!resyncs.has_line()) return std::nullopt;
  const Rank target = resyncs.next();
  const std::optional<Rank> source = choose_source(target, now);
  if (!source) return give_up(target);
  start(*source, now);
  return std::nullopt;
}

std::optional<StateTransfers::Eviction> StateTransfers::check(TimeNs now) {
  CHECK(entry_.goes_on() && entry_.job != nullptr);
  Resyncs& resyncs = entry_.resyncs;
  const Rank target = resyncs.target();
  const Rank source = resyncs.source();
  CHECK(target != source && entry_.member(target).live());
  const std::optional<Rank> other = choose_source(target, now);
  if (resyncs.held_ns(now) >= context_.options->resync_hold_ns) {
    if (other) return Eviction{.rank = target, .why = describe_hold(now)};
    if (auto eviction = give_up(target)) return eviction;
  }
  if (resyncs.is_overdue(now)) open(source, now);
  const bool usable = entry_.can_give_state(source, target);
  const DurationNs silent_ns = now - entry_.last_heard_ns(source, context_.clock);
  if (usable && silent_ns <= kTakeoverSilence) return std::nullopt;
  if (other && *other != source) open(*other, now);
  // Without another source the target may have all that it needs already. Shard 0 sees when it
  // waits for more; its events may be lost, so it is asked again.
  else if (!usable && resyncs.ask_for_loss(now))
    context_.outbox.command(entry_, ShardCommand::Kind::kSourceLost, source);
  return std::nullopt;
}

void StateTransfers::start(Rank source, TimeNs now) {
  CHECK(source != entry_.resyncs.next() && entry_.job != nullptr);
  entry_.resyncs.start(now);
  Member& shared = entry_.shared(entry_.resyncs.target());
  const auto gradients = index_of(StreamId::kGradients);
  const Step open_step = entry_.job->windows[gradients].open_step.load(std::memory_order_acquire);
  const Step joined = shared.joined_from[gradients].load(std::memory_order_relaxed);
  CHECK(joined != kNoStep);  // shard 0 has let it in
  shared.hold_from.store(std::max(joined, std::min(open_step, kLastStep - kHoldAhead) + kHoldAhead),
                         std::memory_order_release);
  open(source, now);
}

std::optional<StateTransfers::Eviction> StateTransfers::check_idle_return(Rank rank,
                                                                          TimeNs now) const {
  const MemberEntry& member = entry_.member(rank);
  const DurationNs hold_ns = context_.options->resync_hold_ns;
  CHECK(member.is(MemberPhase::kJoined));
  const DurationNs idle_ns = now - member.admitted_ns;
  if (!member.needs_state || idle_ns <= hold_ns || entry_.resyncs.is_target(rank) ||
      entry_.resyncs.in_line(rank))
    return std::nullopt;
  return Eviction{
      .rank = rank,
      .why = text(
          "job '%s': rank %u at %s joined the running job %.1f s ago and has not asked for the "
          "state of another rank, for which the job waits at most %.1f s (limits.resync_hold_s)",
          entry_.name.c_str(), unsigned{rank.value}, member.address.c_str(), seconds(idle_ns),
          seconds(hold_ns))};
}

// From now on statuses name no transfer until shard 0 has opened its first step.
void StateTransfers::open(Rank source, TimeNs now) {
  Resyncs& resyncs = entry_.resyncs;
  CHECK(entry_.can_give_state(source, resyncs.target()) || resyncs.source() == source);
  resyncs.open(source, now);
  const Rank target = resyncs.target();
  entry_.job->transfer.source_and_target.store(std::uint32_t{source.value} << 16 | target.value,
                                               std::memory_order_release);
  context_.outbox.command(entry_, ShardCommand::Kind::kOpenTransfer, target);
}

void StateTransfers::opened(Step first_step) {
  Resyncs& resyncs = entry_.resyncs;
  if (!resyncs.opened(first_step)) return;  // of a transfer that is over
  context_.outbox.send(entry_, resyncs.source(), wire::PacketType::kStatus);
  context_.outbox.send(entry_, resyncs.target(), wire::PacketType::kStatus);
}

bool StateTransfers::has_lost_source(Step step) const noexcept {
  const Resyncs& resyncs = entry_.resyncs;
  return entry_.goes_on() && resyncs.state() == Resyncs::State::kOpen &&
         step >= resyncs.first_step() && !entry_.can_give_state(resyncs.source(), resyncs.target());
}

std::optional<StateTransfers::Eviction> StateTransfers::replace_source(TimeNs now) {
  const Rank target = entry_.resyncs.target();
  const std::optional<Rank> other = choose_source(target, now);
  if (!other) return give_up(target);
  open(*other, now);
  return std::nullopt;
}

// Nobody here has the state. Members that have moved have it, and the rank will follow them.
std::optional<StateTransfers::Eviction> StateTransfers::give_up(Rank target) const {
  if (entry_.has_moved()) return std::nullopt;
  return Eviction{.rank = target, .why = describe_no_source(target)};
}

// The window moves on; both ends are told.
void StateTransfers::end() {
  const Rank source = entry_.resyncs.source();
  const Rank target = entry_.resyncs.target();
  entry_.resyncs.end();
  CHECK(!entry_.resyncs.active() && entry_.job != nullptr);
  entry_.shared(target).hold_from.store(kNoStep, std::memory_order_release);
  context_.outbox.command(entry_, ShardCommand::Kind::kHoldReleased, target);
  for (const Rank rank : {source, target})
    if (entry_.member(rank).is(MemberPhase::kJoined))
      context_.outbox.send(entry_, rank, wire::PacketType::kStatus);
}

void StateTransfers::forget(Rank rank) {
  if (entry_.resyncs.forget(rank)) end();
  CHECK(!entry_.resyncs.is_target(rank) && !entry_.resyncs.in_line(rank));
}

// The member that has come furthest, since its state is the newest. A silent member only if all
// are silent.
std::optional<Rank> StateTransfers::choose_source(Rank target, TimeNs now) const {
  std::optional<Rank> source;
  bool best_speaks = false;
  Step best_step = 0;
  for (std::uint16_t index = 0; index < entry_.world_size(); ++index) {
    const Rank rank{index};
    if (!entry_.can_give_state(rank, target)) continue;
    const bool speaks = now - entry_.last_heard_ns(rank, context_.clock) <= kPingAfterSilence;
    const Step step = entry_.job->members[index].reached.load(std::memory_order_relaxed);
    if (source && (best_speaks > speaks || (best_speaks == speaks && best_step >= step))) continue;
    source = rank;
    best_speaks = speaks;
    best_step = step;
  }
  CHECK(!source || entry_.can_give_state(*source, target));
  return source;
}

std::string StateTransfers::describe_hold(TimeNs now) const {
  const Rank target = entry_.resyncs.target();
  return text(
      "job '%s': rank %u at %s has waited %.1f s for the state of rank %u, and the window "
      "waits for at most %.1f s (limits.resync_hold_s): raise it, or join again when the "
      "network is less busy",
      entry_.name.c_str(), unsigned{target.value}, entry_.member(target).address.c_str(),
      seconds(entry_.resyncs.held_ns(now)), unsigned{entry_.resyncs.source().value},
      seconds(context_.options->resync_hold_ns));
}

// Names every rank that is left and the source that was lost, so that its log is looked at.
std::string StateTransfers::describe_no_source(Rank target) const {
  const Resyncs& resyncs = entry_.resyncs;
  std::array<std::uint64_t, kMaskWords> others{};
  std::size_t count = 0;
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank) {
    if (Rank{rank} == target || !entry_.members[rank].live()) continue;
    set_bit(others.data(), Rank{rank});
    ++count;
  }
  std::string why =
      text("job '%s': rank %u at %s needs the state of another rank", entry_.name.c_str(),
           unsigned{target.value}, entry_.member(target).address.c_str());
  if (resyncs.is_target(target) && !entry_.member(resyncs.source()).live())
    why += text("; rank %u, which was to give it, is gone", unsigned{resyncs.source().value});
  if (count == 0)
    why += "; nobody else is in the job";
  else
    why += "; " + list_ranks(others.data(), others.size()) + (count == 1 ? " needs" : " need") +
           " it as well";
  return why + ": start the job again from a checkpoint";
}

}  // namespace sluice::agg

// The application's side of a relay: leaving, collectives, and what is asked of it.
#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"
#include "client/core/calls/error_prefix.h"

namespace sluice::client {

void Relay::leave(wire::LeaveReason reason, TimeNs now) {
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  const bool idle = is_idle();
  state_ = SessionState::kLeaving;
  for (Leg& leg : legs_.all) leg.session.leave(idle ? reason : wire::LeaveReason::kAbnormal, now);
}

// ---- collectives ----

// Level by level, each by the servers of its switches. A barrier: who has passed one level has
// waited for all that differ in its digits so far. A broadcast: whose digits above a level are the
// root's has a part in it, and before the level those have the bytes who differ below it alone.

Status Relay::begin_collective(std::optional<Rank> root, void* buffer, std::size_t bytes,
                               TimeNs now) {
  if (state_ != SessionState::kRunning)
    return {StatusCode::kBusy, error_prefix(options_) + "the job does not run yet"};
  collective_ = {.root = root, .buffer = buffer, .bytes = bytes};
  advance_collective(now);
  return {};
}

std::string Relay::describe_collective() const {
  if (!collective_) return {};
  if (!collective_->root) return "a barrier";
  return "a broadcast of " + std::to_string(collective_->bytes) + " bytes from rank " +
         std::to_string(collective_->root->value);
}

void Relay::handle_collective(const Leg& leg, const Event& event, TimeNs now) {
  const std::uint32_t level = leg.address.level;
  if (leg.is_standby() != detours_.is_away(level) || !is_in_collective(level))
    return;  // of a lost one
  collective_->running = false;
  ++collectives_ended_[level];
  event.status.ok() ? advance_collective(now) : fail(event.status, now);
}

void Relay::advance_collective(TimeNs now) {
  CHECK(collective_.has_value());
  Collective& call = *collective_;
  while (call.next_level < bcube_.levels()) {
    const std::uint32_t level = call.next_level;
    bool takes_part = true;
    for (std::uint32_t above = level + 1; call.root && above < bcube_.levels(); ++above)
      takes_part &=
          bcube_.digit(options_.rank.value, above) == bcube_.digit(call.root->value, above);
    if (takes_part && must_vote_first(level, now)) return;  // goes on with the sum
    ++call.next_level;
    if (!takes_part) continue;
    call.running = true;
    const std::uint32_t leg =
        detours_.is_away(level) ? detours_.failovers[level].standbys().states_leg : level;
    Session& session = legs_.all[leg].session;
    const Status status =
        call.root ? session.broadcast(
                        Rank{static_cast<std::uint16_t>(bcube_.digit(call.root->value, level))},
                        call.buffer, call.bytes, now)
                  : session.barrier(now);
    if (!status.ok() && !detours_.will_move(legs_.all[level])) return fail(status, now);
    return;  // its event goes on
  }
  if (detours_.is_voting()) return;  // who leaves now must leave nothing undone
  collective_.reset();
  events_.push({.kind = Event::Kind::kCollectiveDone});
}

// ---- questions ----

// Of a synchronous job all are in all.
void Relay::note_step(Step step, std::uint64_t weight) noexcept {
  StepReport& report = reports_[step % kReportedSteps];
  const auto servers = static_cast<std::uint16_t>(bcube_.servers());
  report = {.step = step,
            .k = servers,
            .weight = weight,
            .first_members = servers,
            .first_may_count = servers,
            .mask_words = static_cast<std::uint16_t>((servers + 63) / 64)};
  for (std::uint16_t rank = 0; rank < servers; ++rank)
    report.in_every[rank / 64] |= std::uint64_t{1} << (rank % 64);
  report.in_any = report.in_every;
}

const StepReport* Relay::report(Step step) const noexcept {
  const StepReport& report = reports_[step % kReportedSteps];
  return step != 0 && report.step == step ? &report : nullptr;
}

Counters Relay::counters() const {
  Counters sum;
  for (const Leg& leg : legs_.all) {
    sum += leg.session.counters();
    sum.detoured_lanes += detours_.is_detoured(leg);
  }
  for (const Failover& failover : detours_.failovers) sum.detours += failover.moves();
  tell_facts(sum);
  return sum;
}

std::optional<PartCounters> Relay::part_counters(std::uint32_t index) const {
  const std::uint32_t levels = bcube_.levels();
  if (index >= levels * levels) return {};
  PartCounters part{.thread = index / levels, .level = index % levels};
  for (const Leg& leg : legs_.all)
    if (leg.address.role < Role::kRendezvous && leg.address.thread == part.thread &&
        leg.address.level == part.level) {
      part.counters += leg.session.counters();
      part.counters.detoured_lanes += detours_.is_detoured(leg);
    }
  if (!detours_.failovers.empty()) part.counters.detours = detours_.failovers[part.level].moves();
  tell_facts(part.counters);
  return part;
}

void Relay::tell_facts(Counters& counters) const {
  counters.steps_done = tensors_.current() - 1;
  counters.chunk_bytes = layout_.chunk_bytes();
  counters.shards = shards_;
}

// Of legs that stand about as long as any the one that comes first in a slice's way, which is
// nearest to the cause: later ones wait for what this one shall give. Nothing goes
// on before the servers' states are known.
const Leg& Relay::most_stalled(TimeNs now) const noexcept {
  const auto stalled_ns = [&](const Leg& leg) {
    return detours_.is_lost(leg) ? 0 : leg.session.stalled_ns(now);  // nobody waits for those
  };
  for (const Failover& failover : detours_.failovers) {
    if (failover.state() != Failover::State::kExchanging) continue;
    const Leg& states = legs_.all[failover.standbys().states_leg];
    if (stalled_ns(states) != 0) return states;
  }
  const auto of_place = [](const LegAddress& address) {
    const auto stage = static_cast<int>(address.stage);
    return std::pair(address.role, address.role == Role::kDown ? -stage : stage);
  };
  // Where legs have moved, that of the first row under way; states and votes wait for no slice.
  const auto in_way = [&](const Leg& leg) {
    if (!leg.is_standby()) return of_place(leg.address);
    if (leg.address.role != Role::kStandby) return std::pair(Role::kUp, 0);
    auto first = of_place(leg.address);
    for (const Failover::Row& row : detours_.failovers[leg.address.level].rows())
      if (row.is_under_way() && &legs_.all[row.standby] == &leg)
        first = std::min(first, of_place(legs_.all[row.leg].address));
    return first;
  };
  const auto has_just_moved = [&](const Leg& leg) {  // its slices have stood elsewhere before
    return leg.is_standby() && stalled_ns(leg) != 0 &&
           detours_.failovers[leg.address.level].handover().first_step() + 1 >= tensors_.current();
  };
  DurationNs most_ns = 0;
  for (const Leg& leg : legs_.all) most_ns = std::max(most_ns, stalled_ns(leg));
  const Leg* found = nullptr;
  for (const Leg& leg : legs_.all)
    if (most_ns != 0 && (2 * stalled_ns(leg) >= most_ns || has_just_moved(leg)) &&
        (found == nullptr || in_way(leg) < in_way(*found)))
      found = &leg;
  return found == nullptr ? legs_.all.front() : *found;
}

Stall Relay::stall(TimeNs now) const {
  if (state_ == SessionState::kJoining) {
    const auto late = std::ranges::find_if(
        legs_.all, [this](const Leg& leg) { return !leg.runs() && !detours_.is_lost(leg); });
    return late == legs_.all.end() ? Stall() : late->session.stall(now);
  }
  const Leg& leg = most_stalled(now);
  Stall found = leg.session.stall(now);
  // Its ranks are places at a switch.
  const auto places = std::exchange(found.missing, {});
  const std::uint32_t level = leg.address.level;
  const std::uint32_t home = bcube_.switch_of(options_.rank.value, level);
  for (std::uint32_t place = 0; place < bcube_.switch_ports(); ++place)
    if (places[place / 64] >> (place % 64) & 1) {
      const std::uint32_t server = bcube_.server_at(level, home, place);
      found.missing[server / 64] |= std::uint64_t{1} << (server % 64);
    }
  return found;
}

std::string Relay::describe_plan() const {
  std::string text = bcube_.name();
  text += mode_ == BcubeMode::kPlain ? ", plain" : ", aggregated";
  for (std::uint32_t level = 0; level < detours_.failovers.size(); ++level)
    if (const std::string moved = detours_.describe(level, bcube_, options_.rank.value);
        !moved.empty())
      text += "\n" + moved;
  for (const Leg& leg : legs_.all) {
    const Counters counters = leg.session.counters();
    text += "\n" + leg.session.place() + "slices " + std::to_string(leg.slices.size()) + ", sent " +
            std::to_string(counters.packets_sent) + " packets, " +
            std::to_string(counters.bytes_sent) + " bytes, received " +
            std::to_string(counters.packets_received) + ", " +
            std::to_string(counters.bytes_received) + ", again " +
            std::to_string(counters.retransmissions);
  }
  return text;
}

}  // namespace sluice::client

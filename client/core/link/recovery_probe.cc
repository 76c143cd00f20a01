// Recovery's probes: which block to ask about next, and the hints and timers that make one due.
#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
#include "client/core/link/recovery.h"

namespace sluice::client {
namespace {

constexpr TimeNs kTimerGrid = TimeNs{1} << 18;  // deadlines in one grid cell are scanned together
constexpr int kMaxBackoff = 8;                  // doublings of the timeout
constexpr int kMaxBackoffHeard = 1;             // while the flow's other packets come through
constexpr std::uint32_t kMinProbes = 16;        // in flight a flow, however small the window
// Probes in flight while looking for lost results: so many, or one for each eight packets of the
// window.
constexpr std::uint32_t kSweepProbes = 4;
constexpr std::uint32_t kWindowPerSweepProbe = 8;
constexpr std::uint32_t kMinPull = 16;  // results worth a probe of their own

// Whether so few buffers are free that a probe for `wanted` results should wait for more.
bool too_few_pulls(const Flow& flow, std::uint64_t wanted) noexcept {
  const std::uint32_t half_credit = std::max<std::uint32_t>(1, flow.credit_packets() / 2);
  return flow.free_pulls() < std::min({kMinPull, half_credit, count_of(wanted)});
}

// The first `limit` of `chunks`.
std::uint64_t first_of(std::uint64_t chunks, std::uint32_t limit) noexcept {
  std::uint64_t picked = 0;
  for (; limit != 0 && chunks != 0; --limit, chunks &= chunks - 1) picked |= chunks & -chunks;
  return picked;
}

}  // namespace

// What exists for certain, then (when results are `withheld`) what may exist. A result that was
// pushed may stand in a queue in front of this worker: pulling it as well makes the queue longer.
// The same holds for one that was pulled before and is not overdue. What is not wanted is asked
// about, but its result would only take a wanted one's place.
std::uint64_t Recovery::pick(const Block& block, bool withheld, std::uint32_t limit) noexcept {
  const std::uint64_t lacking = block.lacking() & ~(block.pulled | block.unwanted);
  const std::uint64_t known = first_of(lacking & block.complete, limit);
  if (!withheld) return known;
  const std::uint64_t maybe = lacking & (block.sent | block.counted) & ~known;
  DCHECK(count_of(known) <= limit);
  return known | first_of(maybe, limit - count_of(known));
}

bool Recovery::plan_probe(std::uint16_t shard, Flow& flow, ProbePlan& plan) noexcept {
  FlowState& state = flow_states_[shard];
  if (state.asked_count >= std::max(kMinProbes, flow.window())) return false;
  if (!pop_due(state, flow, plan) && !next_of_sweep(state, flow, plan)) return false;
  DCHECK((plan.want & ~blocks_[plan.block].lacking()) == 0);
  return true;
}

bool Recovery::pop_due(FlowState& state, const Flow& flow, ProbePlan& plan) noexcept {
  while (state.due_head != kNone) {
    const std::uint32_t index = state.due_head;
    Block& block = blocks_[index];
    DCHECK(block.listed);
    const std::uint64_t unknown = block.unknown();
    const bool only_pulls = block.sent == 0 && (block.lacking() & block.complete);
    if (!block.asked() && only_pulls && too_few_pulls(flow, unknown))
      return false;  // pulls under way end with a packet or a deadline
    state.due_head = block.next_due;
    if (state.due_head == kNone) state.due_tail = kNone;
    block.listed = false;
    if (block.phase == Phase::kDue) block.become(Phase::kOpen);
    if (unknown == 0 || block.asked()) continue;
    DCHECK(block.phase == Phase::kOpen);
    plan = {.block = index, .want = pick(block, false, flow.free_pulls())};
    return true;
  }
  return false;
}

bool Recovery::next_of_sweep(FlowState& state, Flow& flow, ProbePlan& plan) noexcept {
  while (state.sweep_cursor != kNone) {
    const std::uint32_t index = state.sweep_cursor;
    Block& block = blocks_[index];
    DCHECK(block.open());
    const bool skip = block.phase != Phase::kOpen;
    if (!skip && state.asked_count >= std::max(kSweepProbes, flow.window() / kWindowPerSweepProbe))
      return false;
    if (!skip && state.withheld && too_few_pulls(flow, block.unknown())) return false;
    state.sweep_cursor = block.next;
    block.again = block.asked();  // the answer may not know yet of what is missing
    if (skip) continue;
    plan = {.block = index, .want = pick(block, state.withheld, flow.free_pulls())};
    return true;
  }
  if (state.missing == Missing::kNothing) state.withheld = false;
  return false;
}

void Recovery::probe_sent(std::uint16_t shard, const ProbePlan& plan, TimeNs now,
                          Flow& flow) noexcept {
  FlowState& state = flow_states_[shard];
  Block& block = blocks_[plan.block];
  // What an earlier probe pulled is overdue when it was, or questions in between put it off for
  // ever.
  const TimeNs pulls_due_ns = block.pulled != 0 ? block.deadline_ns : kNever;
  DCHECK((block.pulled & plan.want) == 0);
  block.pulled |= plan.want;
  flow.reserve_pulls(count_of(plan.want));
  flow.pace_pulls(count_of(plan.want));
  block.become(Phase::kAsked);
  block.again = false;
  block.asked_ns = now;
  ++state.asked_count;
  arm(state, block, now, flow);
  block.deadline_ns = std::min(block.deadline_ns, pulls_due_ns);
  check(block);
}

void Recovery::make_due(FlowState& state, std::uint32_t index) noexcept {
  Block& block = blocks_[index];
  if (block.listed) return;
  DCHECK(block.open() && (state.due_head == kNone) == (state.due_tail == kNone));
  block.listed = true;
  if (block.phase == Phase::kOpen) block.become(Phase::kDue);
  block.next_due = kNone;
  if (state.due_tail == kNone)
    state.due_head = index;
  else
    blocks_[state.due_tail].next_due = index;
  state.due_tail = index;
}

void Recovery::end_probe(FlowState& state, Block& block, Flow& flow) noexcept {
  flow.release_pulls(count_of(block.pulled));
  block.pulled = 0;
  block.deadline_ns = kNever;
  if (!block.asked()) return;
  DCHECK(state.asked_count != 0);
  --state.asked_count;
  block.become(block.listed ? Phase::kDue : Phase::kOpen);
}

// ---- hints and timers ----

// Both wait for a moment in which reordered packets may still turn up.
void Recovery::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now,
                    const Flow& flow) noexcept {
  FlowState& state = flow_states_[shard];
  const TimeNs patient_ns = now + std::min(flow.rtt().smoothed_ns() / 4, kIdleProbeInterval);
  if (signals.gap && state.gap_ns == kNever) state.gap_ns = patient_ns;
  state.withheld |= signals.withheld;
  if (!signals.lost && !signals.withheld) return;
  if (state.missing == Missing::kNothing) state.expect_late(flow.newest_gap(), now, flow);
  if (signals.withheld) state.missing = Missing::kCertain;
}

void Recovery::FlowState::expect_late(std::uint32_t first, TimeNs now, const Flow& flow) noexcept {
  missing = Missing::kPerhaps;
  missing_from = first;
  missing_to = flow.highest_in();
  next_sweep_ns = std::max(next_sweep_ns, now + flow.patience_ns());
}

void Recovery::work(std::uint16_t shard, TimeNs now, Flow& flow) noexcept {
  FlowState& state = flow_states_[shard];
  DCHECK((state.open_head == kNone) == (state.open_tail == kNone));
  if (now >= state.deadline_ns) scan_deadlines(state, now, flow);
  if (now >= state.gap_ns) {
    state.gap_ns = kNever;
    if (flow.has_gap()) probe_gap(state, flow);
  }
  if (state.open_head == kNone) {
    state.missing = Missing::kNothing;
    state.withheld = false;
  }
  if (state.missing != Missing::kNothing && state.sweep_cursor == kNone &&
      now >= state.next_sweep_ns) {
    const bool lost =
        state.missing == Missing::kCertain || !flow.all_came(state.missing_from, state.missing_to);
    state.missing = Missing::kNothing;
    if (lost) {
      state.sweep_cursor = state.open_head;
      state.next_sweep_ns = now + std::min(flow.rtt().smoothed_ns(), kIdleProbeInterval);
    } else if (!flow.all_came(state.missing_to + 1, flow.highest_in())) {
      state.expect_late(state.missing_to + 1, now, flow);
    }
  }
  if (state.open_head == kNone) {
    state.idle_ns = kNever;
  } else if (now >= state.idle_ns) {
    if (probe_oldest(state, flow)) state.may_idle_ns = now + kIdleProbeInterval;
    state.idle_ns = end_of_silence(state, now, flow);
  }
}

TimeNs Recovery::next_timeout() const noexcept {
  TimeNs next_ns = kNever;
  for (const FlowState& state : flow_states_) {
    next_ns = std::min(next_ns, state.gap_ns);
    if (state.open_head != kNone) next_ns = std::min({next_ns, state.deadline_ns, state.idle_ns});
    if (state.missing != Missing::kNothing && state.sweep_cursor == kNone)
      next_ns = std::min(next_ns, state.next_sweep_ns);
  }
  return next_ns;
}

// Nothing behind the last packet of a step says that it was lost: silence for longer than a round
// trip may. Most silence is of a worker that computes, though.
TimeNs Recovery::end_of_silence(const FlowState& state, TimeNs now, const Flow& flow) noexcept {
  const DurationNs patience_ns = std::min(flow.rtt().timeout_ns(), kIdleProbeInterval);
  return std::max(state.may_idle_ns, now + patience_ns);
}

void Recovery::arm(FlowState& state, Block& block, TimeNs now, const Flow& flow) noexcept {
  // Of what gets no result nothing else may tell; a result may stand in a queue.
  const bool confirms = block.sent != 0 && (block.sent & ~block.unwanted) == 0;
  const DurationNs first_ns = confirms ? flow.rtt().confirm_ns() : flow.rtt().timeout_ns();
  const DurationNs timeout_ns =
      std::min(first_ns << std::min<int>(block.backoff, kMaxBackoff), RttEstimator::kMaxTimeout);
  block.deadline_ns = (now + timeout_ns + kTimerGrid - 1) & ~(kTimerGrid - 1);
  DCHECK(block.deadline_ns > now);
  state.deadline_ns = std::min(state.deadline_ns, block.deadline_ns);
}

void Recovery::scan_deadlines(FlowState& state, TimeNs now, Flow& flow) noexcept {
  state.deadline_ns = kNever;
  for (std::uint32_t index = state.open_head; index != kNone;) {
    const std::uint32_t next = blocks_[index].next;
    DCHECK(blocks_[index].open());
    if (blocks_[index].deadline_ns <= now) expire(state, index, flow);
    state.deadline_ns = std::min(state.deadline_ns, blocks_[index].deadline_ns);
    index = next;
  }
}

void Recovery::expire(FlowState& state, std::uint32_t index, Flow& flow) noexcept {
  Block& block = blocks_[index];
  // Answers to others came through: this one was lost by chance, and the path is not dead.
  // Results that were pulled and do not come are another matter: they queue up.
  const bool pulls_wait = block.pulled != 0 && !block.asked();
  const bool by_chance = !pulls_wait && flow.heard_ns() > block.asked_ns;
  const int limit = by_chance ? std::max<int>(kMaxBackoffHeard, block.backoff) : kMaxBackoff;
  if (block.asked() || pulls_wait)
    block.backoff = static_cast<std::uint8_t>(std::min(block.backoff + 1, limit));
  end_probe(state, block, flow);
  DCHECK(block.open() && block.pulled == 0);
  count_arrived(state, block, flow);
  if (block.sent != 0 || (block.lacking() & block.complete) || (closed_ && block.lacking() != 0) ||
      block.again)
    make_due(state, index);
}

// Asks about every block with an outstanding chunk at or below the highest number that arrived.
void Recovery::probe_gap(FlowState& state, Flow& flow) noexcept {
  const auto sent_up_to = [&](std::uint32_t index, std::uint32_t number) {
    for (std::uint64_t chunks = blocks_[index].sent; chunks != 0; chunks &= chunks - 1)
      if (ahead(numbers_[first_chunk(index, chunks)], number) <= 0) return true;
    return false;
  };
  bool outstanding = false;
  for (std::uint32_t index = state.open_head; index != kNone; index = blocks_[index].next) {
    const Block& block = blocks_[index];
    DCHECK(block.open());
    if (block.sent == 0 || !sent_up_to(index, flow.highest_arrived())) continue;
    outstanding = true;
    if (!block.asked()) make_due(state, index);
  }
  if (!outstanding) flow.accept_gap();
}

void Recovery::confirm(std::uint32_t index) noexcept {
  const Block& block = blocks_[index];
  if ((block.unwanted & block.queued) != 0 || (block.unwanted & block.sent) == 0) return;
  DCHECK(block.open());
  if (!block.asked()) make_due(flow_state_of(index), index);
}

void Recovery::count_arrived(FlowState& state, Block& block, const Flow& flow) noexcept {
  if (block.sent == 0 || !flow.all_arrived_up_to(block.highest_number)) return;
  block.counted |= block.sent;
  clear_outstanding(state, block, block.sent);
}

// Nothing came for a while: the oldest block that waits for other workers. False: there is none.
// What was sent before the first round trip was measured has a deadline that is far away.
bool Recovery::probe_oldest(FlowState& state, const Flow& flow) noexcept {
  for (std::uint32_t index = state.open_head; index != kNone; index = blocks_[index].next) {
    Block& block = blocks_[index];
    DCHECK(block.open());
    if (block.phase != Phase::kOpen) continue;
    count_arrived(state, block, flow);
    if (!(block.lacking() & block.counted)) continue;
    block.idle = true;
    make_due(state, index);
    return true;
  }
  return false;
}

}  // namespace sluice::client

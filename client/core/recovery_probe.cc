// Recovery's probes: which block to ask about next, and the hints and timers that make one due.
#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
#include "client/core/recovery.h"

namespace sluice::client {
namespace {

constexpr TimeNs kTimerGrid = TimeNs{1} << 18;  // deadlines in one grid cell are scanned together
constexpr int kMaxBackoff = 8;                  // doublings of the timeout
constexpr int kMaxBackoffHeard = 1;             // while the flow's other packets come through
constexpr std::uint32_t kMinProbes = 16;        // in flight a flow, however small the window
constexpr std::uint32_t kSweepProbes = 4;       // in flight while looking for lost results
constexpr std::uint32_t kMinPull = 16;          // results worth a probe of their own

constexpr std::uint32_t count_of(std::uint64_t chunks) noexcept {
  return static_cast<std::uint32_t>(std::popcount(chunks));
}

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
// The same holds for one that was pulled before and is not overdue.
std::uint64_t Recovery::pick(const Block& block, bool withheld, std::uint32_t limit) noexcept {
  const std::uint64_t lacking = block.lacking() & ~block.pulled;
  const std::uint64_t known = first_of(lacking & block.complete, limit);
  if (!withheld) return known;
  const std::uint64_t maybe = lacking & (block.sent | block.counted) & ~known;
  return known | first_of(maybe, limit - count_of(known));
}

bool Recovery::plan_probe(std::uint16_t shard, Flow& flow, ProbePlan& plan) noexcept {
  Lane& lane = lanes_[shard];
  if (lane.probed_count >= std::max(kMinProbes, flow.window())) return false;
  return pop_due(lane, flow, plan) || next_of_sweep(lane, flow, plan);
}

bool Recovery::pop_due(Lane& lane, const Flow& flow, ProbePlan& plan) noexcept {
  while (lane.due_head != kNone) {
    const std::uint32_t index = lane.due_head;
    Block& block = blocks_[index];
    const std::uint64_t unknown = block.lacking() & (block.sent | block.counted | block.complete);
    const bool only_pulls = block.sent == 0 && (block.lacking() & block.complete);
    if (!block.probed && only_pulls && too_few_pulls(flow, unknown))
      return false;  // pulls under way end with a packet or a deadline
    lane.due_head = block.next_due;
    if (lane.due_head == kNone) lane.due_tail = kNone;
    block.due = false;
    if (unknown == 0 || block.probed) continue;
    plan = {.block = index, .want = pick(block, false, flow.free_pulls())};
    return true;
  }
  return false;
}

bool Recovery::next_of_sweep(Lane& lane, Flow& flow, ProbePlan& plan) noexcept {
  while (lane.sweep_cursor != kNone && flow.missing_results() != 0) {
    const std::uint32_t index = lane.sweep_cursor;
    const Block& block = blocks_[index];
    const bool skip = block.probed || block.due;
    if (!skip && lane.probed_count >= kSweepProbes) return false;
    if (!skip && lane.withheld &&
        too_few_pulls(flow, block.lacking() & (block.sent | block.counted | block.complete)))
      return false;
    lane.sweep_cursor = block.next;
    if (lane.sweep_cursor == kNone) flow.forget_missing();
    if (skip) continue;
    plan = {.block = index, .want = pick(block, lane.withheld, flow.free_pulls())};
    return true;
  }
  lane.sweep_cursor = kNone;
  if (!lane.missing) lane.withheld = false;
  return false;
}

void Recovery::probe_sent(std::uint16_t shard, const ProbePlan& plan, TimeNs now,
                          Flow& flow) noexcept {
  Lane& lane = lanes_[shard];
  Block& block = blocks_[plan.block];
  DCHECK(block.open && !block.probed);
  // What an earlier probe pulled is overdue when it was, or questions in between put it off for
  // ever.
  const TimeNs pulls_due_ns = block.pulled != 0 ? block.deadline_ns : kNever;
  block.pulled |= plan.want;
  flow.reserve_pulls(count_of(plan.want));
  block.probed = true;
  block.asked_ns = now;
  ++lane.probed_count;
  arm(lane, block, now, flow);
  block.deadline_ns = std::min(block.deadline_ns, pulls_due_ns);
  check(block);
}

void Recovery::make_due(Lane& lane, std::uint32_t index) noexcept {
  Block& block = blocks_[index];
  if (block.due) return;
  block.due = true;
  block.next_due = kNone;
  if (lane.due_tail == kNone)
    lane.due_head = index;
  else
    blocks_[lane.due_tail].next_due = index;
  lane.due_tail = index;
}

void Recovery::end_probe(Lane& lane, Block& block, Flow& flow) noexcept {
  flow.release_pulls(count_of(block.pulled));
  block.pulled = 0;
  block.deadline_ns = kNever;
  lane.probed_count -= block.probed;
  block.probed = false;
}

// ---- hints and timers ----

// Both wait for a moment in which reordered packets may still turn up.
void Recovery::hint(std::uint16_t shard, const Flow::News& news, TimeNs now,
                    const Flow& flow) noexcept {
  Lane& lane = lanes_[shard];
  const TimeNs patient_ns = now + std::min(flow.rtt().smoothed_ns() / 4, kIdleProbeInterval);
  if (news.gap && !lane.gap) {
    lane.gap = true;
    lane.next_gap_ns = patient_ns;
  }
  lane.withheld |= news.withheld;
  if ((news.lost || news.withheld) && !lane.missing) {
    lane.missing = true;
    lane.next_sweep_ns = std::max(lane.next_sweep_ns, patient_ns);
  }
}

void Recovery::work(std::uint16_t shard, TimeNs now, Flow& flow) noexcept {
  Lane& lane = lanes_[shard];
  if (now >= lane.deadline_ns) scan_deadlines(lane, now, flow);
  if (lane.gap && now >= lane.next_gap_ns) {
    lane.gap = false;
    if (flow.has_gap()) probe_gap(lane, flow);
  }
  if (lane.missing && lane.open_head == kNone) {
    lane.missing = lane.withheld = false;
    flow.forget_missing();
  }
  if (lane.missing && lane.sweep_cursor == kNone && now >= lane.next_sweep_ns) {
    lane.missing = false;
    if (flow.missing_results() != 0) lane.sweep_cursor = lane.open_head;
    lane.next_sweep_ns = now + std::min(flow.rtt().smoothed_ns(), kIdleProbeInterval);
  }
  if (lane.open_head == kNone) {
    lane.idle_ns = kNever;
  } else if (now >= lane.idle_ns) {
    lane.idle_ns = now + kIdleProbeInterval;
    probe_oldest(lane);
  }
}

TimeNs Recovery::next_timeout() const noexcept {
  TimeNs next_ns = kNever;
  for (const Lane& lane : lanes_) {
    if (lane.open_head != kNone) next_ns = std::min({next_ns, lane.deadline_ns, lane.idle_ns});
    if (lane.gap) next_ns = std::min(next_ns, lane.next_gap_ns);
    if (lane.missing && lane.sweep_cursor == kNone) next_ns = std::min(next_ns, lane.next_sweep_ns);
  }
  return next_ns;
}

void Recovery::arm(Lane& lane, Block& block, TimeNs now, const Flow& flow) noexcept {
  const DurationNs timeout_ns =
      std::min(flow.rtt().timeout_ns() << std::min<int>(block.backoff, kMaxBackoff),
               RttEstimator::kMaxTimeout);
  block.deadline_ns = (now + timeout_ns + kTimerGrid - 1) & ~(kTimerGrid - 1);
  lane.deadline_ns = std::min(lane.deadline_ns, block.deadline_ns);
}

void Recovery::scan_deadlines(Lane& lane, TimeNs now, Flow& flow) noexcept {
  lane.deadline_ns = kNever;
  for (std::uint32_t index = lane.open_head; index != kNone;) {
    const std::uint32_t next = blocks_[index].next;
    if (blocks_[index].deadline_ns <= now) expire(lane, index, flow);
    lane.deadline_ns = std::min(lane.deadline_ns, blocks_[index].deadline_ns);
    index = next;
  }
}

void Recovery::expire(Lane& lane, std::uint32_t index, Flow& flow) noexcept {
  Block& block = blocks_[index];
  // Answers to others came through: this one was lost by chance, and the path is not dead.
  // Results that were pulled and do not come are another matter: they queue up.
  const bool pulls_wait = block.pulled != 0 && !block.probed;
  const bool by_chance = !pulls_wait && flow.heard_ns() > block.asked_ns;
  const int limit = by_chance ? std::max<int>(kMaxBackoffHeard, block.backoff) : kMaxBackoff;
  if (block.probed || pulls_wait)
    block.backoff = static_cast<std::uint8_t>(std::min(block.backoff + 1, limit));
  end_probe(lane, block, flow);
  if (block.sent != 0 && flow.all_arrived_up_to(block.highest_number)) {
    block.counted |= block.sent;
    settle(lane, block, block.sent);
  }
  if (block.sent != 0 || (block.lacking() & block.complete) || (closed_ && block.lacking() != 0))
    make_due(lane, index);
}

// Asks about every block with an unsettled chunk at or below the highest number that arrived.
void Recovery::probe_gap(Lane& lane, Flow& flow) noexcept {
  bool unsettled = false;
  for (std::uint32_t index = lane.open_head; index != kNone; index = blocks_[index].next) {
    const Block& block = blocks_[index];
    if (block.sent == 0 || !sent_up_to(index, flow.highest_arrived())) continue;
    unsettled = true;
    if (!block.probed) make_due(lane, index);
  }
  if (!unsettled) flow.accept_gap();
}

bool Recovery::sent_up_to(std::uint32_t index, std::uint32_t number) const noexcept {
  for (std::uint64_t chunks = blocks_[index].sent; chunks != 0; chunks &= chunks - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(chunks));
    if (ahead(numbers_[index * kChunksPerBlock + bit], number) <= 0) return true;
  }
  return false;
}

// Nothing came for a while: the oldest block that waits for other workers.
void Recovery::probe_oldest(Lane& lane) noexcept {
  for (std::uint32_t index = lane.open_head; index != kNone; index = blocks_[index].next) {
    Block& block = blocks_[index];
    if (block.probed || block.due || !(block.lacking() & block.counted)) continue;
    block.idle = true;
    make_due(lane, index);
    return;
  }
}

}  // namespace sluice::client

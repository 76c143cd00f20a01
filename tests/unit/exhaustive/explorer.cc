#include "tests/unit/exhaustive/explorer.h"

#include <algorithm>
#include <bit>

#include "tests/unit/exhaustive/seen.h"

namespace sluice::exhaustive {
namespace {

bool has(std::uint8_t bits, std::size_t chunk) noexcept { return (bits >> chunk & 1) != 0; }
std::uint8_t bit(std::size_t chunk) noexcept { return static_cast<std::uint8_t>(1 << chunk); }

std::string text_of(const Content& content) {
  return "mask " + std::to_string(content.mask) + " abstained " +
         std::to_string(content.abstained) + " sum " + std::to_string(content.sum) + " weight " +
         std::to_string(content.weight) + " k " + std::to_string(content.k) +
         (content.complete ? " complete" : " open");
}

class Explorer {
 public:
  Explorer(const Config& config, Names names) : config_(config), names_(names), subject_(config) {}

  Report run() {
    State first;
    for (std::size_t shard = 0; shard < config_.shard_count; ++shard)
      first.shards[shard].adopted = false;
    if (subject_.open_step() != kFirstStep) fail("the job does not begin with step 3");
    discover(first);
    for (from_ = 0; from_ < seen_.size() && report_.violation.empty(); ++from_)
      expand(state_of(seen_[from_]));
    report_.states = seen_.size();
    report_.keys = seen_.keys();
    if (!report_.violation.empty()) {
      report_.path.push_back(describe(last_, config_.worker_count));
      for (std::uint32_t at = --from_;; at = seen_.parent(at)) {
        report_.path.push_back(describe(state_of(seen_[at]), config_.worker_count));
        if (at == 0) break;
      }
      std::ranges::reverse(report_.path);
    }
    return std::move(report_);
  }

 private:
  void fail(const std::string& what) {
    if (report_.violation.empty()) report_.violation = what;
  }

  void discover(const State& state) {
    last_ = state;
    if (seen_.size() != 0 && progress_of(state) <= progress_of(state_)) fail("a way back");
    const Key key = names_ == Names::kKeep
                        ? plain_key(state)
                        : canonical_key(state, config_.worker_count, config_.shard_count);
    seen_.add(key, from_);
  }

  void ensure_loaded() {
    if (!dirty_) return;
    subject_.load(state_);
    dirty_ = false;
  }

  void expand(const State& state) {
    state_ = last_ = state;
    contents_ = contents_of(state);
    dirty_ = true;
    progress_ = false;
    ensure_loaded();
    check_record_of_state();
    for (std::uint16_t rank = 0; rank < config_.worker_count; ++rank) {
      ask_for_results(rank);
      contribute(rank);
      take_results(rank);
      if (config_.death && !state.anyone_dead()) die(rank);
      if (!report_.violation.empty()) return;
    }
    for (std::size_t shard = 0; shard < config_.shard_count; ++shard) carry_out(shard);
    const bool finished = everyone_has_everything();
    report_.ends += finished;
    if (!progress_ && !finished) fail("I4: nobody can do anything, and results are missing");
  }

  using Contents = std::array<Content, kSteps * kChunks>;
  Contents contents_of(const State& state) const {
    Contents contents;
    for (std::size_t i = 0; i < contents.size(); ++i)
      contents[i] = expected_content(state, config_, kFirstStep + static_cast<Step>(i / kChunks),
                                     i % kChunks);
    return contents;
  }

  // ---- what must hold of a state, however it was reached ----

  // Synchronous steps wait for every live worker.
  bool all_that_must(std::uint64_t mask) const {
    if (!config_.sync()) return true;
    for (std::size_t rank = 0; rank < config_.worker_count; ++rank)
      if (!state_.workers[rank].dead && !(mask >> rank & 1)) return false;
    return true;
  }

  void check_record_of_state() {
    if (subject_.open_step() != state_.open_step()) fail("a step is open before its turn");
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      const Step step = kFirstStep + static_cast<Step>(i / kChunks);
      const std::size_t chunk = i % kChunks;
      const Content& held = contents_[i];
      const int members = std::popcount(held.mask);
      const bool lowered = has(state_.lowered[i / kChunks], chunk);
      const bool touched = (held.mask | held.abstained) != 0;
      if (lowered && !state_.anyone_dead()) fail("I1: k is lowered though nobody died");
      if (held.complete && members < least_k(state_, config_, step, held.abstained, lowered))
        fail("I1: fewer than k in a result");
      if (held.complete && !all_that_must(held.mask)) fail("I1: a live worker is missing");
      if (touched && step > state_.open_step()) fail("a step counts that is not open");
      const ShardState& shard = state_.shards[config_.shard_count == 1 ? 0 : chunk];
      const bool may_wait =
          members < least_k(state_, config_, step, held.abstained, shard.without_dead) ||
          !all_that_must(held.mask);
      if (!held.complete && touched && shard.adopted && !shard.sweeping && !may_wait)
        fail("I4: k are in, and the slot is not complete");
    }
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk)
      if (contents_[chunk].sum & contents_[kChunks + chunk].sum)
        fail("I3: a gradient counts in two steps");
  }

  bool everyone_has_everything() const {
    for (std::size_t rank = 0; rank < config_.worker_count; ++rank) {
      const WorkerState& worker = state_.workers[rank];
      if (!worker.dead && (worker.seen[0] != kBoth || worker.seen[1] != kBoth)) return false;
    }
    return state_.open_step() == kFirstStep + kSteps;
  }

  // ---- events ----

  // The production objects have just done something: `next` says what the rules expect of the
  // slots' members. Everything else is read back and judged.
  bool judge(State next, const char* event) {
    ++report_.events;
    subject_.read_back(next);
    last_ = next;
    if (subject_.open_step() != next.open_step()) {
      fail(std::string(event) + ": a step opened before all its chunks were closed, or did not");
      return false;
    }
    // An event that changed nothing is compared with what was there.
    const Contents due = next == state_ ? contents_ : contents_of(next);
    for (std::size_t i = 0; i < due.size(); ++i) {
      const Step step = kFirstStep + static_cast<Step>(i / kChunks);
      const Content held = subject_.content(step, i % kChunks);
      if (held == due[i]) continue;
      fail(std::string(event) + ": I1, I3: a chunk of step " + std::to_string(step) + " holds " +
           text_of(held) + ", and its members make " + text_of(due[i]));
      return false;
    }
    check_emitted(next, event);
    if (next == state_) return false;
    dirty_ = true;
    discover(next);
    return true;
  }

  // Each chunk that was completed now went to every reachable worker once, with what the slot
  // holds.
  void check_emitted(const State& next, const char* event) {
    std::size_t due = 0;
    const auto reachable = static_cast<std::size_t>(config_.worker_count - next.anyone_dead());
    for (std::size_t index = 0; index < kSteps; ++index)
      due += std::popcount(static_cast<unsigned>(next.complete[index] ^ state_.complete[index]));
    if (subject_.emitted().size() != due * reachable)
      fail(std::string(event) + ": I2: not one result for each worker");
    for (const Emitted& result : subject_.emitted()) {
      if (has(state_.complete[result.step - kFirstStep], result.chunk) ||
          next.workers[result.rank].dead)
        fail(std::string(event) + ": I2: a result that nobody was to get");
      if (result.open_step != next.open_step()) fail("a result tells another open step");
      check_result(next, result, event);
    }
  }

  // Contents are a function of the state, so equal copies in every state are equal for ever.
  void check_result(const State& state, const Emitted& result, const char* event) {
    Content expected = state == state_
                           ? contents_[(result.step - kFirstStep) * kChunks + result.chunk]
                           : expected_content(state, config_, result.step, result.chunk);
    expected.abstained = 0;
    if (result.content != expected)
      fail(std::string(event) + ": I2: a copy of a result differs from the slot");
  }

  bool requeues() const { return !config_.sync() && config_.late == LateMode::kRequeue; }

  // Every contribution that the worker can have made by now arrives; some for a second time.
  void contribute(std::uint16_t rank) {
    const WorkerState worker = state_.workers[rank];
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
      arrive({.rank = rank, .step = kFirstStep, .chunk = chunk, .base = kFirstStep}, Mode::kFresh);
      Part next{.rank = rank, .step = kFirstStep + 1, .chunk = chunk, .base = kFirstStep + 1};
      const bool may_begin = worker.seen[0] == kBoth;
      // Before its step is open no worker sends this, and the appliance must not depend on it.
      if ((may_begin && worker.mode != Mode::kCatchUp) || state_.complete[0] != kBoth)
        arrive(next, Mode::kFresh);
      next.base = kFirstStep;
      next.nil = has(worker.counted[0], chunk);
      const bool was_late = worker.counted[0] != kBoth;
      if (requeues() && may_begin && was_late && worker.mode != Mode::kFresh)
        arrive(next, Mode::kCatchUp);
      if (!requeues() && !config_.sync() && may_begin) arrive(next, Mode::kCatchUp);
    }
  }

  Verdict expected_verdict(const Part& part) const {
    const Step open = state_.open_step();
    const Step window = config_.sync() ? kSyncWindow : kAsyncWindow;
    if (part.step > open) return Verdict::kTooNew;
    if (open - part.step >= window) return Verdict::kTooOld;
    if (part.base != part.step && !requeues()) return Verdict::kStale;
    const WorkerState& worker = state_.workers[part.rank];
    const std::size_t index = part.step - kFirstStep;
    if (has(worker.counted[index], part.chunk)) return Verdict::kDuplicate;
    if (part.step < open || has(state_.complete[index], part.chunk)) return Verdict::kLate;
    const ShardState& shard = state_.shards[config_.shard_count == 1 ? 0 : part.chunk];
    if (worker.dead && (!shard.adopted || shard.without_dead)) return Verdict::kNotAllowed;
    return part.nil ? Verdict::kPassed : Verdict::kFolded;
  }

  void arrive(const Part& part, Mode mode) {
    if (!report_.violation.empty()) return;
    ensure_loaded();
    const Verdict expected = expected_verdict(part);
    const Verdict verdict = subject_.arrive(part);
    const bool counts = expected == Verdict::kFolded || expected == Verdict::kPassed;
    State next = state_;
    if (counts) {
      next.workers[part.rank].counted[part.step - kFirstStep] |= bit(part.chunk);
      if (part.step != kFirstStep) next.workers[part.rank].mode = mode;
    }
    const bool changed = judge(next, "a contribution arrives");
    if (verdict != expected && !(counts && verdict == Verdict::kCompleted))
      fail("a contribution is " + std::string(label(verdict)) + " where the rules say " +
           std::string(label(expected)));
    progress_ |= changed && counts && !state_.workers[part.rank].dead;
  }

  // Pushed or pulled, the worker gets a result that it lacks. What it gets is checked elsewhere:
  // check_emitted(), ask_for_results().
  void take_results(std::uint16_t rank) {
    if (state_.workers[rank].dead) return;
    for (std::size_t index = 0; index < kSteps; ++index)
      for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
        const WorkerState& worker = state_.workers[rank];
        if (!has(state_.complete[index], chunk) || has(worker.seen[index], chunk)) continue;
        State next = state_;
        next.workers[rank].seen[index] |= bit(chunk);
        discover(next);
        progress_ = true;
      }
  }

  // In every state, whatever was lost: a probe tells the truth, and brings what is complete.
  void ask_for_results(std::uint16_t rank) {
    const WorkerState& worker = state_.workers[rank];
    if (worker.dead) return;
    for (Step step = kFirstStep; step < kFirstStep + kSteps; ++step)
      for (std::size_t shard = 0; shard < config_.shard_count; ++shard) {
        const std::size_t index = step - kFirstStep;
        const std::uint8_t held = config_.shard_count == 1 ? kBoth : bit(shard);
        // A worker that has all results has nothing to ask for.
        if ((worker.seen[index] & held) == held) continue;
        ensure_loaded();
        const ProbeAnswer answer = subject_.probe(rank, step, shard);
        ++report_.events;
        if (step > state_.open_step()) {
          if (answer.status != wire::AnswerStatus::kNotOpen) fail("a probe: not open, but open");
          continue;
        }
        const std::uint8_t complete = state_.complete[index] & held;
        if (answer.status != wire::AnswerStatus::kOpen) fail("I4: a probe: gone, but needed");
        if (answer.complete != complete) fail("a probe: complete chunks are others");
        if (answer.counted != (worker.counted[index] & held)) fail("a probe: counted are others");
        if (subject_.emitted().size() != static_cast<std::size_t>(std::popcount(complete)))
          fail("I4: a probe does not bring the results that it asks for");
        for (const Emitted& result : subject_.emitted()) check_result(state_, result, "a pull");
      }
    State after = state_;
    subject_.read_back(after);  // a probe may be the first to adopt the record
    if (after != state_) {
      dirty_ = true;
      discover(after);
    }
  }

  void die(std::uint16_t rank) {
    ensure_loaded();
    State next = state_;
    next.workers[rank].dead = true;
    subject_.kill(rank);
    dirty_ = true;
    discover(next);
  }

  // The command about the dead member, and the sweep that follows it.
  void carry_out(std::size_t shard) {
    const ShardState& known = state_.shards[shard];
    if (!state_.anyone_dead() || !report_.violation.empty()) return;
    if (!known.told) {
      ensure_loaded();
      State next = state_;
      next.shards[shard].told = true;
      subject_.tell(shard);
      progress_ |= judge(next, "a shard is told");
    }
    if (known.sweeping) {
      ensure_loaded();
      subject_.sweep(shard);
      progress_ |= judge(state_, "a shard sweeps");
    }
  }

  const Config config_;
  const Names names_;
  Subject subject_;
  Seen seen_;
  Report report_;
  std::uint32_t from_ = 0;  // the state that is being expanded
  State state_;             // the same
  Contents contents_;       // what its slots hold
  State last_;              // that was reached last, for the path of a violation
  bool dirty_ = true;       // the production objects are not in `state_`
  bool progress_ = false;   // an event without fault led on from it
};

}  // namespace

Report explore(const Config& config, Names names) { return Explorer(config, names).run(); }

}  // namespace sluice::exhaustive

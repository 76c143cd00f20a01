#include "tests/unit/exhaustive/subject.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "tests/unit/exhaustive/small_job.h"

namespace sluice::exhaustive {
namespace {

constexpr Cookie kCookie = 0xC0FFEE;
constexpr std::uint32_t kCredit = 1'000'000;
constexpr TimeNs kNow = kSecond;

agg::JobSpec spec_of(const Config& config) {
  agg::JobSpec spec = small_job_spec("exhaustive", config.worker_count, config.shard_count, kChunks,
                                     config.sync() ? kSyncWindow : kAsyncWindow);
  if (!config.sync())
    spec.policy = {.kind = PolicyKind::kFixed, .late = config.late, .k = config.k};
  return spec;
}

}  // namespace

Part part_of(const State& state, std::uint16_t rank, Step step, std::size_t chunk) noexcept {
  Part part{.rank = rank, .step = step, .chunk = chunk, .base = step};
  const WorkerState& worker = state.workers[rank];
  if (step != kFirstStep && worker.mode == Mode::kCatchUp) {
    part.base = kFirstStep;
    part.nil = (worker.counted[0] >> chunk & 1) != 0;
  }
  return part;
}

int least_k(const State& state, const Config& config, Step step, std::uint64_t abstained,
            bool without_dead) noexcept {
  int alive = 0;
  int passed = 0;
  for (std::size_t rank = 0; rank < config.worker_count; ++rank) {
    const bool gone = without_dead && state.workers[rank].dead;
    alive += !gone;
    passed += !gone && (abstained >> rank & 1);
  }
  if (alive == passed) return 0;
  return std::max(1, std::min<int>(config.least(step), alive) - passed);
}

Content expected_content(const State& state, const Config& config, Step step,
                         std::size_t chunk) noexcept {
  const std::size_t index = step - kFirstStep;
  Content content;
  const bool lowered = (state.lowered[index] >> chunk & 1) != 0;
  for (std::uint16_t rank = 0; rank < config.worker_count; ++rank) {
    const WorkerState& worker = state.workers[rank];
    const Part part = part_of(state, rank, step, chunk);
    const std::uint64_t bit = std::uint64_t{1} << rank;
    const bool in = (worker.counted[index] >> chunk & 1) != 0;
    if (!in) continue;
    (part.nil ? content.abstained : content.mask) |= bit;
    content.sum += part.value();
    content.weight += part.weight();
    content.has_data |= !part.nil;
  }
  content.complete = (state.complete[index] >> chunk & 1) != 0;
  if (content.complete)
    content.k =
        static_cast<std::uint16_t>(least_k(state, config, step, content.abstained, lowered));
  return content;
}

Subject::Subject(const Config& config)
    : config_(config),
      job_(std::make_unique<agg::Job>(spec_of(config))),
      shards_(config.shard_count),
      packets_(256) {
  make_records();
  probes_.resize(kMostWorkers * kSteps * kChunks);
  for (agg::Member& member : job_->members) {
    member.cookie = kCookie;
    member.reachable = true;
  }
  cut_to_a_chunk_each(*job_);
  for (std::uint16_t id = 0; id < config.shard_count; ++id)
    shard_at(id).handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = job_.get()},
                                kNow);
  job_->start(kNow);
  for (Step step = 1; step < kFirstStep; ++step)
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk)
      for (std::uint16_t rank = 0; rank < config.worker_count; ++rank) {
        const wire::Contribution body{.flow = {.number = 1, .credit = kCredit},
                                      .step = step,
                                      .chunk = chunk_index(chunk),
                                      .base_step = step,
                                      .weight = 1,
                                      .elem_count = 1};
        const float one = 1;
        Encoded encoded;
        const std::size_t bytes =
            wire::encode(encoded.bytes, {.job = 0, .rank = rank, .cookie = kCookie}, body, {},
                         {reinterpret_cast<const std::uint8_t*>(&one), sizeof one});
        CHECK(ok(wire::parse({encoded.bytes.data(), bytes}, encoded.packet)));
        shard_at(shard_of_chunk(chunk)).handle(encoded.packet, false, kNow);
      }
  for (std::size_t shard = 0; shard < shards_.count(); ++shard) drain(shard);
}

std::size_t Subject::slot_index(Step step, std::size_t chunk) const {
  const agg::GradientSlice& owner = slice(shard_of_chunk(chunk));
  return step % job_->spec.windows[0] * owner.chunk_count + job_->local_chunk(chunk_index(chunk));
}

Step Subject::open_step() const { return job_->windows[0].open_step.load(); }

void Subject::make_records() {
  for (std::size_t i = 0; i < records_.size(); ++i)
    for (std::size_t without = 0; without <= kMostWorkers; ++without) {
      const Step step = kFirstStep - 1 + static_cast<Step>(i);
      agg::StepRecord made{.step = step, .k = config_.least(step)};
      made.eligible = agg::MemberMask::all(config_.worker_count);
      if (config_.sync()) made.required = made.eligible;
      if (config_.mutation == Mutation::kShortOfK) --made.k;
      if (without < config_.worker_count) made.remove(Rank{static_cast<std::uint16_t>(without)});
      records_[i][without] = made;
    }
}

void Subject::load(const State& state) {
  const Step open = state.open_step();
  dead_.reset();
  for (std::uint16_t rank = 0; rank < config_.worker_count; ++rank) {
    const bool dead = state.workers[rank].dead;
    if (dead) dead_ = rank;
    job_->members[rank].left_from[0].store(dead ? 0 : agg::kNoStep, std::memory_order_relaxed);
    job_->members[rank].reachable.store(!dead, std::memory_order_relaxed);
  }
  agg::StreamWindow& window = job_->windows[0];
  window.open_step.store(open, std::memory_order_relaxed);
  window.records[open % job_->spec.windows[0]] = record(open, true);

  const std::uint8_t closed = open < kFirstStep + kSteps ? state.complete[open - kFirstStep] : 0;
  std::uint32_t shards_left = 0;
  for (std::size_t shard = 0; shard < shards_.count(); ++shard) {
    const ShardState& known = state.shards[shard];
    agg::GradientSlice& part = slice(shard);
    // The only private trace of a sweep is that there is one: a command sets it, when the shard has
    // adopted the step.
    part.record = {};
    std::ranges::fill(part.slots, agg::Slot{});  // else the shard has some of a step to come
    if (known.sweeping) tell(shard);
    part.record = record(known.adopted ? open : open - 1, known.without_dead);
    const bool own_closed = config_.shard_count == 1 ? closed == kBoth : (closed >> shard & 1) != 0;
    part.closed_count = config_.shard_count == 1 ? (closed & 1) + (closed >> 1) : own_closed;
    part.sweeping = known.sweeping;
    part.sweep_cursor = 0;
    shards_left += !own_closed;
    for (std::uint16_t rank = 0; rank < config_.worker_count; ++rank)
      job_->slices[shard].flows[rank].next_number = 1;
    job_->slices[shard].slots_in_use.set(0);
  }
  window.shards_left.store(shards_left, std::memory_order_relaxed);
  for (std::size_t index = 0; index < kSteps; ++index)
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) load_slot(state, index, chunk);
}

void Subject::load_slot(const State& state, std::size_t step_index, std::size_t chunk) {
  const Step step = kFirstStep + static_cast<Step>(step_index);
  agg::GradientSlice& owner = slice(shard_of_chunk(chunk));
  const std::size_t at = slot_index(step, chunk);
  const Content held = expected_content(state, config_, step, chunk);
  owner.masks[at] = held.mask;
  if (!owner.abstained.empty()) owner.abstained[at] = held.abstained;
  agg::Slot& slot = owner.slots[at];
  agg::Sum& sum = owner.sums[at];
  slot = {};
  sum = {};
  if ((held.mask | held.abstained) == 0) return;  // nobody has reopened it for this step
  const auto mask_count = static_cast<std::uint16_t>(std::popcount(held.mask));
  slot.step = step;
  sum.weight = held.weight;
  slot.count = mask_count;
  sum.abstained_count = static_cast<std::uint16_t>(std::popcount(held.abstained));
  slot.priority = 0;
  slot.state = held.complete ? agg::SlotState::kComplete : agg::SlotState::kOpen;
  if (!held.complete) job_->slices[shard_of_chunk(chunk)].slots_in_use.add(1);
  sum.k = held.k;
  sum.eligible_count =
      held.complete ? config_.worker_count : 0;  // or fewer: no state depends on it
  if (!held.has_data) return;
  sum.data_count = static_cast<std::uint16_t>(std::popcount(held.sum));
  sum.begun = sum.has_data();
  sum.elem_count = 1;
  slot.payload_bytes = sizeof(float);
  owner.data.get()[at * owner.stride_floats] = static_cast<float>(held.sum);
}

Content Subject::content(Step step, std::size_t chunk) const {
  const agg::GradientSlice& owner = slice(shard_of_chunk(chunk));
  const std::size_t at = slot_index(step, chunk);
  const agg::Slot& slot = owner.slots[at];
  if (slot.step != step) return {};
  const agg::Sum& sum = owner.sums[at];
  const bool complete = slot.complete_for(step);
  return {.mask = owner.masks[at],
          .abstained = owner.abstained.empty() ? 0 : owner.abstained[at],
          .sum = sum.has_data()
                     ? static_cast<std::uint64_t>(owner.data.get()[at * owner.stride_floats])
                     : 0,
          .weight = sum.weight,
          .k = complete ? sum.k : std::uint16_t{0},
          .complete = complete,
          .has_data = sum.has_data()};
}

void Subject::read_back(State& state) const {
  for (std::size_t index = 0; index < kSteps; ++index)
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
      const Content held = content(kFirstStep + static_cast<Step>(index), chunk);
      const auto bit = static_cast<std::uint8_t>(1 << chunk);
      if (!held.complete || (state.complete[index] & bit)) continue;
      state.complete[index] |= bit;
      const Content expected =
          expected_content(state, config_, kFirstStep + static_cast<Step>(index), chunk);
      if (held.k != expected.k) state.lowered[index] |= bit;
    }
  const Step open = open_step();
  for (std::size_t shard = 0; shard < shards_.count(); ++shard) {
    const agg::GradientSlice& part = slice(shard);
    ShardState& known = state.shards[shard];
    known.adopted = part.record.step == open;
    known.without_dead = known.adopted && dead_ && !part.record.eligible.test(Rank{*dead_});
    known.sweeping = known.adopted && part.sweeping;
  }
}

const wire::Packet& Subject::packet_of(const Part& part) {
  const std::size_t at = part.rank | (part.step - kFirstStep) << 2 | part.chunk << 3 |
                         (part.base - kFirstStep) << 4 | std::size_t{part.nil} << 5;
  if (packets_[at]) return packets_[at]->packet;
  packets_[at] = std::make_unique<Encoded>();
  const auto value = static_cast<float>(part.value());
  const std::uint64_t list = chunk_bit(chunk_index(part.chunk));
  std::span<const std::uint8_t> data{reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
  if (part.nil) data = {reinterpret_cast<const std::uint8_t*>(&list), sizeof list};
  wire::Contribution body{.flow = {.number = 1, .credit = kCredit},
                          .step = part.step,
                          .chunk = chunk_index(part.chunk),
                          .base_step = part.base,
                          .weight = part.weight(),
                          .elem_count = static_cast<std::uint16_t>(part.nil ? 0 : 1)};
  if (part.nil) body.flow.flags = wire::kFlagNil;
  Encoded& encoded = *packets_[at];
  const std::size_t size =
      wire::encode(encoded.bytes, {.job = 0, .rank = part.rank, .cookie = kCookie}, body, {}, data);
  CHECK(ok(wire::parse({encoded.bytes.data(), size}, encoded.packet)));
  return encoded.packet;
}

Verdict Subject::arrive(const Part& part) {
  const std::size_t shard = shard_of_chunk(part.chunk);
  const Verdict verdict = shard_at(shard).handle(packet_of(part), false, kNow);
  if (config_.mutation != Mutation::kNone) mutate(part, verdict);
  emitted_.clear();
  if (verdict == Verdict::kCompleted) drain(shard);
  return verdict;
}

void Subject::mutate(const Part& part, Verdict verdict) {
  agg::GradientSlice& owner = slice(shard_of_chunk(part.chunk));
  const auto add_to = [&](Step step) {
    const std::size_t at = slot_index(step, part.chunk);
    if (owner.slots[at].step != step) return;
    owner.masks[at] |= std::uint64_t{1} << part.rank;
    owner.data.get()[at * owner.stride_floats] += static_cast<float>(part.value());
  };
  switch (config_.mutation) {
    case Mutation::kFoldLate:
      if (verdict == Verdict::kLate) add_to(part.step);
      break;
    case Mutation::kFoldTwice:
      if (verdict == Verdict::kDuplicate) add_to(part.step);
      break;
    case Mutation::kMixSteps:
      if (verdict == Verdict::kLate && part.step < open_step()) add_to(part.step + 1);
      break;
    case Mutation::kOpenEarly:
      if (verdict == Verdict::kCompleted && part.step == open_step()) {
        job_->windows[0].shards_left.store(0, std::memory_order_relaxed);  // or publish() notices
        job_->publish(StreamId::kGradients, part.step + 1, kNow);
      }
      break;
    case Mutation::kNone:
    case Mutation::kShortOfK:
    case Mutation::kForgetSweep: break;
  }
}

void Subject::kill(std::uint16_t rank) {
  dead_ = rank;
  job_->members[rank].left_from[0].store(0, std::memory_order_relaxed);
  job_->members[rank].reachable.store(false, std::memory_order_relaxed);
}

void Subject::tell(std::size_t shard) {
  emitted_.clear();
  shard_at(shard).handle_command({.kind = agg::ShardCommand::Kind::kMemberGone,
                                  .job = job_.get(),
                                  .rank = Rank{dead_.value()}},
                                 kNow);
}

void Subject::sweep(std::size_t shard) {
  emitted_.clear();
  if (config_.mutation == Mutation::kForgetSweep) {
    slice(shard).sweeping = false;
    return;
  }
  CHECK(!shard_at(shard).poll_work(kNow));
  drain(shard);
}

ProbeAnswer Subject::probe(std::uint16_t rank, Step step, std::size_t shard) {
  std::unique_ptr<Encoded>& encoded =
      probes_[rank * kSteps * kChunks + (step - kFirstStep) * kChunks + shard];
  if (!encoded) {
    encoded = std::make_unique<Encoded>();
    const wire::Probe body{.flow = {.number = 1, .credit = kCredit},
                           .step = step,
                           .block = static_cast<std::uint32_t>(shard),
                           .want = config_.shard_count == 1 ? kBoth : 1u};
    const std::size_t size =
        wire::encode(encoded->bytes, {.job = 0, .rank = rank, .cookie = kCookie}, body);
    CHECK(ok(wire::parse({encoded->bytes.data(), size}, encoded->packet)));
  }
  emitted_.clear();
  shard_at(shard).handle(encoded->packet, false, kNow);
  ProbeAnswer answer{.status = wire::AnswerStatus{0xFF}};
  drain(shard, &answer);
  return answer;
}

void Subject::drain(std::size_t shard, ProbeAnswer* answer) {
  std::uint8_t out[512];
  agg::Transmit transmit{.buffer = out};
  ++sending_at_;  // what the shard has made of a slot is of before this test changed it
  while (shard_at(shard).poll_transmit({&transmit, 1}, sending_at_) != 0) {
    wire::Packet packet;
    CHECK(ok(wire::parse(transmit.datagram(), packet)));
    if (packet.type() == wire::PacketType::kAnswer) {
      CHECK(answer != nullptr);
      const auto& body = packet.body<wire::Answer>();
      const auto bits = [&](std::uint64_t of_block) {
        return static_cast<std::uint8_t>(config_.shard_count == 1 ? of_block & kBoth
                                                                  : (of_block & 1) << shard);
      };
      *answer = {
          .status = body.status, .counted = bits(body.counted), .complete = bits(body.complete)};
      continue;
    }
    CHECK(packet.type() == wire::PacketType::kResult);
    const auto& body = packet.body<wire::ResultHeader>();
    if (body.step < kFirstStep) continue;
    Emitted result{.rank = transmit.rank.value, .step = body.step};
    result.open_step = body.feedback.open_step;
    result.content = {.mask = packet.mask_word(0),
                      .weight = body.weight,
                      .k = body.k,
                      .complete = true,
                      .has_data = (body.feedback.flags & wire::kFlagNil) == 0};
    if (result.content.has_data) {
      float sum = 0;
      CHECK(packet.payload().size() == sizeof sum);
      std::memcpy(&sum, packet.payload().data(), sizeof sum);
      result.content.sum = static_cast<std::uint64_t>(sum);
    }
    for (std::uint64_t chunks = packet.chunks(); chunks != 0; chunks &= chunks - 1) {
      const auto in_block = static_cast<std::size_t>(std::countr_zero(chunks));
      result.chunk = config_.shard_count == 1 ? in_block : body.chunk / kChunksPerBlock;
      emitted_.push_back(result);
    }
  }
}

}  // namespace sluice::exhaustive

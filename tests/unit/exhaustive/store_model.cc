#include "tests/unit/exhaustive/store_model.h"

#include <algorithm>
#include <bit>

namespace sluice::exhaustive {
namespace {

constexpr std::uint16_t kElems = 4;

// Twelfths are exact for 1 to 4 workers, and no two pushes are equal.
float value_of(std::uint16_t rank, Step iteration) {
  return static_cast<float>(12 << (2 * iteration + 7 * rank / 3 * 3));
}

bool counts(Verdict verdict) {
  return verdict == Verdict::kFolded || verdict == Verdict::kCompleted;
}

}  // namespace

StoreModel::StoreModel(const StoreConfig& config)
    : config_(config),
      workers_(config.worker_count),
      values_(config.chunk_count),
      applied_(config.chunk_count) {
  store_ = std::make_unique<agg::StoreShard>(agg::StoreSpec{.world_size = config.worker_count,
                                                            .block_count = 1,
                                                            .max_elems = kElems,
                                                            .bound = config.bound},
                                             ShardId{0}, std::uint16_t{1});
  const std::array<float, kElems> zeros{};
  for (ChunkIndex chunk = 0; chunk < config.chunk_count; ++chunk)
    store_->push({.chunk = chunk,
                  .block_chunks = config.chunk_count,
                  .values = {reinterpret_cast<const std::uint8_t*>(zeros.data()), sizeof(zeros)}});
}

Step StoreModel::pushed(const Worker& worker) const noexcept {
  Step iteration = worker.joined;
  while (worker.counted[iteration] == all()) ++iteration;
  return iteration - 1;
}

Step StoreModel::clock() const noexcept {
  Step least = UINT32_MAX;
  for (const Worker& worker : workers_)
    if (worker.alive) least = std::min(least, pushed(worker));
  return std::max(passed_clock_, least == UINT32_MAX ? 0 : least);
}

std::vector<StoreEvent> StoreModel::events() const {
  using Kind = StoreEvent::Kind;
  std::vector<StoreEvent> found;
  for (std::uint16_t rank = 0; rank < config_.worker_count; ++rank) {
    const Worker& worker = workers_[rank];
    for (Step iteration = 1; iteration <= worker.sent; ++iteration)
      for (ChunkIndex chunk = 0; chunk < config_.chunk_count; ++chunk)
        found.push_back({Kind::kPush, rank, iteration, chunk});
    if (worker.alive) {
      if (worker.got == all() && worker.sent < config_.iterations)
        found.push_back({Kind::kCompute, rank});
      // The pull for the iteration to come, and a late copy of the one before.
      for (Step iteration = std::max<Step>(worker.sent, 1); iteration <= worker.sent + 1;
           ++iteration)
        if (iteration <= config_.iterations) found.push_back({Kind::kPull, rank, iteration});
      if (config_.death && rank == 0 && !died_) found.push_back({Kind::kDie, rank});
    } else if (config_.rejoin) {
      found.push_back({Kind::kJoin, rank});
    }
  }
  return found;
}

std::string StoreModel::play(const StoreEvent& event) {
  Worker& worker = workers_[event.rank];
  std::string broken;
  switch (event.kind) {
    case StoreEvent::Kind::kPush: broken = push(event); break;
    case StoreEvent::Kind::kPull: broken = pull(event); break;
    case StoreEvent::Kind::kCompute:
      ++worker.sent;
      worker.got = 0;
      break;
    case StoreEvent::Kind::kDie:
      worker.alive = false;
      died_ = true;
      worker.parked = 0;
      store_->remove(Rank{event.rank});
      while (store_->poll_work()) {
      }
      break;
    case StoreEvent::Kind::kJoin: {
      store_->hold(Rank{event.rank});
      while (store_->poll_work()) {
      }
      const Step first = store_->greatest_clock() + 1;
      if (first <= clock()) return "a joiner starts at a clock that is over";
      store_->start(Rank{event.rank}, first);
      while (store_->poll_work()) {
      }
      // What the process before sent for these iterations never arrives: it has another cookie.
      worker = {.sent = first - 1, .joined = first};
      break;
    }
  }
  for (ChunkIndex chunk = 0; chunk < config_.chunk_count; ++chunk) gather(chunk);
  passed_clock_ = clock();
  if (broken.empty()) broken = check_values();
  if (broken.empty()) broken = take_answers(event.lost);
  return broken;
}

std::string StoreModel::push(const StoreEvent& event) {
  Worker& worker = workers_[event.rank];
  const std::array<float, kElems> values = [&] {
    std::array<float, kElems> all_equal{};
    all_equal.fill(value_of(event.rank, event.iteration));
    return all_equal;
  }();
  const agg::StorePush packet{
      .rank = Rank{event.rank},
      .iteration = event.iteration,
      .chunk = event.chunk,
      .values = {reinterpret_cast<const std::uint8_t*>(values.data()), sizeof(values)}};
  const Verdict verdict = store_->push(packet);
  const std::uint32_t bit = 1u << event.chunk;
  const bool may = worker.alive && event.iteration == pushed(worker) + 1 &&
                   !(worker.counted[event.iteration] & bit);
  if (counts(verdict) != may)
    return std::string(may ? "a push is not counted: " : "a push is counted that must not be: ") +
           std::string(label(verdict));
  if (!may) return {};
  worker.counted[event.iteration] |= bit;
  Value& value = values_[event.chunk];
  const bool twice = config_.mutation == StoreConfig::Mutation::kPushTwice && event.iteration == 2;
  const double pushed_value = value_of(event.rank, event.iteration) * (twice ? 2 : 1);
  if (config_.bound == 0) {
    value.gathered += pushed_value;
    ++value.pushes;
  } else {
    const auto live =
        std::ranges::count_if(workers_, [](const Worker& each) { return each.alive; });
    value.value += pushed_value / static_cast<double>(live);
  }
  return {};
}

// Bound 0: all together, once nobody who takes part in this iteration is missing.
void StoreModel::gather(ChunkIndex chunk) {
  Value& value = values_[chunk];
  const Step iteration = applied_[chunk] + 1;
  bool anyone = false;
  for (const Worker& worker : workers_) {
    if (!worker.alive) continue;
    anyone = true;
    if (worker.joined <= iteration && !(worker.counted[iteration] >> chunk & 1)) return;
  }
  if (!anyone || config_.bound != 0) return;
  if (value.pushes != 0) value.value += value.gathered / value.pushes;
  if (value.pushes != 0) applied_[chunk] = iteration;
  value.gathered = value.pushes = 0;
}

std::string StoreModel::pull(const StoreEvent& event) {
  Worker& worker = workers_[event.rank];
  const Step need = need_for(event.iteration), own = event.iteration - 1;
  const bool is_current = event.iteration == worker.sent + 1;
  const std::uint32_t chunks = is_current ? all() & ~worker.got : all();
  if (chunks == 0) return {};
  if (own + 1 < worker.joined) return {};  // the process before sent it
  const Verdict verdict = store_->pull(
      {.rank = Rank{event.rank}, .block = 0, .chunks = chunks, .need = need, .own = own});
  const bool old = need < worker.need || own < worker.own;
  if ((verdict == Verdict::kProbe) == old) return "an old pull is taken, or a new one is not";
  if (old) return {};
  if (need > worker.need || own > worker.own) worker.parked = 0;
  worker.need = need;
  worker.own = own;
  worker.parked |= chunks;
  return {};
}

std::string StoreModel::take_answers(bool lost) {
  answered_ = false;
  for (agg::StoreAnswer answer; store_->poll_answer(answer);) {
    answered_ = true;
    Worker& worker = workers_[answer.rank.value];
    const std::uint32_t bit = 1u << answer.chunk;
    if (!worker.alive || !(worker.parked & bit)) return "an answer that nobody asked for";
    worker.parked &= ~bit;
    const bool early = config_.mutation == StoreConfig::Mutation::kAnswerEarly;
    if (answer.clock != clock()) return "an answer tells another clock";
    if (answer.clock < worker.need + early) return "the bound is violated";
    if (pushed(worker) < worker.own) return "a read without the reader's own pushes";
    // Every iteration that the reader may rely on is in, of everyone who took part.
    for (const Worker& each : workers_)
      for (Step iteration = each.joined; each.alive && iteration <= worker.need; ++iteration)
        if (!(each.counted[iteration] & bit)) return "a read lacks a push";
    if (config_.bound == 0 && worker.own == worker.sent && applied_[answer.chunk] != worker.need)
      return "a read of another moment";
    if (!lost && worker.own == worker.sent) worker.got |= bit;
  }
  for (const Worker& worker : workers_)
    if (worker.alive && worker.parked && clock() >= worker.need && pushed(worker) >= worker.own)
      return "a pull is forgotten";
  return {};
}

std::string StoreModel::check_values() {
  if (store_->clock(0) != clock()) return "the clock is another";
  for (ChunkIndex chunk = 0; chunk < config_.chunk_count; ++chunk)
    for (const float value : store_->parameters(chunk))
      if (value != static_cast<float>(values_[chunk].value)) return "the parameters are others";
  return {};
}

bool StoreModel::finished() const {
  return std::ranges::all_of(workers_, [&](const Worker& worker) {
    return !worker.alive || pushed(worker) >= config_.iterations;
  });
}

int StoreModel::progress() const {
  int total = 0;
  for (const Worker& worker : workers_) {
    total += static_cast<int>(worker.sent * (config_.chunk_count + 1)) + std::popcount(worker.got);
    for (const std::uint32_t counted : worker.counted) total += std::popcount(counted);
  }
  return total;
}

std::string StoreModel::key() const {
  std::string key;
  const auto add = [&](std::uint64_t value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const Worker& worker : workers_) {
    // Each of them below 16.
    std::uint64_t packed = worker.alive;
    for (const std::uint32_t part :
         {worker.sent, worker.joined, worker.got, worker.parked, worker.need, worker.own})
      packed = packed << 4 | part;
    for (const std::uint32_t counted : worker.counted) packed = packed << 4 | counted;
    add(packed);
  }
  add(died_);
  for (const Value& value : values_) add(std::bit_cast<std::uint64_t>(value.value));
  for (const Value& value : values_) add(std::bit_cast<std::uint64_t>(value.gathered));
  return key;
}

}  // namespace sluice::exhaustive

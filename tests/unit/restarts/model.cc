#include "tests/unit/restarts/model.h"

#include <algorithm>
#include <bit>

#include "aggregator/jobs/entry.h"

namespace sluice::exhaustive {
namespace {

constexpr Cookie kCookies[] = {0xC0FFEE, 0xBEEF};

}  // namespace

std::string describe(const RestartEvent& event) {
  static constexpr std::array kNames{"part",  "old part", "result", "probe",
                                     "death", "join",     "accept", "learn"};
  return std::string(kNames[static_cast<std::size_t>(event.kind)]) + " of " +
         std::to_string(event.rank) + ", step " + std::to_string(event.step) + ", chunk " +
         std::to_string(event.chunk) + "\n";
}

RestartModel::RestartModel(const RestartConfig& config) : config_(config) {
  box_ = std::make_unique<RestartBox>(config_, kCookies[0], agg::Resumed{});
  workers_.resize(config_.worker_count);
  for (Worker& worker : workers_) {
    worker.has.resize(config_.chunk_count);
    worker.kept.resize(config_.chunk_count);
    worker.closed.resize(config_.chunk_count);
  }
  for (std::vector<std::uint8_t>& sent : sent_)
    sent.resize(config_.last_step * config_.chunk_count);
}

// What it may have sent to the appliance that lives, the newest or a copy of something older.
bool RestartModel::may_send(const Worker& worker, Step step) const noexcept {
  if (!has_died_) return step <= worker.step;
  const bool knows = worker.place == Place::kKnows;
  if (mutated(Mutation::kSkipExchange) && worker.place == Place::kAccepted)
    return step == worker.step;
  const Step newest = mutated(Mutation::kSkipClosing) ? worker.step : on_wire(worker);
  return knows && step >= states_[0]->first_step() && step <= newest;
}

bool RestartModel::may_take(std::uint16_t rank, Step step, std::size_t chunk) const noexcept {
  const Worker& worker = workers_[rank];
  if (step != on_wire(worker) || step > config_.last_step) return false;
  const std::size_t at = (step - 1) * config_.chunk_count + chunk;
  if (worker.handed.is_here(static_cast<ChunkIndex>(chunk)))
    return sent_[1][at] && !worker.closed[chunk];
  if (worker.has[chunk]) return false;
  const bool old = mutated(Mutation::kTakeFromOld) || worker.place < Place::kAccepted;
  return (old && sent_[0][at]) || (worker.place == Place::kKnows && sent_[1][at]);
}

std::vector<RestartEvent> RestartModel::events() const {
  std::vector<RestartEvent> found;
  if (!has_died_) found.push_back({.kind = Kind::kDie});
  for (std::uint16_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    if (has_died_ && worker.place == Place::kFirst) found.push_back({Kind::kJoin, rank});
    if (worker.place == Place::kJoining) found.push_back({Kind::kAccept, rank});
    if (all_at(Place::kAccepted) && worker.place == Place::kAccepted)
      found.push_back({Kind::kLearn, rank});
    const bool asks = !has_died_ || worker.place == Place::kKnows;
    for (Step step = 1; step <= config_.last_step; ++step)
      for (std::size_t chunk = 0; chunk < config_.chunk_count; ++chunk) {
        if (asks && step == on_wire(worker)) found.push_back({Kind::kProbe, rank, step, chunk});
        if (has_died_ && box_ != nullptr && step <= worker.step)
          found.push_back({Kind::kOldPart, rank, step, chunk});
        if (may_take(rank, step, chunk)) found.push_back({Kind::kResult, rank, step, chunk});
        if (box_ != nullptr && may_send(worker, step))
          found.push_back({Kind::kPart, rank, step, chunk});
      }
  }
  return found;
}

std::string RestartModel::play(const RestartEvent& event) {
  Worker& worker = workers_[event.rank];
  std::string broken;
  switch (event.kind) {
    case Kind::kPart: broken = part(event); break;
    case Kind::kOldPart: broken = old_part(event); break;
    case Kind::kResult: take(event); break;
    case Kind::kProbe: broken = probe(event); break;
    case Kind::kDie:
      has_died_ = true;
      box_.reset();
      break;
    case Kind::kJoin:
      worker.place = Place::kJoining;
      worker.joined_in = worker.step;
      break;
    case Kind::kAccept: worker.place = Place::kAccepted; break;
    case Kind::kLearn: learn(event.rank); break;
  }
  if (event.kind == Kind::kJoin || event.kind == Kind::kAccept) broken = start();
  if (broken.empty() && box_ != nullptr) broken = box_->check_books();
  return broken;
}

bool RestartModel::all_at(Place place) const noexcept {
  return std::ranges::all_of(workers_,
                             [place](const Worker& worker) { return worker.place >= place; });
}

// When all joins are there the job goes on, and when all are accepted their states are broadcast,
// one a rank.
std::string RestartModel::start() {
  if (box_ == nullptr && all_at(Place::kJoining)) {
    agg::JobEntry entry;
    entry.members.resize(workers_.size());
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      entry.members[rank].change_to(agg::MemberPhase::kJoined);
      entry.members[rank].resume_step = workers_[rank].joined_in;
    }
    agg::Resumed resumed = entry.resumed();
    for (const Worker& worker : workers_)
      if (mutated(Mutation::kOpenTheNewest))
        resumed.step = std::max(resumed.step, worker.joined_in);
    const Cookie cookie = kCookies[mutated(Mutation::kKeepCookies) ? 0 : 1];
    box_ = std::make_unique<RestartBox>(config_, cookie, resumed);
  }
  if (!all_at(Place::kAccepted) || !states_.empty()) return {};
  const auto chunk_count = static_cast<ChunkIndex>(config_.chunk_count);
  for (std::uint16_t rank = 0; rank < workers_.size(); ++rank) {
    client::Resumption::State own{.step = workers_[rank].step, .results = {0}};
    for (std::size_t chunk = 0; chunk < config_.chunk_count; ++chunk)
      own.results[0] |= std::uint64_t{workers_[rank].has[chunk]} << chunk;
    states_.push_back(std::make_unique<client::Resumption>(
        config_.worker_count, Rank{rank}, chunk_count, box_->open_step(), std::move(own)));
  }
  for (const auto& sender : states_) {
    const std::vector<std::uint8_t> told(sender->buffer().begin(), sender->buffer().end());
    for (const auto& reader : states_) {
      std::ranges::copy(told, reader->buffer().begin());
      if (!reader->take()) return "a worker is in a step that it cannot be in";
    }
  }
  return {};
}

void RestartModel::learn(std::uint16_t rank) {
  Worker& worker = workers_[rank];
  const client::Resumption& known = *states_[rank];
  worker.place = Place::kKnows;
  client::HandedOver handed(known.first_step(), static_cast<ChunkIndex>(config_.chunk_count));
  bool any = false;
  for (ChunkIndex chunk = 0; chunk < config_.chunk_count; ++chunk) {
    if (!known.is_ahead() && !known.is_held(chunk)) continue;
    handed.add(chunk, known.has(chunk), known.gives(chunk));
    any = true;
  }
  if (any) worker.handed = std::move(handed);
}

// What the caller's memory holds: its part, until the result has overwritten it, until the next
// one.
Sum RestartModel::memory_of(std::uint16_t rank, Step step, std::size_t chunk) const noexcept {
  const Worker& worker = workers_[rank];
  if (step == worker.step && worker.has[chunk]) return whole(config_, step, chunk);
  return own_part(rank, step, chunk);
}

// What the worker sends to the appliance that lives.
Sum RestartModel::offer_of(std::uint16_t rank, Step step, std::size_t chunk) const noexcept {
  const Worker& worker = workers_[rank];
  if (worker.place == Place::kAccepted) return memory_of(rank, step, chunk);  // kSkipExchange
  if (worker.place != Place::kKnows || step != states_[rank]->first_step())
    return own_part(rank, step, chunk);
  const client::Resumption& known = *states_[rank];
  const auto index = static_cast<ChunkIndex>(chunk);
  if (!known.is_held(index)) return own_part(rank, step, chunk);
  if (mutated(Mutation::kAddToGiven) && !known.has(index)) return own_part(rank, step, chunk);
  const bool gives = known.gives(index) || (mutated(Mutation::kGiveTwice) && known.has(index));
  if (!gives) return {};
  if (mutated(Mutation::kForgetKept)) return memory_of(rank, worker.step, chunk);
  return whole(config_, worker.kept[chunk], chunk);
}

std::string RestartModel::part(const RestartEvent& event) {
  const Sum sum = offer_of(event.rank, event.step, event.chunk);
  const SlotContent before = box_->content(event.step, event.chunk);
  const bool open = event.step == box_->open_step();
  const Verdict verdict =
      box_->contribute(event.rank, kCookies[has_died_], event.step, event.chunk, sum);
  const bool is_new = open && !(before.mask >> event.rank & 1);
  const bool counts = verdict == Verdict::kFolded || verdict == Verdict::kNilFolded ||
                      verdict == Verdict::kCompleted;
  if (counts != is_new)
    return std::string(is_new ? "I4: a part is not counted: " : "I3: a part is counted twice: ") +
           std::string(label(verdict));
  const SlotContent after = box_->content(event.step, event.chunk);
  const bool completed = after.complete && !before.complete;
  if (completed != (verdict == Verdict::kCompleted)) return "I1: a slot closes too early or late";
  const std::uint64_t all = (std::uint64_t{1} << config_.worker_count) - 1;
  if (after.complete != (after.mask == all)) return "I1: a result without a worker";
  if (box_->sent().size() != (completed ? workers_.size() : 0))
    return "I2: not one result for each worker";
  for (const SentResult& result : box_->sent())
    if (std::string broken = take_sent(result); !broken.empty()) return broken;
  return {};
}

std::string RestartModel::old_part(const RestartEvent& event) {
  const Sum sum = own_part(event.rank, event.step, event.chunk);
  const Verdict verdict = box_->contribute(event.rank, kCookies[0], event.step, event.chunk, sum);
  if (verdict != Verdict::kBadCookie)
    return "I3: a part for the dead appliance is taken: " + std::string(label(verdict));
  return box_->sent().empty() ? "" : "I2: a part for the dead appliance is answered";
}

// A result whose bytes nobody wants has none.
Sum RestartModel::expected(Step step, std::size_t chunk) const noexcept {
  const bool handed = !states_.empty() && step == states_[0]->first_step();
  const auto has = [chunk](const auto& state) {
    return state->has(static_cast<ChunkIndex>(chunk));
  };
  if (handed && std::ranges::all_of(states_, has)) return {};
  return whole(config_, step, chunk);
}

std::string RestartModel::take_sent(const SentResult& result) {
  if (result.mask != (std::uint64_t{1} << config_.worker_count) - 1 ||
      result.k != config_.worker_count)
    return "I1: a result of other workers";
  if (result.sum != expected(result.step, result.chunk))
    return "I1, I2, I8: a result is another sum";
  const std::size_t at = (result.step - 1) * config_.chunk_count + result.chunk;
  sent_[has_died_][at] = 1;
  return {};
}

std::string RestartModel::probe(const RestartEvent& event) {
  const auto answer = box_->probe(event.rank, event.step, event.chunk);
  if (!answer) return "I4: a probe is not answered";
  if (answer->status != wire::AnswerStatus::kOpen) return "I4: what a worker needs is gone";
  const SlotContent held = box_->content(event.step, event.chunk);
  if ((answer->counted != 0) != ((held.mask >> event.rank & 1) != 0))
    return "an answer counts another part";
  if ((answer->complete != 0) != held.complete) return "an answer completes another chunk";
  if (box_->sent().size() != held.complete) return "I4: a probe does not bring the result";
  for (const SentResult& result : box_->sent())
    if (std::string broken = take_sent(result); !broken.empty()) return broken;
  return {};
}

void RestartModel::take(const RestartEvent& event) {
  Worker& worker = workers_[event.rank];
  if (worker.handed.is_here(static_cast<ChunkIndex>(event.chunk))) {
    worker.handed.close_one();
    worker.closed[event.chunk] = 1;
  } else {
    worker.has[event.chunk] = 1;
    worker.kept[event.chunk] = event.step;
  }
  advance(worker);
}

void RestartModel::advance(Worker& worker) const noexcept {
  if (worker.handed.any()) {
    if (!worker.handed.is_over()) return;
    if (worker.handed.step() < worker.step) {  // the others have what they lacked
      worker.handed = {};
      return;
    }
  }
  if (!std::ranges::all_of(worker.has, [](std::uint8_t one) { return one != 0; })) return;
  worker.handed = {};
  ++worker.step;
  std::ranges::fill(worker.has, std::uint8_t{0});
}

bool RestartModel::finished() const {
  return std::ranges::all_of(workers_, [this](const Worker& worker) {
    return worker.step > config_.last_step && !worker.handed.any();
  });
}

int RestartModel::progress() const {
  int total = has_died_ ? 1000 : 0;  // more than all that the dead one had
  for (Step step = 1; step <= config_.last_step && box_ != nullptr; ++step)
    for (std::size_t chunk = 0; chunk < config_.chunk_count; ++chunk)
      total += std::popcount(box_->content(step, chunk).mask);
  for (const Worker& worker : workers_) {
    total +=
        static_cast<int>(worker.place) + static_cast<int>(worker.step * (config_.chunk_count + 1));
    for (std::size_t chunk = 0; chunk < config_.chunk_count; ++chunk)
      total += worker.has[chunk] + worker.closed[chunk];
  }
  return total;
}

// Chunks are alike, with their shards: what belongs to one stands together. Ranks are not, as the
// first one gives.
std::string RestartModel::key() const {
  std::vector<std::uint32_t> packed{has_died_};
  for (const Worker& worker : workers_)
    packed.push_back(static_cast<std::uint32_t>(worker.place) | worker.step << 4 |
                     worker.joined_in << 8 | std::uint32_t{worker.handed.any()} << 12);
  for (const auto& state : states_)
    packed.push_back(state->first_step() << 1 | std::uint32_t{state->is_ahead()});
  std::vector<std::vector<std::uint32_t>> chunks(config_.chunk_count);
  for (ChunkIndex chunk = 0; chunk < config_.chunk_count; ++chunk) {
    std::vector<std::uint32_t>& own = chunks[chunk];
    for (const Worker& worker : workers_)
      own.push_back(worker.has[chunk] | std::uint32_t{worker.closed[chunk]} << 1 |
                    worker.kept[chunk] << 2);
    for (const auto& state : states_)
      own.push_back(std::uint32_t{state->has(chunk)} | std::uint32_t{state->gives(chunk)} << 1 |
                    std::uint32_t{state->is_held(chunk)} << 2);
    for (std::size_t at = chunk; at < sent_[0].size(); at += config_.chunk_count)
      own.push_back(sent_[0][at] | std::uint32_t{sent_[1][at]} << 1);
    if (box_ != nullptr) box_->append_to(own, chunk);
  }
  std::ranges::sort(chunks);
  for (const std::vector<std::uint32_t>& own : chunks)
    packed.insert(packed.end(), own.begin(), own.end());
  return {reinterpret_cast<const char*>(packed.data()), packed.size() * sizeof(packed[0])};
}

}  // namespace sluice::exhaustive

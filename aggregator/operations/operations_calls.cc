// Calls, floors and judgements (shard 0), and what the control side has every shard do.
#include <algorithm>
#include <bit>

#include "aggregator/operations/operations.h"

namespace sluice::agg {

Verdict OperationShard::call(Rank rank, const wire::Call& body) noexcept {
  if (shard_.value != 0) return Verdict::kWrongShard;
  Sender sender;
  if (const Verdict why = enter(rank, body.group, sender); !ok(why)) return why;
  Group& group = *sender.group;
  const wire::Description& what = body.what;
  if (wire::sequence_of(what, group.members.size()) != sender.id) return Verdict::kBadField;
  if (wire::has_root(what.kind) &&
      (what.root >= spec_.world_size || group.place_of[what.root] == Group::kNoPlace))
    return Verdict::kBadField;
  const std::uint64_t number = group.calls.number_of(what.number);
  const Verdict verdict = group.calls.call(sender.place, number, what);
  group.calls.hear(sender.place, number, what, body.heard, body.heard_rank);
  want_slots(group, sender.id, first_slots(spec_.shard_count));
  Calls::Operation* const operation = group.calls.find(number);
  if (body.request == wire::CallRequest::kCancel && operation != nullptr &&
      operation->cancelled_by == wire::kNoRank)
    operation->cancelled_by = rank.value;
  // Whoever calls what is over already is told at once.
  if (body.request != wire::CallRequest::kTell || verdict == Verdict::kCollectiveMismatch ||
      !group.calls.broken().open() || (operation != nullptr && !operation->open()))
    ask(sender, number, what);
  if (verdict == Verdict::kCollectiveMismatch) {  // each asks about what it waits for
    for (std::uint16_t place = 0; place < group.members.size(); ++place)
      if (group.calls.lives(place)) ask({.group = &group, .place = place}, number, operation->what);
    ask(sender, number, what);
  }
  follow_resumption(group);
  return verdict == Verdict::kDuplicate || verdict == Verdict::kTooOld ? Verdict::kCall : verdict;
}

Verdict OperationShard::floors(Rank rank, const wire::Floors& body) noexcept {
  if (shard_.value != 0) return Verdict::kWrongShard;
  Sender sender;
  if (const Verdict why = enter(rank, body.group, sender); !ok(why)) return why;
  if (body.stopped == 0) return Verdict::kFloors;
  want_slots(*sender.group, sender.id, body.wanted_slots);
  sender.group->floors.stop(sender.place, sender.id, sender.sequence->floor);
  note_due(*sender.group);
  return Verdict::kFloors;
}

// Slots double until there are as many, or the job has no more.
void OperationShard::want_slots(Group& group, wire::Sequence id, std::uint32_t wanted) noexcept {
  const auto index = static_cast<std::size_t>(id);
  group.postponed[index] = group.calls.resuming();
  if (group.postponed[index]) return;
  const std::uint32_t slots = group.slots[index].load(std::memory_order_relaxed);
  if (slots >= wanted || group.asked_slots[index] != 0 || group.refused[index]) return;
  if (slots > (std::uint32_t{1} << 30)) return;
  group.asked_slots[index] = slots == 0 ? first_slots(spec_.shard_count) : 2 * slots;
  group.growing[index].store(spec_.shard_count, std::memory_order_relaxed);
  request({.kind = OperationsRequest::Kind::kReserve,
           .group = &group,
           .sequence = id,
           .slots = group.asked_slots[index]});
}

// ---- what became of operations ----

void OperationShard::ask(const Sender& sender, std::uint64_t number,
                         const wire::Description& what) noexcept {
  Asks& asks = sender.group->asks[sender.place];
  std::uint8_t at = 0;
  while (at < asks.count && asks.asks[at].number != number) ++at;
  if (at == asks.count && asks.count == asks.asks.size()) return;  // it asks again
  asks.asks[at] = {.number = number, .what = what};
  asks.count = std::max<std::uint8_t>(asks.count, static_cast<std::uint8_t>(at + 1));
  make_due(*sender.group, sender.place);
}

// False: it waits for a judgement, or for what members were told at an appliance that is lost.
bool OperationShard::answer(Group& group, std::uint16_t place, const Asks::Ask& ask,
                            GroupNotice& notice) noexcept {
  if (group.calls.resuming()) return false;
  Calls::Operation* const operation = group.calls.find(ask.number);
  const wire::Sequence id = wire::sequence_of(ask.what, group.members.size());
  const auto index = static_cast<std::size_t>(id);
  Fate fate;
  if (operation != nullptr && operation->what != ask.what) {
    // The first in which a member disagrees tells it why. Of the others, whose chunks it counts
    // differently, those that have ended have done so for all.
    const bool over = !operation->open() && operation->code != wire::OutcomeCode::kCompleted;
    fate = over && ask.number != group.calls.noted(place) ? group.calls.fate_of(*operation)
                                                          : group.calls.broken();
  } else if (group.refused[index] && group.slots[index].load(std::memory_order_relaxed) == 0) {
    fate.code = wire::OutcomeCode::kNoMemory;
  } else if (operation != nullptr) {
    if (group.calls.wants_judgement(*operation)) return false;
    fate = group.calls.fate_of(*operation);
  } else if (ask.number >= group.calls.called_by_all()) {
    fate = group.calls.broken();  // nobody has sent anything for it
  }
  notice.group = &group;
  notice.sequence = id;
  notice.is_outcome = true;
  notice.outcome = {.number = static_cast<std::uint32_t>(ask.number),
                    .called_by_all = static_cast<std::uint32_t>(group.calls.called_by_all()),
                    .expected = fate.code == wire::OutcomeCode::kDiffers ? fate.expected : ask.what,
                    .actual = fate.actual,
                    .rank = fate.rank,
                    .other = fate.other,
                    .code = fate.code};
  notice.outcome.behind_count =
      static_cast<std::uint8_t>(group.calls.find_behind(ask.number, notice.behind));
  return true;
}

// Has the next operation judged whose turn it is, unless one is.
void OperationShard::judge(Group& group) noexcept {
  const Calls::Operation* const operation = group.calls.begin_judgement();
  if (operation == nullptr) return;
  const wire::Description& what = operation->what;
  const wire::Sequence id = wire::sequence_of(what, group.members.size());
  const std::uint64_t first = wire::unwrap(what.first, slice_of(group, id).floor);
  group.incomplete.store(0, std::memory_order_relaxed);
  group.holding.store(spec_.shard_count, std::memory_order_relaxed);
  request({.kind = OperationsRequest::Kind::kHold,
           .group = &group,
           .sequence = id,
           .first = first,
           .end = first + wire::Cut(what, group.members.size(), spec_.chunk_bytes).chunk_count(),
           .hash = wire::hash_of(what, group.id, group.generation)});
}

bool OperationShard::has_notice(Rank rank) const noexcept {
  return std::ranges::any_of(due_[rank.value], [](std::uint64_t word) { return word != 0; });
}

// A group stays due while it has more for the rank.
bool OperationShard::poll_notice(Rank rank, GroupNotice& notice) noexcept {
  for (std::size_t word = 0; word < due_[rank.value].size(); ++word) {
    std::uint64_t& due = due_[rank.value][word];
    for (; due != 0; due &= due - 1) {
      Group& group = *groups_[64 * word + static_cast<std::size_t>(std::countr_zero(due))];
      const std::uint16_t place = group.place_of[rank.value];
      notice = {.group = &group, .floor = {}, .outcome = {}};
      if (group.floors.due(place)) {
        bool asked = false;
        notice.sequence = group.floors.take_due(place, asked);
        notice.floor.stopped = asked;
        return true;
      }
      Asks& asks = group.asks[place];
      for (std::uint8_t i = 0; i < asks.count; ++i) {
        if (!answer(group, place, asks.asks[i], notice)) continue;
        asks.asks[i] = asks.asks[--asks.count];
        return true;
      }
      if (asks.count != 0) judge(group);
    }
  }
  return false;
}

void OperationShard::make_due(const Group& group, std::uint16_t place) noexcept {
  const Rank rank = group.members[place];
  if (!has_notice(rank)) {
    CHECK(noticed_count_ < noticed_.size() || std::ranges::find(noticed_, rank) != noticed_.end());
    const auto end = noticed_.begin() + static_cast<std::ptrdiff_t>(noticed_count_);
    if (std::find(noticed_.begin(), end, rank) == end) noticed_[noticed_count_++] = rank;
  }
  due_[rank.value][group.id / 64] |= std::uint64_t{1} << group.id % 64;
}

void OperationShard::note_due(Group& group) noexcept {
  for (std::uint16_t place = 0; place < group.members.size(); ++place)
    if (group.floors.due(place)) make_due(group, place);
}

bool OperationShard::poll_noticed(Rank& rank) noexcept {
  if (noticed_count_ == 0) return false;
  rank = noticed_[--noticed_count_];
  return true;
}

// ---- the control side ----

void OperationShard::request(const OperationsRequest& request) noexcept {
  CHECK(request_count_ < requests_.size());
  requests_[(request_head_ + request_count_++) % requests_.size()] = request;
}

bool OperationShard::poll_request(OperationsRequest& request) noexcept {
  while (request_count_ != 0) {
    request = requests_[request_head_];
    request_head_ = (request_head_ + 1) % requests_.size();
    --request_count_;
    if (request.group != nullptr) return true;  // else it is removed
  }
  return false;
}

void OperationShard::add(Group& group) noexcept {
  CHECK(group.id < groups_.size() && groups_[group.id] == nullptr);
  groups_[group.id] = &group;
}

void OperationShard::remove(Group& group) noexcept {
  CHECK(groups_[group.id] == &group);
  for (std::size_t id = 0; id < wire::kSequenceCount; ++id) {
    const SequenceSlice& slice = slice_of(group, static_cast<wire::Sequence>(id));
    const std::uint64_t first = slice.floor / kChunksPerBlock;
    for (std::uint64_t block = first; block <= first + slice.slots / kChunksPerBlock; ++block)
      pool_.release(
          {.group = group.id, .sequence = static_cast<wire::Sequence>(id), .block = block});
  }
  for (auto& due : due_) due[group.id / 64] &= ~(std::uint64_t{1} << group.id % 64);
  for (OperationsRequest& request : requests_)
    if (request.group == &group) request.group = nullptr;
  groups_[group.id] = nullptr;
  group.serving.fetch_sub(1, std::memory_order_acq_rel);
}

void OperationShard::remove_member(Rank rank, Group* one,
                                   std::optional<std::uint32_t> called) noexcept {
  if (shard_.value != 0) return;  // the others hold what shard 0 has judged
  if (one == nullptr) {
    for (Group* const each : groups_)
      if (each != nullptr && each->place_of[rank.value] != Group::kNoPlace)
        remove_member(rank, each);
    return;
  }
  Group& group = *one;
  const std::uint16_t gone = group.place_of[rank.value];
  CHECK(gone != Group::kNoPlace);
  if (!group.calls.lives(gone)) return;
  if (called)
    group.calls.leave(gone, group.calls.number_of(*called));
  else
    group.calls.remove(gone);
  group.floors.remove(gone);
  group.asks[gone].count = 0;
  due_[rank.value][group.id / 64] &= ~(std::uint64_t{1} << group.id % 64);
  for (std::size_t id = 0; id < wire::kSequenceCount; ++id) {
    const auto sequence = static_cast<wire::Sequence>(id);
    const std::uint64_t least = group.floors.least(sequence);
    if (least != UINT64_MAX && least > slice_of(group, sequence).floor)
      raise(group, sequence, least);
  }
  if (group.calls.broken().open()) return follow_resumption(group);
  // Everybody is told by its newest operation, and asks about the others.
  for (std::uint16_t place = 0; place < group.members.size(); ++place) {
    const std::uint64_t next = group.calls.next_of(place);
    if (!group.calls.lives(place) || next == 0) continue;
    if (const Calls::Operation* const newest = group.calls.find(next - 1))
      ask({.group = &group, .place = place}, next - 1, newest->what);
  }
  follow_resumption(group);
}

void OperationShard::grow(Group& group, wire::Sequence sequence, std::uint32_t slots) noexcept {
  const auto index = static_cast<std::size_t>(sequence);
  SequenceSlice& slice = slice_of(group, sequence);
  if (slots == 0) {
    if (shard_.value != 0) return;
    group.asked_slots[index] = 0;
    group.refused[index] = true;
    for (std::uint16_t place = 0; place < group.members.size(); ++place)
      if (group.asks[place].count != 0) make_due(group, place);
    return;
  }
  CHECK(slots >= slice.slots && slots % (kChunksPerBlock * spec_.shard_count) == 0);
  slice.slots = slots;
  if (group.growing[index].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  group.slots[index].store(slots, std::memory_order_release);
  request({.kind = OperationsRequest::Kind::kSettled, .group = &group, .sequence = sequence});
}

// From now on the chunks that are not complete never will be.
void OperationShard::hold(const OperationsRequest& request) noexcept {
  Group& group = *request.group;
  SequenceSlice& slice = slice_of(group, request.sequence);
  if (!all_complete(request)) {
    group.incomplete.fetch_add(1, std::memory_order_relaxed);
    // A range that is not over was called by all, and so were the many after it.
    if (slice.held_count == slice.held.size()) --slice.held_count;
    slice.held[slice.held_count++] = {.first = request.first, .end = request.end};
  }
  if (group.holding.fetch_sub(1, std::memory_order_acq_rel) == 1)
    this->request(
        {.kind = OperationsRequest::Kind::kSettled, .group = &group, .sequence = request.sequence});
}

// A chunk that is complete with another hash is another operation's, of a member that disagrees.
bool OperationShard::all_complete(const OperationsRequest& request) noexcept {
  const SequenceSlice& slice = slice_of(*request.group, request.sequence);
  std::uint32_t page = SlotPool::kNone;
  std::uint64_t found = UINT64_MAX;
  for (std::uint64_t chunk = std::max(request.first, slice.floor); chunk < request.end; ++chunk) {
    const std::uint64_t block = chunk / kChunksPerBlock;
    if (!spec_.owns(shard_, block)) {
      chunk |= kChunksPerBlock - 1;
      continue;
    }
    if (block != found) {
      page = pool_.find({.group = request.group->id, .sequence = request.sequence, .block = block});
      found = block;
    }
    if (page == SlotPool::kNone) return false;
    const PartSlot& slot = pool_.slot(page + static_cast<std::uint32_t>(chunk % kChunksPerBlock));
    if (slot.state != PartState::kComplete || slot.hash != request.hash) return false;
  }
  return true;
}

// Shard 0 tells members what all shards have done.
void OperationShard::settled(Group& group) noexcept {
  if (shard_.value != 0) return;
  for (std::size_t index = 0; index < wire::kSequenceCount; ++index) {
    if (group.asked_slots[index] == 0 ||
        group.slots[index].load(std::memory_order_acquire) != group.asked_slots[index])
      continue;
    group.asked_slots[index] = 0;
    const auto sequence = static_cast<wire::Sequence>(index);
    const SequenceSlice& slice = slice_of(group, sequence);
    if (group.floors.announce(sequence, slice.floor, slice.slots, true)) note_due(group);
  }
  if (group.calls.judging() && group.holding.load(std::memory_order_acquire) == 0)
    group.calls.end_judgement(group.incomplete.load(std::memory_order_relaxed) == 0);
  follow_resumption(group);
  for (std::uint16_t place = 0; place < group.members.size(); ++place)
    if (group.asks[place].count != 0) make_due(group, place);
}

}  // namespace sluice::agg

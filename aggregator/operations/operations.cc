#include "aggregator/operations/operations.h"

#include <algorithm>
#include <bit>

#include "aggregator/core/fold.h"
#include "aggregator/core/mask.h"

namespace sluice::agg {
namespace {

// Of a group at once: a reservation a sequence, a judgement, and as many that are settled.
constexpr std::size_t kRequests = kMaxGroups * 2 * (wire::kSequenceCount + 1);

constexpr std::uint64_t last_of_block(std::uint64_t chunk) noexcept {
  return chunk | (kChunksPerBlock - 1);
}

// Adds the part of a place if all of lower places are in the sum, and then those that have waited
// for it. Who is in, and not in the sum, waits.
void fold_in_turn(SlotPool& pool, std::size_t member_count, std::uint32_t index,
                  std::uint16_t place, std::span<const std::uint8_t> payload) noexcept {
  PartSlot& slot = pool.slot(index);
  CHECK(slot.next_place <= place);
  if (slot.next_place < place) return pool.keep_early(index, place, payload);
  const std::size_t elem_count = payload.size() / dtype_bytes(slot.wire);
  std::array<const std::uint8_t*, kAddendsPerPass> addends;
  std::size_t count = 0;
  bool begun = place != 0;
  for (const std::uint8_t* next = payload.data(); next != nullptr;) {
    addends[count++] = next;
    const Rank turn{++slot.next_place};
    const bool waits = turn.value < member_count && test_bit(pool.mask_of(index), turn);
    next = waits ? pool.early_of(index, turn.value) : nullptr;
    if (next != nullptr && count < addends.size()) continue;
    fold_several(pool.data_of(index), begun, {addends.data(), count}, elem_count, slot.wire);
    begun = true;
    count = 0;
  }
}

}  // namespace

OperationShard::OperationShard(const OperationsSpec& spec, ShardId shard, BuildProgress* progress)
    : spec_(spec),
      shard_(shard),
      mask_word_count_(mask_words(spec.world_size)),
      pool_(spec, progress),
      due_(spec.world_size),
      noticed_(spec.world_size),
      requests_(kRequests) {
  CHECK(shard.value < spec.shard_count && spec.world_size <= kMaxWorkers);
}

std::size_t OperationShard::memory_bytes(const OperationsSpec& spec) noexcept {
  return sizeof(OperationShard) + kRequests * sizeof(OperationsRequest) +
         spec.world_size * (sizeof(std::array<std::uint64_t, kMaxGroups / 64>) + sizeof(Rank)) +
         SlotPool::memory_bytes(spec);
}

// ---- what all packets have in common ----

Verdict OperationShard::enter(Rank rank, const wire::GroupHeader& header, Sender& sender) noexcept {
  DCHECK(rank.value < spec_.world_size);
  Group* const group = find(header.group);
  if (group == nullptr || group->place_of[rank.value] == Group::kNoPlace)
    return Verdict::kUnknownGroup;
  if (header.generation != group->generation) return Verdict::kOtherGeneration;
  sender = {.group = group,
            .place = group->place_of[rank.value],
            .id = header.sequence,
            .sequence = &slice_of(*group, header.sequence)};
  const std::uint64_t told = wire::unwrap(header.group_floor, sender.sequence->floor);
  if (told > sender.sequence->floor && told - sender.sequence->floor < wire::kMaxOperationChunks)
    raise(*group, sender.id, told);
  if (shard_.value == 0) note_floor(sender, header.floor);
  return Verdict::kAccepted;
}

// A floor further than a member can have come is a forgery, or of a member that knows of more slots
// than this shard: what it may be is noted.
void OperationShard::note_floor(const Sender& sender, std::uint32_t floor) noexcept {
  Floors& floors = sender.group->floors;
  const std::uint64_t group_floor = sender.sequence->floor;
  const std::uint64_t before = floors.of(sender.place, sender.id);
  const std::uint64_t told =
      std::min(wire::unwrap(floor, group_floor), group_floor + sender.sequence->slots);
  if (!sender.group->calls.lives(sender.place) || !floors.note(sender.place, sender.id, told))
    return;
  if (before > group_floor) return;
  const std::uint64_t least = floors.least(sender.id);
  if (least > group_floor) raise(*sender.group, sender.id, least);
}

// Everybody has what is below: its pages are free again.
void OperationShard::raise(Group& group, wire::Sequence id, std::uint64_t floor) noexcept {
  SequenceSlice& slice = slice_of(group, id);
  DCHECK(floor > slice.floor);
  std::uint64_t block = slice.floor / kChunksPerBlock;
  // Those that can have pages.
  const std::uint64_t end =
      std::min(floor / kChunksPerBlock, block + slice.slots / kChunksPerBlock + 1);
  for (; block < end; ++block)
    if (spec_.owns(shard_, block))
      pool_.release({.group = group.id, .sequence = id, .block = block});
  slice.floor = floor;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < slice.held_count; ++i)
    if (slice.held[i].end > floor) slice.held[kept++] = slice.held[i];
  slice.held_count = kept;
  if (shard_.value == 0 && group.floors.announce(id, floor, slice.slots, false)) note_due(group);
}

// ---- parts ----

// Checks the whole part before it fixes anything.
Verdict OperationShard::check_part(const Sender& sender, const wire::Part& body,
                                   std::uint64_t chunk) const noexcept {
  const SequenceSlice& slice = *sender.sequence;
  if (chunk < slice.floor) return Verdict::kTooOld;
  if (last_of_block(chunk) >= slice.floor + slice.slots) return Verdict::kTooNew;
  if (!spec_.owns(shard_, chunk / kChunksPerBlock)) return Verdict::kWrongShard;
  if (body.payload_bytes > spec_.chunk_bytes) return Verdict::kShapeMismatch;
  if (!wire::has_owner(body.kind)) return Verdict::kAccepted;
  if (body.owner >= spec_.world_size || sender.group->place_of[body.owner] == Group::kNoPlace)
    return Verdict::kShapeMismatch;
  return wire::needs_all(body.kind) || body.given != 0 ||
                 sender.group->members[sender.place].value == body.owner
             ? Verdict::kAccepted
             : Verdict::kNotAllowed;
}

Verdict OperationShard::part(Rank rank, const wire::Part& body,
                             std::span<const std::uint8_t> payload) noexcept {
  Sender sender;
  if (const Verdict why = enter(rank, body.group, sender); !ok(why)) return why;
  const std::uint64_t chunk = wire::unwrap(body.chunk, sender.sequence->floor);
  if (const Verdict why = check_part(sender, body, chunk); !ok(why)) return why;
  const BlockKey key{
      .group = sender.group->id, .sequence = sender.id, .block = chunk / kChunksPerBlock};
  std::uint32_t index = pool_.find(key);
  const bool held = sender.sequence->held_count != 0 && sender.sequence->holds(chunk);
  if (index == SlotPool::kNone) {
    if (held) return Verdict::kNotAllowed;
    index = pool_.take(key, *sender.group);
  }
  index += static_cast<std::uint32_t>(chunk % kChunksPerBlock);
  PartSlot& slot = pool_.slot(index);
  const Rank bit{sender.place};
  if (slot.state != PartState::kEmpty) {
    if (slot.hash != body.hash) return Verdict::kCollectiveMismatch;
    if (slot.kind != body.kind || slot.wire != body.wire || slot.owner != body.owner ||
        slot.reduction != body.reduction || slot.payload_bytes != body.payload_bytes)
      return Verdict::kShapeMismatch;
    if (test_bit(pool_.mask_of(index), bit)) return Verdict::kDuplicate;
    if (slot.state == PartState::kComplete) return Verdict::kLate;
  }
  if (held) return Verdict::kNotAllowed;
  if (body.given != 0) {  // it takes the place of what has been summed anew
    slot.state = PartState::kEmpty;
    slot.given = true;
    std::fill_n(pool_.mask_of(index), mask_word_count_, std::uint64_t{0});
  }
  fold(sender, body, index, payload);
  slot.priority = std::min(slot.priority, body.flow.priority);
  set_bit(pool_.mask_of(index), bit);
  ++slot.count;
  if (!slot.given && wire::needs_all(slot.kind) && slot.count < sender.group->members.size())
    return Verdict::kFolded;
  complete(*sender.group, index);
  return Verdict::kCompleted;
}

void OperationShard::fold(const Sender& sender, const wire::Part& body, std::uint32_t index,
                          std::span<const std::uint8_t> payload) noexcept {
  PartSlot& slot = pool_.slot(index);
  const std::size_t elem_count = payload.size() / dtype_bytes(body.wire);
  DCHECK(payload.size() == body.payload_bytes);
  const bool begins = slot.state == PartState::kEmpty;
  if (begins) {
    slot.state = PartState::kOpen;
    slot.hash = body.hash;
    slot.owner = body.owner;
    slot.kind = body.kind;
    slot.wire = body.wire;
    slot.reduction = body.reduction;
    slot.payload_bytes = body.payload_bytes;
  }
  if (spec_.reproducible && wire::is_reduction(slot.kind) && !slot.given && elem_count != 0) {
    fold_in_turn(pool_, sender.group->members.size(), index, sender.place, payload);
  } else if (begins) {
    fold_store(pool_.data_of(index), payload.data(), elem_count, body.wire);
  } else if (elem_count != 0) {
    fold_add(pool_.data_of(index), payload.data(), elem_count, body.wire);
  }
}

// The sum of float32 travels undivided; a mean of a narrower format is divided here.
void OperationShard::complete(const Group& group, std::uint32_t index) noexcept {
  PartSlot& slot = pool_.slot(index);
  CHECK(slot.state == PartState::kOpen);
  const bool divides = slot.reduction == wire::Reduction::kMean && !slot.given;
  const std::uint64_t weight = divides ? group.members.size() : 1;
  float* const data = pool_.data_of(index);
  const Finished finished = finish(data, slot.payload_bytes / dtype_bytes(slot.wire), weight,
                                   slot.wire, reinterpret_cast<std::uint8_t*>(data));
  slot.finite = finished.finite;
  slot.payload_sum = finished.sum.value;
  slot.state = PartState::kComplete;
  slot.next_place = 0;
  pool_.enqueue(index);
}

// ---- probes ----

Verdict OperationShard::probe(Rank rank, const wire::PartProbe& body) noexcept {
  Sender sender;
  if (const Verdict why = enter(rank, body.group, sender); !ok(why)) return why;
  if (body.first % kChunksPerBlock != 0) return Verdict::kBadChunk;
  const std::uint64_t first = wire::unwrap(body.first, sender.sequence->floor);
  return spec_.owns(shard_, first / kChunksPerBlock) ? Verdict::kProbe : Verdict::kWrongShard;
}

OperationShard::BlockState OperationShard::block_state(const Group& group, wire::Sequence sequence,
                                                       std::uint32_t first, Rank rank) noexcept {
  const SequenceSlice& slice =
      group.slices[shard_.value].sequences[static_cast<std::size_t>(sequence)];
  const std::uint64_t from = wire::unwrap(first, slice.floor);
  const std::uint32_t page =
      pool_.find({.group = group.id, .sequence = sequence, .block = from / kChunksPerBlock});
  const Rank place{group.place_of[rank.value]};
  BlockState state;
  for (std::uint32_t i = 0; i < kChunksPerBlock; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    const bool complete =
        page != SlotPool::kNone && pool_.slot(page + i).state == PartState::kComplete;
    if (from + i < slice.floor ||
        (page != SlotPool::kNone && test_bit(pool_.mask_of(page + i), place)))
      state.counted |= bit;
    if (!complete) continue;
    state.priority = std::max(state.priority, pool_.slot(page + i).priority);
    if (!pool_.slot(page + i).queued) state.complete |= bit;
  }
  return state;
}

bool OperationShard::read(const Group& group, wire::Sequence sequence, std::uint32_t first,
                          std::uint32_t index, Rank rank, PartOut& out) noexcept {
  const SequenceSlice& slice =
      group.slices[shard_.value].sequences[static_cast<std::size_t>(sequence)];
  const std::uint32_t page =
      pool_.find({.group = group.id,
                  .sequence = sequence,
                  .block = wire::unwrap(first, slice.floor) / kChunksPerBlock});
  if (page == SlotPool::kNone || pool_.slot(page + index).state != PartState::kComplete)
    return false;
  out = part_out(page + index, rank);
  return true;
}

// ---- results ----

PartOut OperationShard::part_out(std::uint32_t index, Rank rank) noexcept {
  const PartSlot& slot = pool_.slot(index);
  return {.group = &pool_.group_of(index),
          .sequence = pool_.key_of(index).sequence,
          .chunk = pool_.chunk_of(index),
          .hash = slot.hash,
          .rank = rank,
          .priority = slot.priority,
          .finite = slot.finite,
          .divided = slot.given && slot.reduction == wire::Reduction::kMean &&
                     slot.wire == Dtype::kFloat32,
          .payload_sum = slot.payload_sum,
          .payload = pool_.payload_of(index)};
}

bool OperationShard::poll_result(PartOut& out) noexcept {
  while (!pool_.queue_empty()) {
    const std::uint32_t index = pool_.queue_head();
    PartSlot& slot = pool_.slot(index);
    const Group& group = pool_.group_of(index);
    while (slot.next_place < group.members.size()) {
      const Rank rank = group.members[slot.next_place++];
      if (!wire::wants_result(slot.kind, rank.value == slot.owner)) continue;
      if (slot.given &&
          test_bit(pool_.mask_of(index), Rank{static_cast<std::uint16_t>(slot.next_place - 1)}))
        continue;  // it has given it
      out = part_out(index, rank);
      return true;
    }
    pool_.dequeue(index);
  }
  return false;
}

wire::GroupState OperationShard::state_for(const Group& group, wire::Sequence sequence,
                                           Rank rank) noexcept {
  const auto index = static_cast<std::size_t>(sequence);
  const std::uint64_t floor = group.slices[shard_.value].sequences[index].floor;
  const std::uint16_t place = group.place_of[rank.value];
  if (shard_.value == 0) groups_[group.id]->floors.told(place, sequence, floor);
  return {.generation = group.generation,
          .floor = static_cast<std::uint32_t>(floor),
          .slots = group.slots[index].load(std::memory_order_acquire),
          .noted = shard_.value == 0 ? static_cast<std::uint32_t>(group.calls.noted(place)) : 0,
          .group = group.id,
          .sequence = sequence,
          .ended = shard_.value == 0 ? group.calls.ended() : std::uint8_t{0}};
}

}  // namespace sluice::agg

#include "client/core/operations/operations.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

const wire::GroupState* state_of(const wire::Packet& packet) noexcept {
  switch (packet.type()) {
    case wire::PacketType::kPartResult: return &packet.body<wire::PartResult>().group;
    case wire::PacketType::kPartAnswer: return &packet.body<wire::PartAnswer>().group;
    case wire::PacketType::kFloor: return &packet.body<wire::Floor>().group;
    case wire::PacketType::kOutcome: return &packet.body<wire::Outcome>().group;
    default: return nullptr;
  }
}

}  // namespace

Operations::Operations(Link& link, std::uint16_t chunk_bytes, bool survives)
    : link_(link), chunk_bytes_(chunk_bytes), survives_(survives) {}

Group& Operations::make(std::string name, std::vector<Rank> ranks, std::string error_prefix,
                        std::uint64_t first_chunk) {
  CHECK(link_.joined());
  const auto own = std::ranges::lower_bound(ranks, Rank{link_.identity.rank});
  CHECK(own != ranks.end() && own->value == link_.identity.rank);
  const auto place = static_cast<std::uint16_t>(own - ranks.begin());
  groups_.push_back(std::make_unique<Group>(GroupFacts{.members = std::move(ranks),
                                                       .place = place,
                                                       .chunk_bytes = chunk_bytes_,
                                                       .survives = survives_},
                                            std::move(name), std::move(error_prefix), link_,
                                            first_chunk));
  return *groups_.back();
}

void Operations::remove(const Group& group) {
  CHECK(group.open_count() == 0);
  std::erase_if(groups_, [&](const auto& one) { return one.get() == &group; });
}

Group* Operations::find(std::uint16_t id) noexcept {
  for (const auto& group : groups_)
    if (group->is_made() && group->facts().id == id) return group.get();
  return nullptr;
}

void Operations::lose_appliance() {
  for (const auto& group : groups_) group->lose_appliance();
}

// ---- what arrives ----

std::optional<std::uint16_t> Operations::shard_of(const wire::Packet& packet) noexcept {
  const wire::GroupState* const state = state_of(packet);
  Group* const group = state != nullptr ? find(state->group) : nullptr;
  if (group == nullptr) return {};
  const std::uint64_t near =
      group->sequences()[static_cast<std::size_t>(state->sequence)].group_floor();
  std::uint32_t chunk = 0;
  if (packet.type() == wire::PacketType::kPartResult)
    chunk = packet.body<wire::PartResult>().chunk;
  else if (packet.type() == wire::PacketType::kPartAnswer)
    chunk = packet.body<wire::PartAnswer>().first;
  else
    return std::uint16_t{0};
  return static_cast<std::uint16_t>(wire::unwrap(chunk, near) / kChunksPerBlock %
                                    link_.shard_count());
}

Verdict Operations::handle(const wire::Packet& packet, std::uint16_t shard, TimeNs now) {
  const wire::GroupState* const state = state_of(packet);
  Group* const group = state != nullptr ? find(state->group) : nullptr;
  return group == nullptr ? Verdict::kUnknownGroup : group->handle(packet, shard, now);
}

// A gap concerns those that have something out; where none has, the first that is used accepts it.
void Operations::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
  bool has_out = false;
  for (const auto& group : groups_)
    for (const Sequence& sequence : group->sequences())
      has_out |= group->is_made() && sequence.outstanding(shard);
  bool accepts = !has_out;
  for (const auto& group : groups_)
    for (Sequence& sequence : group->sequences()) {
      if (!group->is_made() || !sequence.in_use()) continue;
      Flow::LossSignals mine = signals;
      mine.gap &= sequence.outstanding(shard) || std::exchange(accepts, false);
      sequence.hint(shard, mine, now);
    }
}

void Operations::lose(std::uint16_t shard, std::uint32_t number) noexcept {
  for (const std::unique_ptr<Group>& group : groups_)
    for (Sequence& sequence : group->sequences())
      if (group->is_made()) sequence.lose(shard, number);
}

void Operations::recover(std::uint16_t shard, TimeNs now) noexcept {
  for (const auto& group : groups_)
    for (Sequence& sequence : group->sequences()) {
      if (!group->is_made() || !sequence.in_use()) continue;
      sequence.confirm_arrived(shard);
      sequence.work(shard, now);
    }
}

// ---- what leaves ----

bool Operations::poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                            TimeNs now) noexcept {
  for (const auto& group : groups_)
    for (Sequence& sequence : group->sequences())
      if (group->is_made() && sequence.poll_probe(shard, transmit, out, now)) return true;
  return false;
}

bool Operations::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  for (const auto& group : groups_)
    if (group->poll_call(transmit, out, now)) return true;
  for (const auto& group : groups_)
    for (Sequence& sequence : group->sequences())
      if (group->is_made() && sequence.poll_floor(transmit, out, now)) return true;
  for (std::uint16_t shard = 0; shard < link_.shard_count(); ++shard)
    if (write_part(shard, transmit, out, now)) return true;
  return false;
}

// While nothing is outstanding, nothing tells of what was sent: then the window does not count.
bool Operations::write_part(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                            TimeNs now) noexcept {
  const std::size_t count = groups_.size() * wire::kSequenceCount;
  for (;;) {
    int best = Sequence::kIdle;
    std::size_t chosen = 0;
    std::size_t others = 0;
    bool outstanding = false;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = (turn_ + i) % count;
      Group& group = *groups_[at / wire::kSequenceCount];
      if (!group.is_made()) continue;
      Sequence& sequence = group.sequences()[at % wire::kSequenceCount];
      outstanding |= sequence.outstanding(shard);
      const int urgency = sequence.urgency(shard, group.number_limit());
      if (urgency == Sequence::kIdle) continue;
      ++others;
      if (urgency >= best) continue;
      best = urgency;
      chosen = at;
    }
    if (best == Sequence::kIdle || !link_.flows[shard].may_send(outstanding) ||
        !link_.flows[shard].on_pace(now))
      return false;
    turn_ = (chosen + 1) % count;
    Group& group = *groups_[chosen / wire::kSequenceCount];
    Sequence& sequence = group.sequences()[chosen % wire::kSequenceCount];
    transmit = {};
    sequence.write_next(shard, others == 1 && sequence.is_last(shard, group.number_limit()),
                        transmit, out, now);
    if (transmit.bytes != 0) return true;
  }
}

TimeNs Operations::next_timeout() const noexcept {
  TimeNs next_ns = kNever;
  for (const auto& group : groups_) next_ns = std::min(next_ns, group->next_timeout());
  return next_ns;
}

bool Operations::poll_event(OperationEvent& event) {
  return std::ranges::any_of(groups_, [&](const auto& group) { return group->poll_event(event); });
}

}  // namespace sluice::client

#include "dataplane/core/mac_table.h"

#include <algorithm>
#include <bit>

namespace sluice::dataplane {

MacTable::MacTable(std::size_t capacity, DurationNs max_age_ns)
    : entries_(std::bit_ceil(std::max(capacity, kWays))), max_age_ns_(max_age_ns) {}

std::size_t MacTable::bucket_of(const Key& key) const noexcept {
  std::uint64_t bits = key.vlan_id;
  for (const std::uint8_t byte : key.mac.bytes) bits = bits << 8 | byte;
  // The finaliser of splitmix64 spreads vendor prefixes and counting suffixes.
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
  bits ^= bits >> 31;
  return (bits & (entries_.size() / kWays - 1)) * kWays;
}

bool MacTable::aged(const Entry& entry, TimeNs now) const noexcept {
  return now - entry.seen > max_age_ns_;
}

MacTable::Entry& MacTable::entry_for(const Key& key) noexcept {
  const std::size_t first = bucket_of(key);
  Entry* victim = &entries_[first];
  for (std::size_t way = 0; way < kWays; ++way) {
    Entry& entry = entries_[first + way];
    if (entry.used && entry.key == key) return entry;
    if (victim->used && (!entry.used || entry.seen < victim->seen)) victim = &entry;
  }
  return *victim;
}

void MacTable::put(Entry& entry, const Entry& fresh) noexcept {
  if (!entry.used) ++size_;
  ++version_;
  entry = fresh;
}

MacTable::Learned MacTable::learn(const Key& key, PortIndex port, TimeNs now) noexcept {
  Entry& entry = entry_for(key);
  if (!entry.used || entry.key != key) {
    put(entry, {.key = key, .port = port, .used = true, .seen = now});
    return Learned::kNew;
  }
  const bool moved = entry.port != port;
  if (moved || entry.untold) {
    ++version_;
    entry.untold = now < entry.next_tell;
    entry.port = port;
    entry.seen = now;
    if (entry.untold) return Learned::kMovedAgain;
    entry.next_tell = now + kMoveInterval;
    return Learned::kMoved;
  }
  if (now - entry.seen <= refresh_interval()) return Learned::kKnown;
  entry.seen = now;
  return Learned::kRefreshed;
}

void MacTable::learn_from_other(const Key& key, PortIndex port, TimeNs now) noexcept {
  Entry& entry = entry_for(key);
  if (!entry.used || entry.key != key) {
    put(entry, {.key = key, .port = port, .used = true, .seen = now});
    return;
  }
  if (entry.port != port || entry.untold) ++version_;
  entry.port = port;
  entry.seen = now;
  entry.untold = false;  // it is somewhere else by now
}

std::optional<PortIndex> MacTable::lookup(const Key& key, TimeNs now) const noexcept {
  const std::size_t first = bucket_of(key);
  for (std::size_t way = 0; way < kWays; ++way) {
    const Entry& entry = entries_[first + way];
    if (entry.used && entry.key == key)
      return aged(entry, now) ? std::nullopt : std::optional(entry.port);
  }
  return std::nullopt;
}

void MacTable::forget_port(PortIndex port) noexcept {
  for (Entry& entry : entries_) {
    if (!entry.used || entry.port != port) continue;
    entry.used = false;
    ++version_;
    --size_;
  }
}

void MacTable::sweep(TimeNs now, std::size_t bucket_count) noexcept {
  for (std::size_t count = 0; count < bucket_count * kWays; ++count) {
    Entry& entry = entries_[sweep_at_];
    sweep_at_ = (sweep_at_ + 1) & (entries_.size() - 1);
    if (!entry.used || !aged(entry, now)) continue;
    entry.used = false;
    ++version_;
    --size_;
  }
}

}  // namespace sluice::dataplane

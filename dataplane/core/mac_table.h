// The MAC table: on which port each address was last seen.
//
// Each lcore has a table of its own; lcores tell each other what they learnt (worker.h). The
// capacity is fixed at construction. A full bucket forgets its oldest address, so forged addresses
// cost flooding, not memory. Time is passed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "aggregator/base/time.h"
#include "aggregator/wire/inet.h"

namespace sluice::dataplane {

using PortIndex = std::uint8_t;
inline constexpr DurationNs kDefaultMacAge = 300 * kSecond;  // IEEE 802.1D's default

class MacTable {
 public:
  struct Key {
    wire::Mac mac;
    std::uint16_t vlan_id = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  enum class Learned : std::uint8_t {
    kKnown,
    kMovedAgain,  // noted; told to other lcores with its next frame after kMoveInterval
    kNew,
    kMoved,
    kRefreshed,
  };
  // An address that is seen on two ports at once, forged or behind a loop, moves with every frame.
  // Other lcores are told one of its moves in this time.
  static constexpr DurationNs kMoveInterval = 10 * kMillisecond;
  static constexpr bool worth_telling(Learned learned) noexcept {
    return learned > Learned::kMovedAgain;
  }

  // `capacity` is rounded up to a power of two of at least 8. An entry is forgotten max_age_ns
  // after its last refresh; refreshes are noted at most every max_age_ns / 8.
  explicit MacTable(std::size_t capacity, DurationNs max_age_ns = kDefaultMacAge);

  // Notes that `key` was seen on `port` of this lcore.
  Learned learn(const Key& key, PortIndex port, TimeNs now) noexcept;
  // Notes what another lcore has learnt, which need not be told on.
  void learn_from_other(const Key& key, PortIndex port, TimeNs now) noexcept;
  std::optional<PortIndex> lookup(const Key& key, TimeNs now) const noexcept;
  // Forgets all addresses behind a port whose link went down.
  void forget_port(PortIndex port) noexcept;
  // Changes whenever an address is added, removed or moved.
  std::uint64_t version() const noexcept { return version_; }
  // For how long an address that was seen just now need not be learnt again.
  DurationNs refresh_interval() const noexcept { return max_age_ns_ / 8; }
  // Entries in use; aged ones count until they are replaced or swept.
  std::size_t size() const noexcept { return size_; }
  // Frees aged entries of a part of the table. To be called now and then.
  void sweep(TimeNs now, std::size_t bucket_count) noexcept;

 private:
  static constexpr std::size_t kWays = 8;
  struct Entry {
    Key key;
    PortIndex port = 0;
    bool used = false;
    bool untold = false;  // a move that other lcores have not been told
    TimeNs seen = 0;
    TimeNs next_tell = 0;  // a move before then is not told
  };
  // The key's entry, or what makes room for it: empty, with another key, or the oldest.
  Entry& entry_for(const Key& key) noexcept;
  void put(Entry& entry, const Entry& fresh) noexcept;
  std::size_t bucket_of(const Key& key) const noexcept;
  bool aged(const Entry& entry, TimeNs now) const noexcept;

  std::vector<Entry> entries_;
  DurationNs max_age_ns_;
  std::size_t size_ = 0;
  std::uint64_t version_ = 0;
  std::size_t sweep_at_ = 0;  // the next bucket to sweep
};

}  // namespace sluice::dataplane

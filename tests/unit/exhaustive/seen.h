// The states that a search has met, in the order of their discovery, each with its predecessor. A
// hash table of places in two plain arrays: millions of states take 20 bytes each.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/unit/exhaustive/state.h"

namespace sluice::exhaustive {

class Seen {
 public:
  Seen() : table_(1 << 16, kNone) {}

  // False: the state is known already.
  bool add(Key key, std::uint32_t parent) {
    if (keys_.size() * 2 >= table_.size()) grow();
    std::uint32_t& place = find(key);
    if (place != kNone) return false;
    place = static_cast<std::uint32_t>(keys_.size());
    keys_.push_back(key);
    parents_.push_back(parent);
    return true;
  }
  std::size_t size() const { return keys_.size(); }
  Key operator[](std::size_t index) const { return keys_[index]; }
  std::uint32_t parent(std::size_t index) const { return parents_[index]; }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::uint32_t& find(Key key) {
    std::uint64_t at = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
    for (at >>= 20;; ++at) {
      std::uint32_t& place = table_[at & (table_.size() - 1)];
      if (place == kNone || keys_[place] == key) return place;
    }
  }
  void grow() {
    table_.assign(table_.size() * 2, kNone);
    for (std::uint32_t i = 0; i < keys_.size(); ++i) find(keys_[i]) = i;
  }

  std::vector<Key> keys_;
  std::vector<std::uint32_t> parents_;
  std::vector<std::uint32_t> table_;
};

}  // namespace sluice::exhaustive

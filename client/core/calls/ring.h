// A queue in memory that is all there from the start. One thread at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "aggregator/base/check.h"

namespace sluice::client {

template <class Entry>
class Ring {
 public:
  Ring() = default;
  explicit Ring(std::size_t capacity) : entries_(capacity) {}

  bool empty() const noexcept { return count_ == 0; }
  bool full() const noexcept { return count_ == entries_.size(); }
  std::size_t capacity() const noexcept { return entries_.size(); }
  // Precondition: not empty().
  Entry& front() noexcept {
    DCHECK(!empty());
    return entries_[head_];
  }
  // Precondition: not full().
  void push(Entry entry) noexcept {
    DCHECK(!full());
    entries_[(head_ + count_++) % entries_.size()] = std::move(entry);
  }
  // Precondition: not empty().
  Entry pop() noexcept {
    Entry entry = std::move(front());
    head_ = (head_ + 1) % entries_.size();
    --count_;
    return entry;
  }
  void clear() noexcept { head_ = count_ = 0; }

 private:
  std::vector<Entry> entries_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

}  // namespace sluice::client

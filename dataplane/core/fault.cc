#include "dataplane/core/fault.h"

#include "aggregator/base/check.h"

namespace sluice::dataplane {
namespace {

std::uint64_t threshold(double probability) noexcept {
  if (probability <= 0) return 0;
  if (probability >= 1) return UINT64_MAX;
  return static_cast<std::uint64_t>(probability * 18446744073709551616.0);
}

}  // namespace

FaultLine::FaultLine(const FaultRates& rates, std::uint64_t seed) noexcept
    : active_(rates.any()),
      drop_below_(threshold(rates.drop)),
      duplicate_below_(threshold(rates.duplicate)),
      reorder_below_(threshold(rates.reorder)),
      state_(seed) {}

std::uint64_t FaultLine::draw() noexcept {
  // splitmix64: one state word, any seed is good.
  std::uint64_t bits = state_ += 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
  return bits ^ bits >> 31;
}

Fate FaultLine::decide() noexcept {
  ++decided_;
  if (chance(drop_below_)) return Fate::kDrop;
  if (chance(duplicate_below_)) return Fate::kDuplicate;
  if (chance(reorder_below_) && held_count_ < kMaxHeld) return Fate::kHold;
  return Fate::kDeliver;
}

void FaultLine::hold(void* frame, TimeNs now) noexcept {
  CHECK(held_count_ < kMaxHeld);
  const std::uint64_t passed = 1 + draw() % kMaxPassed;
  held_[held_count_++] = Held{frame, decided_ + passed, now + kMaxHold};
}

void* FaultLine::take(std::size_t index) noexcept {
  void* frame = held_[index].frame;
  held_[index] = held_[--held_count_];
  return frame;
}

void* FaultLine::release(TimeNs now) noexcept {
  for (std::size_t index = 0; index < held_count_; ++index)
    if (decided_ >= held_[index].due_count || now >= held_[index].due) return take(index);
  return nullptr;
}

void* FaultLine::release_any() noexcept { return held_count_ == 0 ? nullptr : take(0); }

}  // namespace sluice::dataplane

// Operations between device memory and a session; and what texts say of what is in between.
#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/base/check.h"
#include "client/device/copy_stage.h"

namespace sluice::client {

CopyStage::CopyStage(const Limits& limits) : limits_(limits) {
  CHECK(limits.piece_bytes > 0 && limits.piece_bytes <= limits.in_flight_bytes);
}

// Memory that is locked is a power of two, so that what has served one operation serves others.
std::uint32_t CopyStage::begin(Submission submission, const Place& place, std::string title,
                               sluice_device_mark* fence) {
  CHECK(!title.empty() && place.in_at + place.in_bytes <= place.bytes &&
        place.out_at + place.out_bytes <= place.bytes);
  if (free_rows_.empty()) {
    free_rows_.push_back(static_cast<std::uint32_t>(rows_.size()));
    rows_.emplace_back();
    active_.reserve(rows_.size());
    done_.reserve(2 * rows_.size());
    free_rows_.reserve(rows_.size());
    spare_.reserve(rows_.size());
  }
  const std::uint32_t index = free_rows_.back();
  free_rows_.pop_back();
  Row& row = rows_[index];
  CHECK(row.state == State::kIdle && row.fence == nullptr && row.running == 0);
  submission.tensor = index;
  if (place.in_bytes == 0) submission.input = nullptr;
  row.place = place;
  row.title = std::move(title);
  row.on_device = true;
  row.outcome = StatusCode::kOk;
  row.submission = submission;
  row.step = filling_;
  row.order = accepted_++;
  row.fence = fence;
  const std::size_t needed = place.bytes == 0 ? 0 : std::bit_ceil(place.bytes);
  const auto spare = std::ranges::find(spare_, needed, &Spare::bytes);
  if (spare != spare_.end()) {
    row.staging = spare->memory;
    spare_.erase(spare);
  }
  if (needed != 0 && row.staging == nullptr)
    enter(row, State::kLock, needed);
  else if (row.has_gradient())
    enter(row, State::kCopyIn, place.in_bytes);
  else
    enter(row, State::kReady, 0);
  active_.push_back(index);
  return index;
}

void CopyStage::ended(std::uint32_t tensor, StatusCode code) noexcept {
  if (summed(tensor, code, false)) return;
  Row& row = rows_[tensor];
  if (!row.waits_here()) return;
  row.outcome = code;
  row.state = State::kCopyOut;
  row.begun = row.bytes;
  advance(tensor);
}

std::string CopyStage::title_of(std::uint32_t tensor, const Layout& layout) const {
  const std::string& title = rows_[tensor].title;
  return title.empty() ? "tensor '" + layout.tensor(tensor).name + "'" : title;
}

std::string CopyStage::describe(const Layout& layout) const {
  std::size_t count = 0;
  const Row* first = nullptr;
  for (const std::uint32_t tensor : active_) {
    const Row& row = rows_[tensor];
    if (row.state == State::kSession) continue;
    ++count;
    if (first == nullptr || row.is_more_urgent(*first)) first = &row;
  }
  if (first == nullptr) return {};
  const char* const what = first->fence != nullptr           ? "waits for its stream's earlier work"
                           : first->state == State::kLock    ? "waits for page-locked memory"
                           : first->state == State::kCopyIn  ? "is copied from the device"
                           : first->state == State::kPack    ? "is packed on the device"
                           : first->state == State::kCopyOut ? "is copied to the device"
                           : first->state == State::kFinish  ? "is unpacked on the device"
                           : first->state == State::kResidual ? "has its residual copied"
                                                              : "waits for the step to end";
  return std::to_string(count) + (first->title.empty() ? " tensors" : " operations") +
         " are between device and session: " +
         title_of(static_cast<std::uint32_t>(first - rows_.data()), layout) + " " + what;
}

}  // namespace sluice::client

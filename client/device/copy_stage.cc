#include "client/device/copy_stage.h"

#include <algorithm>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::size_t kAlignBytes = 256;  // of a tensor in staging: what copies like
constexpr double kFlightSeconds = 50e-6;
constexpr std::size_t kPiecesInFlight = 4;
constexpr std::size_t kLeastPieceBytes = 64 << 10;

std::size_t tensor_bytes(const Layout& layout, std::uint32_t tensor) noexcept {
  const TensorSpec& spec = layout.tensor(tensor);
  return static_cast<std::size_t>(spec.elem_count) * dtype_bytes(spec.dtype);
}

std::size_t room_bytes(std::size_t bytes) noexcept {
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

}  // namespace

CopyStage::Limits CopyStage::limits_for(double bytes_per_s) noexcept {
  const auto flight = static_cast<std::size_t>(std::max(0.0, bytes_per_s) * kFlightSeconds);
  const std::size_t piece = std::max(kLeastPieceBytes, room_bytes(flight / kPiecesInFlight));
  return {.piece_bytes = piece, .flight_bytes = std::max(flight, piece)};
}

std::size_t CopyStage::staging_bytes(const Layout& layout) noexcept {
  std::size_t bytes = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    bytes += room_bytes(tensor_bytes(layout, tensor));
  return bytes;
}

CopyStage::CopyStage(const Layout& layout, std::span<std::uint8_t> staging, const Limits& limits)
    : limits_(limits), rows_(layout.tensor_count()) {
  CHECK(staging.size() >= staging_bytes(layout));
  CHECK(limits.piece_bytes > 0 && limits.piece_bytes <= limits.flight_bytes);
  std::size_t at = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    rows_[tensor].staging = staging.data() + at;
    rows_[tensor].bytes = tensor_bytes(layout, tensor);
    at += room_bytes(rows_[tensor].bytes);
  }
  active_.reserve(rows_.size());
  done_.reserve(2 * rows_.size());
}

// ---- the application's side ----

void CopyStage::accept(const Submission& submission, sluice_device_mark* fence,
                       bool on_device) noexcept {
  CHECK(submission.tensor < rows_.size() && (on_device || fence == nullptr));
  Row& row = rows_[submission.tensor];
  CHECK(row.state == State::kIdle && row.fence == nullptr && row.running == 0);
  const bool has_bytes = on_device && submission.contribute && submission.input != nullptr;
  row.state = has_bytes ? State::kCopyIn : State::kReady;
  row.on_device = on_device;
  row.outcome = StatusCode::kOk;
  row.submission = submission;
  row.step = filling_;
  row.order = accepted_++;
  row.fence = fence;
  row.begun = 0;
  active_.push_back(submission.tensor);
}

bool CopyStage::end_step() noexcept {
  const bool held = std::any_of(active_.begin(), active_.end(), [&](std::uint32_t tensor) {
    const Row& row = rows_[tensor];
    return row.step == filling_ && (row.state == State::kCopyIn || row.state == State::kReady);
  });
  if (!held && !defers()) return false;
  ++filling_;
  return true;
}

// ---- the session's side ----

bool CopyStage::poll_ready(Submission& submission) noexcept {
  for (const std::uint32_t tensor : active_) {
    Row& row = rows_[tensor];
    if (row.state != State::kReady || row.step != open_) continue;
    row.state = State::kSession;
    submission = row.submission;
    if (!row.on_device) return true;
    if (submission.input != nullptr) submission.input = row.staging;
    submission.output = row.staging;
    return true;
  }
  return false;
}

bool CopyStage::poll_end() noexcept {
  if (!defers()) return false;
  for (const std::uint32_t tensor : active_) {
    const Row& row = rows_[tensor];
    if (row.step == open_ && (row.state == State::kCopyIn || row.state == State::kReady))
      return false;
  }
  ++open_;
  return true;
}

bool CopyStage::summed(std::uint32_t tensor, StatusCode code, bool absent) noexcept {
  CHECK(tensor < rows_.size());
  Row& row = rows_[tensor];
  if (row.state != State::kSession) return false;
  row.state = State::kCopyOut;
  row.outcome = code;
  const bool copies = row.on_device && code == StatusCode::kOk && !absent;
  row.begun = copies ? 0 : row.bytes;
  advance(tensor);
  return true;
}

bool CopyStage::poll_done(Done& done) noexcept {
  if (done_first_ == done_.size()) {
    done_.clear();
    done_first_ = 0;
    return false;
  }
  done = done_[done_first_++];
  return true;
}

void CopyStage::give_up(StatusCode code, bool all) noexcept {
  CHECK(code != StatusCode::kOk);
  open_ = filling_;
  for (std::size_t i = active_.size(); i-- > 0;) {  // from behind: advance() removes
    Row& row = rows_[active_[i]];
    row.step = open_;
    if (row.state == State::kSession && !all) continue;
    if (row.state != State::kCopyOut || row.begun != row.bytes || row.running != 0)
      row.outcome = code;
    row.state = State::kCopyOut;
    row.begun = row.bytes;
    advance(active_[i]);
  }
}

// ---- the copies ----

void CopyStage::fences(std::vector<Fence>& fences) const {
  for (const std::uint32_t tensor : active_)
    if (rows_[tensor].fence != nullptr) fences.push_back({tensor, rows_[tensor].fence});
}

void CopyStage::passed(std::uint32_t tensor) noexcept {
  CHECK(rows_[tensor].fence != nullptr);
  rows_[tensor].fence = nullptr;
  advance(tensor);
}

bool CopyStage::is_more_urgent(const Row& left, const Row& right) const noexcept {
  if (left.submission.priority != right.submission.priority)
    return left.submission.priority < right.submission.priority;
  return left.order < right.order;
}

bool CopyStage::may_copy(const Row& row, Way way) const noexcept {
  const State state = way == Way::kIn ? State::kCopyIn : State::kCopyOut;
  return row.state == state && row.fence == nullptr && row.begun < row.bytes;
}

bool CopyStage::poll_copy(Copy& copy) noexcept {
  for (const Way way : {Way::kOut, Way::kIn}) {
    Row* best = nullptr;
    for (const std::uint32_t tensor : active_) {
      Row& row = rows_[tensor];
      if (may_copy(row, way) && (best == nullptr || is_more_urgent(row, *best))) best = &row;
    }
    if (best == nullptr) continue;
    const std::size_t bytes = std::min(limits_.piece_bytes, best->bytes - best->begun);
    std::size_t& flight = flight_bytes_[static_cast<std::size_t>(way)];
    if (flight + bytes > limits_.flight_bytes) continue;
    // The session's side of a submission is only read, so a copy in may be cast alike.
    const void* const memory = way == Way::kIn ? best->submission.input : best->submission.output;
    copy = {.tensor = best->submission.tensor,
            .way = way,
            .host = best->staging + best->begun,
            .device = static_cast<std::uint8_t*>(const_cast<void*>(memory)) + best->begun,
            .bytes = bytes};
    flight += bytes;
    best->begun += bytes;
    best->running += bytes;
    return true;
  }
  return false;
}

void CopyStage::copied(const Copy& copy) noexcept {
  Row& row = rows_[copy.tensor];
  std::size_t& flight = flight_bytes_[static_cast<std::size_t>(copy.way)];
  CHECK(row.running >= copy.bytes && flight >= copy.bytes);
  row.running -= copy.bytes;
  flight -= copy.bytes;
  advance(copy.tensor);
}

// A row whose copies are all done goes on to what follows.
void CopyStage::advance(std::uint32_t tensor) noexcept {
  Row& row = rows_[tensor];
  if (row.fence != nullptr || row.running != 0 || row.begun != row.bytes) return;
  if (row.state == State::kCopyIn) {
    row.state = State::kReady;
  } else if (row.state == State::kCopyOut) {
    row.state = State::kIdle;
    const auto place = std::find(active_.begin(), active_.end(), tensor);
    CHECK(place != active_.end());
    active_.erase(place);
    done_.push_back({tensor, row.outcome});
  }
}

std::string CopyStage::describe(const Layout& layout) const {
  std::size_t count = 0;
  const Row* first = nullptr;
  for (const std::uint32_t tensor : active_) {
    const Row& row = rows_[tensor];
    if (row.state == State::kSession) continue;
    ++count;
    if (first == nullptr || is_more_urgent(row, *first)) first = &row;
  }
  if (first == nullptr) return {};
  const char* const what = first->fence != nullptr           ? "waits for its stream's earlier work"
                           : first->state == State::kCopyIn  ? "is copied from the device"
                           : first->state == State::kCopyOut ? "is copied to the device"
                                                             : "waits for the step to end";
  return std::to_string(count) + " tensors are between device and session: '" +
         layout.tensor(first->submission.tensor).name + "' " + what;
}

}  // namespace sluice::client

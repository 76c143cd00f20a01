#include "client/device/copy_stage.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::size_t kAlignBytes = 256;  // of a tensor in staging memory: copies are fastest so
constexpr double kInFlightSeconds = 50e-6;
constexpr std::size_t kPiecesInFlight = 2;
constexpr std::size_t kLeastPieceBytes = 64 << 10;
constexpr std::size_t kKernel = 1;  // a kernel counts as one byte
// One kernel that runs and one that is next: a started kernel can't be overtaken.
constexpr std::uint32_t kKernelsInFlight = 2;

std::size_t tensor_bytes(const Layout& layout, std::uint32_t tensor) noexcept {
  const TensorSpec& spec = layout.tensor(tensor);
  return static_cast<std::size_t>(spec.elem_count) * dtype_bytes(spec.dtype);
}

std::size_t aligned_bytes(std::size_t bytes) noexcept {
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

}  // namespace

CopyStage::Limits CopyStage::limits_for(double bytes_per_s) noexcept {
  const auto in_flight = static_cast<std::size_t>(std::max(0.0, bytes_per_s) * kInFlightSeconds);
  const std::size_t share = in_flight / kPiecesInFlight / kAlignBytes * kAlignBytes;
  const std::size_t piece = std::max(kLeastPieceBytes, share);
  return {.piece_bytes = piece, .in_flight_bytes = std::max(in_flight, piece)};
}

std::size_t CopyStage::staging_bytes(const Layout& layout, const DeviceBuffers* far) noexcept {
  std::size_t bytes = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    bytes += layout.tensor(tensor).far ? far->host_bytes(tensor)
                                       : aligned_bytes(tensor_bytes(layout, tensor));
  return bytes;
}

CopyStage::CopyStage(const Layout& layout, std::span<std::uint8_t> staging, const Limits& limits,
                     DeviceBuffers* far)
    : limits_(limits), rows_(layout.tensor_count()) {
  CHECK(staging.size() >= staging_bytes(layout, far));
  CHECK(limits.piece_bytes > 0 && limits.piece_bytes <= limits.in_flight_bytes);
  std::size_t at = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    Row& row = rows_[tensor];
    row.staging = staging.data() + at;
    const std::size_t bytes = tensor_bytes(layout, tensor);
    row.place = {.in_bytes = bytes, .out_bytes = bytes, .bytes = bytes};
    row.buffer = far == nullptr ? nullptr : far->find(tensor);
    CHECK(layout.tensor(tensor).far == (row.buffer != nullptr));
    if (row.buffer != nullptr) far->place(tensor, row.staging);
    at += row.buffer != nullptr ? far->host_bytes(tensor) : aligned_bytes(bytes);
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
  row.on_device = on_device;
  row.outcome = StatusCode::kOk;
  row.submission = submission;
  if (row.buffer != nullptr && row.has_gradient())
    enter(row, State::kPack, kKernel);
  else
    enter(row, on_device && row.has_gradient() ? State::kCopyIn : State::kReady,
          row.place.in_bytes);
  row.step = filling_;
  row.order = accepted_++;
  row.fence = fence;
  active_.push_back(submission.tensor);
}

bool CopyStage::end_step() noexcept {
  const bool held = std::any_of(active_.begin(), active_.end(), [&](std::uint32_t tensor) {
    return rows_[tensor].step == filling_ && rows_[tensor].waits_here();
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
    if (row.buffer != nullptr) {
      if (row.has_gradient()) submission.input = row.buffer->in;
      submission.output = row.buffer->out;
      submission.far = &row.buffer->tensor;
      return true;
    }
    if (!row.on_device) return true;
    if (submission.input != nullptr) submission.input = row.staging + row.place.in_at;
    submission.output = row.staging + row.place.out_at;
    return true;
  }
  return false;
}

bool CopyStage::poll_end() noexcept {
  if (!defers()) return false;
  for (const std::uint32_t tensor : active_) {
    const Row& row = rows_[tensor];
    if (row.step == open_ && row.waits_here()) return false;
  }
  ++open_;
  return true;
}

bool CopyStage::summed(std::uint32_t tensor, StatusCode code, bool absent) noexcept {
  CHECK(tensor < rows_.size());
  Row& row = rows_[tensor];
  if (row.state != State::kSession) return false;
  row.outcome = code;
  const bool arrives = code == StatusCode::kOk && !absent;
  if (const DeviceBuffers::Buffer* const buffer = row.buffer; buffer != nullptr) {
    row.unpacks = arrives && row.submission.wanted;
    const std::size_t fates = row.has_gradient() ? buffer->fate_bytes : 0;
    enter(row, State::kCopyOut,
          row.unpacks ? buffer->head_bytes + buffer->tensor.value_bytes : fates);
    if (!device_works_) {
      row.state = State::kFinish;
      row.begun = row.bytes;
    }
  } else {
    enter(row, State::kCopyOut, row.place.out_bytes);
    if (!row.on_device || !arrives) row.begun = row.bytes;
  }
  advance(tensor);
  return true;
}

// ---- the residuals of far tensors ----

std::span<std::uint8_t> CopyStage::residual_staging(std::uint32_t tensor) const noexcept {
  const DeviceBuffers::Buffer& buffer = *rows_[tensor].buffer;
  return {buffer.in, buffer.in_bytes() / sizeof(float) * sizeof(float)};
}

void CopyStage::copy_residual(std::uint32_t tensor, Direction direction, std::size_t first_byte,
                              std::size_t bytes) {
  Row& row = rows_[tensor];
  CHECK(row.state == State::kIdle && bytes > 0 && bytes <= residual_staging(tensor).size());
  CHECK(first_byte + bytes <= row.buffer->elem_count * sizeof(float));
  row.outcome = StatusCode::kOk;
  row.residual_direction = direction;
  row.residual_at = first_byte;
  row.order = accepted_++;
  enter(row, State::kResidual, bytes);
  active_.push_back(tensor);
}

bool CopyStage::poll_done(Done& done) noexcept {
  if (done_first_ == done_.size()) {
    done_.clear();
    done_first_ = 0;
    return false;
  }
  done = done_[done_first_++];
  if (!rows_[done.tensor].title.empty()) free_rows_.push_back(done.tensor);
  return true;
}

void CopyStage::give_up(StatusCode code, bool all) noexcept {
  CHECK(code != StatusCode::kOk);
  open_ = filling_;
  for (std::size_t i = active_.size(); i-- > 0;) {  // from behind: advance() removes
    Row& row = rows_[active_[i]];
    const bool leaves_residual =
        row.buffer != nullptr && !row.waits_here() && row.state != State::kSession;
    row.step = open_;
    if (!all && (row.state == State::kSession || (leaves_residual && device_works_))) continue;
    if (row.state != State::kCopyOut || row.begun != row.bytes || row.running != 0)
      row.outcome = code;
    if (row.state != State::kResidual)
      row.state = row.buffer != nullptr ? State::kFinish : State::kCopyOut;
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

bool CopyStage::may_copy(const Row& row, Direction direction) const noexcept {
  if (row.fence != nullptr || row.begun >= row.bytes) return false;
  switch (direction) {
    case Direction::kIn:
    case Direction::kOut:
      if (row.state == State::kResidual) return row.residual_direction == direction;
      return row.state == (direction == Direction::kIn ? State::kCopyIn : State::kCopyOut);
    case Direction::kPack: return row.state == State::kPack;
    case Direction::kFinish: return row.state == State::kFinish;
    case Direction::kLock: return row.state == State::kLock;
    case Direction::kScale: return false;
  }
  return false;
}

CopyStage::Row* CopyStage::most_urgent(Direction direction) noexcept {
  Row* best = nullptr;
  for (const std::uint32_t tensor : active_) {
    Row& row = rows_[tensor];
    if (may_copy(row, direction) && (best == nullptr || row.is_more_urgent(*best))) best = &row;
  }
  return best;
}

bool CopyStage::poll_copy(Copy& copy) noexcept {
  if (poll_kernel(copy)) return true;
  if (Row* const next = most_urgent(Direction::kLock); next != nullptr) {
    next->begun = next->running = next->bytes;
    copy = {.tensor = static_cast<std::uint32_t>(next - rows_.data()),
            .direction = Direction::kLock,
            .bytes = next->bytes};
    return true;
  }
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    Row* const best = most_urgent(direction);
    if (best == nullptr) continue;
    const std::size_t bytes = std::min(limits_.piece_bytes, best->bytes - best->begun);
    std::size_t& in_flight = in_flight_bytes_[static_cast<std::size_t>(direction)];
    if (in_flight + bytes > limits_.in_flight_bytes) continue;
    std::uint8_t* host =
        best->staging + (direction == Direction::kIn ? best->place.in_at : best->place.out_at);
    // A copy from the device only reads `memory`, so the cast below does no harm.
    const void* memory =
        direction == Direction::kIn ? best->submission.input : best->submission.output;
    if (const DeviceBuffers::Buffer* const buffer = best->buffer; buffer != nullptr) {
      const bool residual = best->state == State::kResidual;
      host = residual || direction == Direction::kIn ? buffer->in : buffer->out;
      memory = residual ? reinterpret_cast<std::uint8_t*>(buffer->residual) + best->residual_at
                        : buffer->area;
    }
    copy = {.tensor = static_cast<std::uint32_t>(best - rows_.data()),
            .direction = direction,
            .host = host + best->begun,
            .device = static_cast<std::uint8_t*>(const_cast<void*>(memory)) + best->begun,
            .bytes = bytes};
    in_flight += bytes;
    best->begun += bytes;
    best->running += bytes;
    return true;
  }
  return false;
}

bool CopyStage::poll_kernel(Copy& copy) noexcept {
  if (scale_ && !scaling_) {
    scaling_ = true;
    copy = {.direction = Direction::kScale, .bytes = kKernel, .factor = *scale_};
    return true;
  }
  for (const Direction direction : {Direction::kFinish, Direction::kPack}) {
    Row* const best = kernels_running_ < kKernelsInFlight ? most_urgent(direction) : nullptr;
    if (best == nullptr) continue;
    best->buffer->take_given();
    copy = {.tensor = static_cast<std::uint32_t>(best - rows_.data()),
            .direction = direction,
            .bytes = kKernel,
            .input = best->has_gradient() ? best->submission.input : nullptr,
            .output = direction == Direction::kFinish && best->unpacks ? best->submission.output
                                                                       : nullptr,
            .on_device = best->on_device,
            .whole = flushes_};
    ++kernels_running_;
    best->begun += kKernel;
    best->running += kKernel;
    return true;
  }
  return false;
}

void CopyStage::copied(const Copy& copy) noexcept {
  if (copy.direction == Direction::kScale) {
    scale_.reset();
    scaling_ = false;
    return;
  }
  Row& row = rows_[copy.tensor];
  CHECK(row.running >= copy.bytes);
  row.running -= copy.bytes;
  if (copy.direction == Direction::kLock) {
    row.staging = copy.host;
  } else if (is_copy(copy.direction)) {
    std::size_t& in_flight = in_flight_bytes_[static_cast<std::size_t>(copy.direction)];
    CHECK(in_flight >= copy.bytes);
    in_flight -= copy.bytes;
  } else {
    CHECK(kernels_running_ != 0);
    --kernels_running_;
  }
  advance(copy.tensor);
}

void CopyStage::enter(Row& row, State state, std::size_t bytes) noexcept {
  CHECK(row.running == 0);
  row.state = state;
  row.bytes = bytes;
  row.begun = 0;
}

// The extents of a pruned far tensor are copied first; they say how many bytes follow.
bool CopyStage::has_more_to_copy_in(Row& row) const noexcept {
  const DeviceBuffers::Buffer* const buffer = row.buffer;
  if (buffer == nullptr || !buffer->prunes || row.bytes != buffer->extent_bytes) return false;
  const std::uint64_t bytes = buffer->total_bytes();
  CHECK(bytes <= buffer->dense_bytes);
  row.bytes += bytes;
  return bytes != 0;
}

// A row whose copies have all ended goes on to its next state.
void CopyStage::advance(std::uint32_t tensor) noexcept {
  Row& row = rows_[tensor];
  if (row.fence != nullptr || row.running != 0 || row.begun != row.bytes) return;
  switch (row.state) {
    case State::kLock:
      if (!row.has_gradient()) return enter(row, State::kReady, 0);
      return enter(row, State::kCopyIn, row.place.in_bytes);
    case State::kPack:
      return enter(row, State::kCopyIn,
                   row.buffer->prunes ? row.buffer->extent_bytes : row.buffer->dense_bytes);
    case State::kCopyIn:
      if (!has_more_to_copy_in(row)) row.state = State::kReady;
      return;
    case State::kCopyOut:
      if (row.buffer == nullptr) return finish(tensor);
      return enter(row, State::kFinish, kKernel);
    case State::kFinish:
    case State::kResidual: return finish(tensor);
    case State::kIdle:
    case State::kReady:
    case State::kSession: return;
  }
}

void CopyStage::finish(std::uint32_t tensor) noexcept {
  Row& row = rows_[tensor];
  const auto place = std::find(active_.begin(), active_.end(), tensor);
  CHECK(place != active_.end());
  active_.erase(place);
  if (row.state != State::kResidual) done_.push_back({tensor, row.outcome});
  if (!row.title.empty() && row.staging != nullptr)
    spare_.push_back({std::bit_ceil(row.place.bytes), std::exchange(row.staging, nullptr)});
  row.state = State::kIdle;
}

}  // namespace sluice::client

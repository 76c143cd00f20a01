// Gradients in device memory on their way: out of it into staging memory of the host before the
// session sees them, and their averages back into it.
//
// To the session a tensor is submitted when all its bytes are in staging, so it knows nothing of
// devices, and a rank whose copies are late is a rank that is late. Of a far tensor
// (device_buffers.h) only what leaves is copied: the device packs it first. Once the results and
// the fate of each chunk are back on the device, it updates the residual and unpacks the average.
//
// The application's calls keep their order: end_step() takes effect when the step's gradients have
// been copied and submitted, and a later submission waits for that.
//
// Copies are cut into pieces and started most urgent first, each direction for itself, while few
// bytes are on their way: what was started can't be overtaken.
//
// Pure: says which copies to start and is told what became of them. Under the session's lock; no
// allocation after construction. The shell is copier.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/calls/layout.h"
#include "client/core/calls/types.h"
#include "client/device/device_buffers.h"

struct sluice_device_mark;

namespace sluice::client {

class CopyStage {
 public:
  // Copies from the device and back to it; kernels before the one, after the other, and over all
  // residuals.
  enum class Direction : std::uint8_t { kIn, kOut, kPack, kFinish, kScale };
  static constexpr std::size_t kDirections = 2;  // of copies
  static constexpr bool is_copy(Direction direction) noexcept {
    return direction <= Direction::kOut;
  }

  struct Limits {
    std::size_t piece_bytes = 0;      // of one copy
    std::size_t in_flight_bytes = 0;  // of all copies of one direction that run
  };
  // For copies at such a rate: what runs is over after some 50 us.
  static Limits limits_for(double bytes_per_s) noexcept;

  struct Copy {
    std::uint32_t tensor = 0;
    Direction direction{};
    std::uint8_t* host = nullptr;
    std::uint8_t* device = nullptr;
    std::size_t bytes = 0;
    // ---- of kernels; the others are not theirs ----
    const void* input = nullptr;  // the gradient; null: there was none
    void* output = nullptr;       // null: nothing comes there
    bool on_device = true;        // both; else they are the host's
    bool whole = false;           // all of it leaves
    float factor = 1;             // kScale
  };
  // The device's work that has to be done before the tensor's memory may be touched.
  struct Fence {
    std::uint32_t tensor = 0;
    sluice_device_mark* mark = nullptr;
  };
  // A submission is over; both buffers are the caller's again.
  struct Done {
    std::uint32_t tensor = 0;
    StatusCode code{};
  };

  // `staging`: staging_bytes() of the layout, for as long as this lives. `far`: likewise, to be
  // placed there; null: no tensor is far.
  CopyStage(const Layout& layout, std::span<std::uint8_t> staging, const Limits& limits,
            DeviceBuffers* far = nullptr);
  static std::size_t staging_bytes(const Layout& layout,
                                   const DeviceBuffers* far = nullptr) noexcept;

  // ---- the application's side ----
  // It has a submission of the tensor, which is not over.
  bool holds(std::uint32_t tensor) const noexcept { return rows_[tensor].state != State::kIdle; }
  // How the tensor's last submission has ended; kOk while there is one.
  StatusCode outcome(std::uint32_t tensor) const noexcept { return rows_[tensor].outcome; }
  bool idle() const noexcept { return active_.empty(); }
  // A submission of device memory or of host memory: all of the job's go through here, so that they
  // keep their order. Precondition: !holds().
  // The mark, if any, is the caller's again when passed() is told.
  void accept(const Submission& submission, sluice_device_mark* fence, bool on_device) noexcept;
  // True: noted, see poll_end(). False: nothing of the step is held back.
  bool end_step() noexcept;
  // From the next submissions on all of pruned tensors leaves.
  void flush() noexcept { flushes_ = true; }

  // ---- the residuals of far tensors ----
  bool is_far(std::uint32_t tensor) const noexcept { return rows_[tensor].buffer != nullptr; }
  // Host memory that a part of one goes through.
  std::span<std::uint8_t> residual_staging(std::uint32_t tensor) const noexcept;
  // That part, from the device or to it: the tensor is held until it is there. No end is told but
  // by outcome(). Precondition: !holds().
  void copy_residual(std::uint32_t tensor, Direction direction, std::size_t first_byte,
                     std::size_t bytes);
  // Of all: times the factor. Precondition: idle(), and !scales().
  void scale(float factor) noexcept { scale_ = factor; }
  bool scales() const noexcept { return scale_.has_value(); }

  // ---- the session's side ----
  // What may be submitted now. Its end is told by summed().
  bool poll_ready(Submission& submission) noexcept;
  // The session's step may be ended now.
  bool poll_end() noexcept;
  // The session is done with the tensor, or has refused it. False: the tensor is not held.
  bool summed(std::uint32_t tensor, StatusCode code, bool absent) noexcept;
  bool poll_done(Done& done) noexcept;
  bool has_done() const noexcept { return done_first_ != done_.size(); }
  // Nothing can be submitted any more: gives up what the session does not have, and with `all` what
  // it has too. What is being copied is over when its copies are. While the device works, residuals
  // are updated all the same.
  void give_up(StatusCode code, bool all) noexcept;
  void device_failed() noexcept { device_works_ = false; }

  // ---- the copies ----
  // Appended to `fences`: those that have not passed.
  void fences(std::vector<Fence>& fences) const;
  void passed(std::uint32_t tensor) noexcept;
  bool poll_copy(Copy& copy) noexcept;
  // It has ended, well or not; who knows that it failed gives up.
  void copied(const Copy& copy) noexcept;

  // What is held back, in words; empty: nothing is.
  std::string describe(const Layout& layout) const;

 private:
  enum class State : std::uint8_t {
    kIdle,
    kPack,
    kCopyIn,
    kReady,    // to be submitted
    kSession,  // submitted
    kCopyOut,  // or nothing to copy: about to be over
    kFinish,
    kResidual,
  };
  struct Row {
    std::uint8_t* staging = nullptr;
    std::size_t bytes = 0;                    // of the state's copies; of kernels kKernel
    DeviceBuffers::Buffer* buffer = nullptr;  // null: it is not far
    bool unpacks = false;
    Direction residual_direction{};
    std::size_t residual_at = 0;
    State state = State::kIdle;
    bool on_device = false;
    StatusCode outcome = StatusCode::kOk;
    Submission submission;  // as the application made it
    std::uint64_t step = 0;
    std::uint64_t order = 0;
    sluice_device_mark* fence = nullptr;
    std::size_t begun = 0;    // bytes of copies that were started
    std::size_t running = 0;  // bytes of those that have not ended
  };

  void advance(std::uint32_t tensor) noexcept;
  void enter(Row& row, State state, std::size_t bytes) noexcept;
  void finish(std::uint32_t tensor) noexcept;
  bool has_more_to_copy_in(Row& row) const noexcept;
  Row* most_urgent(Direction direction) noexcept;
  bool poll_kernel(Copy& copy) noexcept;
  static bool has_gradient(const Row& row) noexcept {
    return row.submission.contribute && row.submission.input != nullptr;
  }
  // Before the session has it.
  static bool waits_here(const Row& row) noexcept {
    return row.state == State::kPack || row.state == State::kCopyIn || row.state == State::kReady;
  }
  bool is_more_urgent(const Row& left, const Row& right) const noexcept;
  // A step was ended whose gradients are not all submitted: what is submitted since waits here.
  bool defers() const noexcept { return open_ != filling_; }
  bool may_copy(const Row& row, Direction direction) const noexcept;

  const Limits limits_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> active_;  // not idle, in order of acceptance
  std::vector<Done> done_;             // to be polled, from done_first_ on
  std::size_t done_first_ = 0;
  std::array<std::size_t, kDirections> in_flight_bytes_{};
  std::uint32_t kernels_running_ = 0;
  bool flushes_ = false;
  bool device_works_ = true;
  std::optional<float> scale_;  // not done
  bool scaling_ = false;        // it runs
  std::uint64_t accepted_ = 0;
  std::uint64_t filling_ = 0;  // ends that the application has said here
  std::uint64_t open_ = 0;     // of those, that the session has heard of
};

}  // namespace sluice::client

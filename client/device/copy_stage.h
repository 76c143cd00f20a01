// Copies between device memory and staging memory of the host: a gradient before the session sees
// it, and its average on the way back.
//
// The stage submits a tensor to the session once all its bytes are in staging memory. So the
// session knows nothing of devices, and a rank whose copies are late is a late rank. A far tensor
// (device_buffers.h) is packed by the device first, and only the packed bytes are copied. Once the
// results and the fate of each chunk are back on the device, kernels update the residual and unpack
// the average.
//
// The application's calls keep their order: end_step() takes effect when the step's gradients have
// been copied and submitted, and a later submission waits for that.
//
// A copy that was started can't be overtaken. So copies are cut into pieces, the most urgent piece
// is started first, and few bytes of a direction are in flight at once.
//
// An operation of a group has a row while it is under way, and staging memory, which the stage asks
// for and keeps for later operations. The session begins it once its input is there, and it is over
// once its output is on the device.
//
// Pure: the stage says which copies to start and is told which have ended; copier.h carries them
// out. All calls are under the session's lock. After construction only chunks that are given back
// allocate (DeviceBuffers::Buffer::take_given()).
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
  // The copies from the device and back to it, the kernels that run before the first, after the
  // second, and over all residuals; and page-locked memory for an operation.
  enum class Direction : std::uint8_t { kIn, kOut, kPack, kFinish, kScale, kLock };
  static constexpr std::size_t kDirections = 2;  // of copies
  static constexpr bool is_copy(Direction direction) noexcept {
    return direction <= Direction::kOut;
  }

  struct Limits {
    std::size_t piece_bytes = 0;      // of one copy
    std::size_t in_flight_bytes = 0;  // of all running copies of one direction
  };
  // For copies at this rate: the copies in flight take about 50 us.
  static Limits limits_for(double bytes_per_s) noexcept;

  struct Copy {
    std::uint32_t tensor = 0;
    Direction direction{};
    std::uint8_t* host = nullptr;  // of kLock: null until copied()
    std::uint8_t* device = nullptr;
    std::size_t bytes = 0;
    // ---- of kernels, which have no `host` and no `device` ----
    const void* input = nullptr;  // the gradient; null: the submission has none
    void* output = nullptr;       // null: no average is written
    bool on_device = true;        // `input` and `output` are the device's memory; else the host's
    bool whole = false;           // nothing is pruned
    float factor = 1;             // kScale
  };
  // Work of the device that must end before the tensor's memory may be read or written.
  struct Fence {
    std::uint32_t tensor = 0;
    sluice_device_mark* mark = nullptr;
  };
  // A submission is over; both buffers are the caller's again.
  struct Done {
    std::uint32_t tensor = 0;
    StatusCode code{};
  };

  // `staging` has staging_bytes() of the layout. `far`, whose buffers are placed there, is null
  // where no tensor is far. Both outlive the stage.
  CopyStage(const Layout& layout, std::span<std::uint8_t> staging, const Limits& limits,
            DeviceBuffers* far = nullptr);
  static std::size_t staging_bytes(const Layout& layout,
                                   const DeviceBuffers* far = nullptr) noexcept;

  // ---- operations, of a job without tensors ----
  // Where an operation's data are in its staging memory of `bytes`; where both overlap, as in the
  // memory of a caller who works in place.
  struct Place {
    std::size_t in_at = 0, in_bytes = 0;
    std::size_t out_at = 0, out_bytes = 0;
    std::size_t bytes = 0;
  };
  explicit CopyStage(const Limits& limits);
  // Takes an operation, which is a row, `tensor` elsewhere, until poll_done() tells of it. `title`
  // names it in texts. Of `submission` input, output and priority count. `fence`: as of accept().
  // Allocates.
  std::uint32_t begin(Submission submission, const Place& place, std::string title,
                      sluice_device_mark* fence);
  // It is over in the session, whether that had it or not. The row is over with its copies.
  void ended(std::uint32_t tensor, StatusCode code) noexcept;
  // What a text calls it: "tensor 'fc.weight'", "group 'dp', operation 3".
  std::string title_of(std::uint32_t tensor, const Layout& layout) const;

  // ---- the application's side ----
  // Whether the tensor has a submission, or a copy of its residual, that is not over.
  bool holds(std::uint32_t tensor) const noexcept { return rows_[tensor].state != State::kIdle; }
  // How the tensor's last submission ended; kOk while one is under way.
  StatusCode outcome(std::uint32_t tensor) const noexcept { return rows_[tensor].outcome; }
  bool idle() const noexcept { return active_.empty(); }
  // Takes a submission of device memory or of host memory: all of the job's submissions go through
  // here, so that they keep their order. Precondition: !holds(). `fence`, unless null, is the
  // caller's again once passed() is called.
  void accept(const Submission& submission, sluice_device_mark* fence, bool on_device) noexcept;
  // True: the end waits here until poll_end(). False: nothing of the step waits here, and the
  // caller ends the session's step itself.
  bool end_step() noexcept;
  // From now on the kernels that pack leave nothing out.
  void flush() noexcept { flushes_ = true; }

  // ---- the residuals of far tensors ----
  bool is_far(std::uint32_t tensor) const noexcept { return rows_[tensor].buffer != nullptr; }
  // Page-locked memory through which a part of the tensor's residual is copied.
  std::span<std::uint8_t> residual_staging(std::uint32_t tensor) const noexcept;
  // Copies that part from the device or to it. The tensor is held until the copy has ended; no Done
  // tells of it. Precondition: !holds().
  void copy_residual(std::uint32_t tensor, Direction direction, std::size_t first_byte,
                     std::size_t bytes);
  // Multiplies all residuals by the factor. Precondition: idle() and !scales().
  void scale(float factor) noexcept { scale_ = factor; }
  bool scales() const noexcept { return scale_.has_value(); }

  // ---- the session's side ----
  // The next submission for the session. Its end is told by summed().
  bool poll_ready(Submission& submission) noexcept;
  // True: the caller ends the session's step now.
  bool poll_end() noexcept;
  // The session is done with the tensor, or has refused it. False: the session did not have it.
  bool summed(std::uint32_t tensor, StatusCode code, bool absent) noexcept;
  bool poll_done(Done& done) noexcept;
  bool has_done() const noexcept { return done_first_ != done_.size(); }
  // Nothing can be submitted any more: gives up the submissions that the session does not have, and
  // with `all` those that it has. A tensor that is being copied is over when its copies are. As
  // long as the device works, residuals are still updated.
  void give_up(StatusCode code, bool all) noexcept;
  void device_failed() noexcept { device_works_ = false; }

  // ---- the copies ----
  // Appends the fences that have not passed.
  void fences(std::vector<Fence>& fences) const;
  void passed(std::uint32_t tensor) noexcept;
  bool poll_copy(Copy& copy) noexcept;
  // The copy has ended, well or not. A caller that knows of a failure calls give_up() too.
  void copied(const Copy& copy) noexcept;

  // Which tensors are between device and session, in words. Empty: none.
  std::string describe(const Layout& layout) const;

 private:
  enum class State : std::uint8_t {
    kIdle,
    kLock,  // waits for its staging memory
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
    Place place;                              // of what is not far
    std::string title;                        // of an operation
    std::size_t bytes = 0;                    // of the state's copies; kKernel for a kernel
    DeviceBuffers::Buffer* buffer = nullptr;  // null: the tensor is not far
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
    std::size_t begun = 0;    // bytes of started copies
    std::size_t running = 0;  // bytes of copies that have not ended

    bool has_gradient() const noexcept {
      return submission.contribute && submission.input != nullptr;
    }
    // Whether the session does not have the submission yet.
    bool waits_here() const noexcept {
      return state == State::kLock || state == State::kPack || state == State::kCopyIn ||
             state == State::kReady;
    }
    bool is_more_urgent(const Row& other) const noexcept {
      return submission.priority != other.submission.priority
                 ? submission.priority < other.submission.priority
                 : order < other.order;
    }
  };
  // Page-locked memory that no operation uses.
  struct Spare {
    std::size_t bytes = 0;
    std::uint8_t* memory = nullptr;
  };

  void advance(std::uint32_t tensor) noexcept;
  void enter(Row& row, State state, std::size_t bytes) noexcept;
  void finish(std::uint32_t tensor) noexcept;
  bool has_more_to_copy_in(Row& row) const noexcept;
  Row* most_urgent(Direction direction) noexcept;
  bool poll_kernel(Copy& copy) noexcept;
  // Whether an ended step has gradients that are not submitted yet: later submissions wait here.
  bool defers() const noexcept { return open_ != filling_; }
  bool may_copy(const Row& row, Direction direction) const noexcept;

  const Limits limits_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> free_rows_;  // of operations
  std::vector<Spare> spare_;
  std::vector<std::uint32_t> active_;  // not idle, in order of acceptance
  std::vector<Done> done_;             // to be polled, from done_first_ on
  std::size_t done_first_ = 0;
  std::array<std::size_t, kDirections> in_flight_bytes_{};
  std::uint32_t kernels_running_ = 0;
  bool flushes_ = false;
  bool device_works_ = true;
  std::optional<float> scale_;  // until all residuals are scaled
  bool scaling_ = false;        // the kernel runs
  std::uint64_t accepted_ = 0;
  std::uint64_t filling_ = 0;  // steps that the application has ended
  std::uint64_t open_ = 0;     // steps of these that the session has ended
};

}  // namespace sluice::client

// One membership of one job: the object behind the C interface's sluice_job.
//
// Puts together address, transport, session and progress thread at the join, and takes them down
// again. Its calls lock the session, call it, and wake the progress thread (shared_session.h);
// those that wait do so in slices of 100 ms at most. Any thread may call it. Errors are returned,
// not thrown, except for std::bad_alloc and std::system_error.
//
// opened.cc: what is opened for a join; job.cc: joining and leaving; job_calls.cc: everything
// between; job_residuals.cc: what of gradients is not delivered; job_store.cc: that of a store;
// turns.cc: the loop of a replica.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/core/sums/left_behind.h"
#include "client/device/copier.h"
#include "client/device/device.h"
#include "client/log.h"
#include "client/progress.h"
#include "client/shared_session.h"
#include "client/thread_pool.h"
#include "client/trace_file.h"

namespace sluice::client {

struct JoinRequest {
  std::string address;
  std::string local_address;
  // Nonce, credit, datagram size and printable address are filled in.
  SessionOptions session{.restart_timeout_ns = 60 * kSecond};
  std::vector<TensorSpec> tensors;
  Dtype wire = Dtype::kFloat32;
  std::size_t mtu_bytes = 1500;
  std::size_t chunk_bytes = 0;  // 0: the most that mtu_bytes carries
  std::string trace_dir;        // empty: no trace
  Memory memory = Memory::kHost;
  std::int32_t device = 0;  // with another memory: which one
  ProgressCallbacks callbacks;
  std::function<bool()> interrupted;
  Log log;
};

struct Opened;
class Served;

inline constexpr std::int32_t kForeverMs = -1;

// Where a rank stands between its steps.
struct Position {
  Step next_step = 0;        // that the next submission belongs to
  std::uint32_t behind = 0;  // steps to catch up with before the next gradient
  bool must_resync = false;
  std::int32_t state_wanted_by = -1;  // -1: nobody
};

// What a rank does next: see sluice_next_turn().
struct Turn {
  enum class Kind : std::uint8_t { kNone, kCompute, kCatchUp, kApply, kSave, kLoad };
  Kind kind = Kind::kNone;
  Step step = 0;
  const ReceivedState* state = nullptr;  // kLoad
};

class Job {
 public:
  // Blocks until all ranks have joined. On success `job` is set.
  static Status join(JoinRequest request, std::unique_ptr<Job>& job);
  ~Job();  // leaves, at most 1 s

  // ---- never block, but for the residuals of far tensors ----
  // In their order, under one lock; those before the first that is refused are submitted.
  Status submit(std::span<const Submission> submissions);
  // Its memory is the device's, and the device's once the work of `stream` so far is done.
  Status submit_device(const Submission& submission, void* stream);
  Status end_step();
  Status set_averaging(std::uint32_t tensor, AveragingChoice choice);
  Status mark_applied(std::uint32_t tensor);
  // `values`: of the tensor's elements.
  Status get_residual(std::uint32_t tensor, float* values);
  Status set_residual(std::uint32_t tensor, const float* values);
  Status get_pruning(std::uint32_t tensor, std::uint64_t& packed);
  Status set_pruning(std::uint32_t tensor, std::uint64_t packed);
  Status scale_residuals(double factor);
  Status flush_residuals();
  Status left_behind(LeftBehind& found);
  Status send_state(const void* data, std::uint64_t bytes, Step step);
  // Of a parameter store, as Store's (core/store.h).
  Status initialise(LayerIndex layer, std::span<const float* const> values);
  Status push(LayerIndex layer, std::span<const float* const> deltas, double rate);
  Status pull(LayerIndex layer, std::span<float* const> copies);
  Status clocks(LayerIndex layer, LayerClocks& clocks, bool& kept) const;
  // The failure behind "this rank has left", where it left because of one; else `status`.
  Status explained(Status status) const;
  // Ok while the job works.
  Status status() const;
  Position position() const;
  Status step_report(Step step, StepReport& report) const;  // 0: of the newest step that has one
  JobFacts facts() const;
  Counters counters() const;
  std::optional<PartCounters> part_counters(std::uint32_t index) const;
  Stall stall() const;
  std::string describe_plan() const;

  // ---- wait, for `timeout_ms` at most: kForeverMs is no limit, 0 asks ----
  Status wait_tensor(std::uint32_t tensor, std::int32_t timeout_ms, Tensors::Result& result);
  // For the first `least`; `done` is how many leading ones are.
  Status wait_tensors(std::span<const std::uint32_t> tensors, std::size_t least,
                      std::int32_t timeout_ms, std::size_t& done);
  Status wait_step(std::int32_t timeout_ms, Step& step);
  Status wait_push(LayerIndex layer, std::int32_t timeout_ms);
  Status wait_pull(LayerIndex layer, std::int32_t timeout_ms);
  Status next_turn(std::int32_t timeout_ms, Turn& turn);
  Status broadcast(Rank root, void* buffer, std::size_t bytes, std::int32_t timeout_ms);
  Status barrier(std::int32_t timeout_ms);
  // `state`: the job's, until the next one.
  Status resync(std::int32_t timeout_ms, const ReceivedState*& state);
  // 1 s at most; kUneven: the silence timeout more. `why`: of kAborted.
  void leave(wire::LeaveReason reason, std::string why = {});

  bool is_forked() const noexcept;  // this process is a child of the one that joined
  // The calling thread is the job's own, which calls the callbacks: it must not wait.
  bool on_own_thread() const noexcept;
  Rank rank() const noexcept { return rank_; }
  bool has_device() const noexcept { return device_ != nullptr; }

 private:
  friend class JobGroups;  // a job's calls on groups
  using Lock = SessionMutex::Lock;

  Job(const JoinRequest& request, Opened& parts);
  Status open_trace(const JoinRequest& request, const Driven& driven);
  Status attach_device(std::unique_ptr<Device> device, const PruneOptions& pruning,
                       const std::string& who);
  bool is_far(std::uint32_t tensor) const noexcept;
  Status prune_position(std::uint32_t tensor, const char* call, PrunePosition*& position);
  // A far tensor's residual, part by part through host memory: `use` gets each, and the index of
  // its first element, when it has come from the device (kIn), or writes it before it goes there.
  Status move_residual(Lock& lock, std::uint32_t tensor, CopyStage::Direction direction,
                       const std::function<void(std::span<float> part, std::size_t first)>& use);
  std::string left_behind_note();  // what the log says at the end; empty: nothing
  Status hand_over(const Submission& submission, TimeNs now);  // with the lock held
  Status accept(const Submission& submission, sluice_device_mark* fence, bool on_device);
  std::string kept_note() const;
  Status wait_joined();

  template <class Ready, class What>
  Status wait(Lock& lock, std::int32_t timeout_ms, Ready ready, What what);
  Status run(const std::shared_ptr<CollectiveCall>& call, std::int32_t timeout_ms, const char* what,
             const std::function<Status(Calls&, TimeNs)>& begin);
  Status await_turn(Lock& lock, std::int32_t timeout_ms, Turn& turn);
  std::int32_t wanted_by() const;  // with the lock held
  Status check_finite(LayerIndex layer, std::span<const float* const> values,
                      const char* call) const;
  Status find_store(LayerIndex layer, const char* call, Store*& store) const;
  Status await(Lock& lock, std::span<const std::uint32_t> tensors, std::size_t least,
               std::int32_t timeout_ms, std::size_t& done);
  Status check_not_staged(std::uint32_t tensor, const char* call) const;

  const pid_t pid_;
  Rank rank_;          // an elastic job gives it: constant since the join, like the next two
  std::string place_;  // begins texts: "job 'x' rank 1 at ADDRESS: "
  bool elastic_ = false;
  const Log log_;
  const std::function<bool()> interrupted_;
  const DurationNs uneven_limit_ns_;  // for the appliance to hear of an uneven end
  std::unique_ptr<ThreadPool> pool_;  // of the session; null: it has no work for one
  mutable SharedSession shared_;
  bool resyncing_ = false;  // a thread waits for the state; under the lock
  ReceivedState state_;     // returned last
  // Of next_turn(), under the lock.
  Step due_step_ = 0;                // given out and not applied; 0: none
  bool offered_ = false;             // to save: not again before something else was done
  std::uint32_t pulls_awaited_ = 0;  // threads in wait_pull(), under the lock
  std::atomic<std::thread::id> trace_thread_{};
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<Device> device_;               // null: all gradients are in host memory
  std::unique_ptr<DeviceBuffers> buffers_;       // likewise
  std::unique_ptr<FarWork> far_;                 // null: no tensor is far
  std::unique_ptr<Copier> copier_;               // its thread uses all of the above
  std::unique_ptr<Progress> progress_;           // so does its
  std::vector<std::shared_ptr<Served>> served_;  // needed by neighbours when all of this is over
};

// Gradient bytes per packet that an MTU carries for so many workers, whatever the IP version; 0
// when it is too small for any.
std::size_t chunk_bytes_for(std::size_t mtu_bytes, std::size_t world_size) noexcept;

}  // namespace sluice::client

// The membership of one job, as application threads and the progress thread share it: one lock, and
// what both sides need beside it.
//
// An application's call locks, calls the membership, and wakes the progress thread. The progress
// thread never holds the lock across a call of the transport, a sleep or a callback, and lets
// callers in between two datagrams: a call waits for one datagram, not for a burst. Waiting happens
// on `changed`.
#pragma once

#include <hwy/cache_control.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "client/core/calls/calls.h"
#include "client/core/member/driven.h"
#include "client/core/session.h"
#include "client/device/copy_stage.h"
#include "client/device/operation_copies.h"
#include "client/fork.h"
#include "client/transport/transport.h"

namespace sluice::client {

// A broadcast or (with an empty buffer) a barrier. The session owns the buffer until it is done;
// whoever started it may have given up by then.
struct CollectiveCall {
  std::vector<std::uint8_t> buffer;
  bool done = false;
  Status status;
};

// The lock of a session. Callers go first: a plain mutex would let the progress thread, which
// unlocks and locks again at once, keep them out for many bursts.
class SessionMutex {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // An application's call. Only who waits says so: most calls find it free.
  Lock lock() {
    if (mutex_.try_lock()) return Lock(mutex_, std::adopt_lock);
    waiting_.fetch_add(1, std::memory_order_relaxed);
    for (int spin = 0; spin < kSpins; ++spin) {
      if (mutex_.try_lock()) {
        waiting_.fetch_sub(1, std::memory_order_relaxed);
        return Lock(mutex_, std::adopt_lock);
      }
      hwy::Pause();
    }
    Lock lock(mutex_);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
  }
  // The progress thread's turn.
  Lock lock_for_progress() { return Lock(mutex_); }
  // With the lock held by the progress thread: lets those in who wait.
  void give_way(Lock& lock) {
    if (waiting_.load(std::memory_order_relaxed) == 0) return;
    lock.unlock();
    for (int spin = 0; spin < kSpins && waiting_.load(std::memory_order_relaxed) != 0; ++spin)
      hwy::Pause();
    // Whoever still waits sleeps, or has been sent off its core.
    if (waiting_.load(std::memory_order_relaxed) != 0) std::this_thread::yield();
    lock.lock();
  }

 private:
  static constexpr int kSpins = 200;  // some microseconds
  std::mutex mutex_;
  std::atomic<std::uint32_t> waiting_{0};
};

struct SharedSession {
  // `by_driver`: the same object. `one`: it again, or one of its sessions.
  SharedSession(std::unique_ptr<Calls> owned, Driven& by_driver, Session& one)
      : wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        owned_(std::move(owned)),
        calls(*owned_),
        driven(by_driver),
        session(one) {}

  // With the lock, which is free meanwhile: a burst takes microseconds.
  void await_burst(SessionMutex::Lock& lock) {
    while (reading.load(std::memory_order_acquire)) {
      lock.unlock();
      std::this_thread::yield();
      lock = mutex.lock();
    }
  }
  // Nothing of the caller's memory is used any more either.
  bool ended() const noexcept {
    return calls.state() == SessionState::kClosed && (stage == nullptr || stage->idle());
  }
  // As the session's; where a device has failed, that.
  Status status() const { return failure.ok() ? calls.status() : failure; }
  // Submitted, and its memory not the caller's again; after a failure of the device whoever waits
  // hears of that.
  bool in_flight(std::uint32_t tensor) const noexcept {
    return !failure.ok() || calls.tensors().in_flight(tensor) ||
           (stage != nullptr && stage->holds(tensor));
  }
  bool at_rest() const noexcept {
    return failure.ok() && calls.tensors().at_rest() && (stage == nullptr || stage->idle());
  }
  // What waits, on both sides of the membership.
  Stall stall(TimeNs now) const {
    Stall found = calls.stall(now);
    const std::string held = stage == nullptr ? "" : stage->describe(calls.layout());
    if (!held.empty()) found.text += (found.text.empty() ? "" : "; ") + held;
    return found;
  }
  // With the lock held: a call has left something to do.
  void wake() noexcept {
    called = true;
    if (!std::exchange(sleeping, false)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd.get(), &one, sizeof one);
  }

  const OwnedFd wake_fd;

 private:
  const std::unique_ptr<Calls> owned_;

 public:
  SessionMutex mutex;
  // Something that a call may wait for has happened.
  std::condition_variable changed;
  std::condition_variable copies;  // the stage has something to do
  // The burst that is made or sent reads memory that callers have submitted. The progress thread
  // sets it under the mutex and takes it back without; it handles nothing that gives memory back
  // before that. A call that does waits for it: await_burst().
  std::atomic<bool> reading{false};
  // ---- under the mutex ----
  Calls& calls;
  Driven& driven;
  // For what a job over several appliances lacks: stragglers and stores. There it is the session of
  // the first lane, which is synchronous and says so.
  Session& session;
  std::unique_ptr<CopyStage> stage;             // null: all gradients are in host memory
  std::unique_ptr<OperationCopies> operations;  // of a job of operations with a stage; else null
  Status failure;         // of the device: the job has been left because of it
  bool called = false;    // since the progress thread asked the session last
  bool sleeping = false;  // it sleeps: only wake_fd, a datagram or a timeout ends that
  bool stop = false;      // it ends within one loop
  std::shared_ptr<CollectiveCall> collective;  // in progress
  std::vector<std::uint8_t> giving;            // this rank's state, while the session reads it
  TransportCounters transport;
};

}  // namespace sluice::client

// Where the work is done that a session's thread need not do itself: thresholds take passes over
// whole tensors, while datagrams wait.
#pragma once

#include <atomic>

namespace sluice::client {

// A piece of work that can be done again and again. What it reads and writes is its own while it is
// not done.
class Task {
 public:
  virtual ~Task() = default;
  // What was written by run() is seen by who has read true.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  void wait() const noexcept { done_.wait(false, std::memory_order_acquire); }
  // Before it is given to an executor.
  void begin() noexcept { done_.store(false, std::memory_order_release); }
  // Once after each begin(), on any thread.
  void run() noexcept {
    [[maybe_unused]] const bool begun = !done();  // sees what was written before begin()
    work();
    done_.store(true, std::memory_order_release);
    done_.notify_all();
  }

 private:
  virtual void work() noexcept = 0;
  std::atomic<bool> done_{true};
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs the task, which has begun: before it returns, or at some time on another thread; then
  // whoever made the executor tells the session's thread.
  virtual void execute(Task& task) = 0;
  // Returns when it has run.
  virtual void finish(Task& task) = 0;
};

}  // namespace sluice::client

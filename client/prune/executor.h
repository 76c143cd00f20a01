// Executors run work that would delay the session's thread: finding a threshold takes passes over a
// whole tensor, while datagrams wait.
#pragma once

#include <atomic>

namespace sluice::client {

// A piece of work that can be run repeatedly. The data that it reads and writes belongs to it while
// it is not done.
class Task {
 public:
  virtual ~Task() = default;
  // A thread that reads true sees everything that run() has written.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  void wait() const noexcept { done_.wait(false, std::memory_order_acquire); }
  // Called before the task is given to an executor.
  void begin() noexcept { done_.store(false, std::memory_order_release); }
  // Called once after each begin(), on any thread.
  void run() noexcept {
    [[maybe_unused]] const bool begun = !done();  // sees all writes before begin()
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
  // Runs the task, whose begin() was called: before it returns, or later on another thread. In the
  // latter case the executor's owner wakes the session's thread.
  virtual void execute(Task& task) = 0;
  // Returns when the task has run.
  virtual void finish(Task& task) = 0;
};

}  // namespace sluice::client

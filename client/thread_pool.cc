#include "client/thread_pool.h"

#include <tbb/info.h>

#include <algorithm>
#include <new>

namespace sluice::client {
namespace {

constexpr int kMaxThreads = 4;

int threads() { return std::clamp(tbb::info::default_concurrency() / 2, 1, kMaxThreads); }

// One arena for all jobs of the process, for ever. A thread that has come to the end of one arena's
// work looks there for more, a fifth of a second on a loaded machine, before it goes to another
// arena. No place is kept for calling threads: the progress thread never works here.
tbb::task_arena& shared_arena() {
  static auto* const arena = new tbb::task_arena(threads(), 0);
  return *arena;
}

}  // namespace

ThreadPool::ThreadPool() : arena_(shared_arena()) {}

ThreadPool::~ThreadPool() noexcept {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return tasks_ == 0; });
}

void ThreadPool::execute(Task& task) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ++tasks_;
  }
  try {
    arena_.enqueue([this, &task] {
      task.run();
      ran_();
      finish_task();
    });
  } catch (const std::bad_alloc&) {
    task.run();  // late, but it runs
    finish_task();
  }
}

void ThreadPool::finish_task() noexcept {
  const std::lock_guard lock(mutex_);  // while it notifies, too: the waiting thread destroys this
  if (--tasks_ == 0) idle_.notify_all();
}

}  // namespace sluice::client

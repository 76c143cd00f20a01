#include "client/thread_pool.h"

#include <tbb/info.h>

#include <algorithm>
#include <new>

namespace sluice::client {
namespace {

constexpr int kMaxThreads = 4;

int threads() { return std::clamp(tbb::info::default_concurrency() / 2, 1, kMaxThreads); }

// One for all jobs of the process, for ever: a thread that has come to the end of one arena's work
// looks there for more, a fifth of a second on a loaded machine, before it goes to another. No
// place is kept for threads that call: the progress thread never works here.
tbb::task_arena& shared_arena() {
  static auto* const arena = new tbb::task_arena(threads(), 0);
  return *arena;
}

}  // namespace

ThreadPool::ThreadPool() : arena_(shared_arena()) {}

ThreadPool::~ThreadPool() noexcept { tasks_.wait(); }

void ThreadPool::execute(Task& task) noexcept {
  try {
    arena_.enqueue(tasks_.defer([this, &task] {
      task.run();
      ran_();
    }));
  } catch (const std::bad_alloc&) {
    task.run();  // late, but it runs
  }
}

}  // namespace sluice::client

// Threads beside the progress thread, by oneTBB: they find out what of pruned tensors leaves, each
// a tensor at a time, while the progress thread moves datagrams.
//
// Four at most, and no more than half of the cores: the application computes meanwhile. oneTBB
// shares its threads with whoever else uses it in this process.
#pragma once

#include <tbb/task_arena.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

#include "client/prune/executor.h"

namespace sluice::client {

class ThreadPool final : public Executor {
 public:
  ThreadPool();
  ~ThreadPool() noexcept override;  // waits for all tasks

  // `ran` is called after each task, on its thread. Before the first one.
  void tell(std::function<void()> ran) { ran_ = std::move(ran); }
  void execute(Task& task) noexcept override;
  void finish(Task& task) noexcept override { task.wait(); }

 private:
  void finish_task() noexcept;

  std::function<void()> ran_;
  tbb::task_arena& arena_;
  // Counted here, and not by a tbb::task_group: its tasks refer to memory of the thread that handed
  // them over (oneTBB 2022), and the progress thread may end before they do.
  std::mutex mutex_;
  std::condition_variable idle_;
  std::size_t tasks_ = 0;  // handed over and not finished
};

}  // namespace sluice::client

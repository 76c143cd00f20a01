// Threads beside the progress thread, by oneTBB: they find out what of pruned tensors leaves, each
// a tensor at a time, while the progress thread moves datagrams.
//
// Four at most, and no more than half of the cores: the application computes meanwhile. oneTBB
// shares its threads with whoever else uses it in this process.
#pragma once

#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <functional>
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
  std::function<void()> ran_;
  tbb::task_arena& arena_;
  tbb::task_group tasks_;
};

}  // namespace sluice::client

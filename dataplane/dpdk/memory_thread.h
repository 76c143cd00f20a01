// A helper thread of the control thread, which allocates the memory of new jobs and frees that of
// ended ones.
//
// It carries out one order after the other; the control thread posts orders and polls for those
// that are done. It runs at a lower priority than the threads that move packets.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "aggregator/jobs/memory.h"

namespace sluice::dataplane {

class MemoryThread {
 public:
  MemoryThread() = default;
  ~MemoryThread() { stop(); }
  MemoryThread(const MemoryThread&) = delete;
  MemoryThread& operator=(const MemoryThread&) = delete;

  void start();
  // Gives up the order that is being carried out: its job will not be created.
  void stop();
  void post(agg::MemoryOrder order);
  // Takes an order that has been carried out. False: there is none.
  bool poll(agg::MemoryOrder& order);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<agg::MemoryOrder> orders_;  // under mutex_, like all below
  std::deque<agg::MemoryOrder> done_;
  std::shared_ptr<BuildProgress> progress_;  // of the order that is being carried out
  bool stop_ = false;
  std::thread thread_;  // the control side's
};

}  // namespace sluice::dataplane

#include "dataplane/dpdk/memory_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace sluice::dataplane {
namespace {

constexpr int kNiceness = 10;  // packets first

}  // namespace

void MemoryThread::start() {
  thread_ = std::thread([this] { run(); });
}

void MemoryThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (progress_ != nullptr) progress_->unwanted.store(true, std::memory_order_relaxed);
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MemoryThread::post(agg::MemoryOrder order) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(std::move(order));
  }
  posted_.notify_one();
}

bool MemoryThread::poll(agg::MemoryOrder& order) {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return false;
  order = std::move(done_.front());
  done_.pop_front();
  return true;
}

void MemoryThread::run() {
  // On Linux this sets the priority of this thread alone. If it fails, the thread works as well.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stop_ || !orders_.empty(); });
    if (stop_) return;
    agg::MemoryOrder order = std::move(orders_.front());
    orders_.pop_front();
    progress_ = order.progress;
    lock.unlock();
    agg::carry_out(order);
    lock.lock();
    progress_.reset();
    done_.push_back(std::move(order));
  }
}

}  // namespace sluice::dataplane

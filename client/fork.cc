#include "client/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

namespace sluice::client {
namespace {

// Written by any thread, read by the child of a fork, where only atomics are safe. 0 is free:
// entries hold fd + 1.
struct Table {
  std::array<std::atomic<int>, 1024> entries{};
};

Table& table() noexcept {
  static Table instance;
  return instance;
}

void close_all() noexcept {
  for (std::atomic<int>& entry : table().entries) {
    const int value = entry.exchange(0, std::memory_order_relaxed);
    if (value != 0) ::close(value - 1);
  }
}

}  // namespace

void close_in_children(int fd) noexcept {
  static std::once_flag once;
  std::call_once(once, [] { ::pthread_atfork(nullptr, nullptr, close_all); });
  ::fcntl(fd, F_SETFD, ::fcntl(fd, F_GETFD) | FD_CLOEXEC);
  for (std::atomic<int>& entry : table().entries) {
    int free_entry = 0;
    if (entry.compare_exchange_strong(free_entry, fd + 1, std::memory_order_relaxed)) return;
  }
}

void forget_in_children(int fd) noexcept {
  for (std::atomic<int>& entry : table().entries) {
    int taken = fd + 1;
    if (entry.compare_exchange_strong(taken, 0, std::memory_order_relaxed)) return;
  }
}

OwnedFd::OwnedFd(int fd) noexcept : fd_(fd) {
  if (fd_ >= 0) close_in_children(fd_);
}

OwnedFd::OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

OwnedFd::~OwnedFd() { reset(); }

void OwnedFd::reset() noexcept {
  if (fd_ < 0) return;
  forget_in_children(fd_);
  ::close(fd_);
  fd_ = -1;
}

}  // namespace sluice::client

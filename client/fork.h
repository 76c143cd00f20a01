// File descriptors that a forked child must not keep: while the child holds the parent's socket
// open, the appliance cannot notice that the parent has died.
//
// A fixed table of this process, walked by a pthread_atfork child handler; full means that a
// descriptor is only close-on-exec. Any thread.
#pragma once

namespace sluice::client {

// Owns one descriptor: closed on destruction, and in the child of a fork.
class OwnedFd {
 public:
  OwnedFd() noexcept = default;
  explicit OwnedFd(int fd) noexcept;
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd();

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// The same for a descriptor that someone else closes in this process.
void close_in_children(int fd) noexcept;
void forget_in_children(int fd) noexcept;

}  // namespace sluice::client

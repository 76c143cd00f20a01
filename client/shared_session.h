// The session of one job, as application threads and the progress thread share it: one lock, and
// what both sides need beside the session.
//
// An application's call locks, calls the session, and wakes the progress thread. The progress
// thread holds the lock for a burst of datagrams, never across a call of the transport, a sleep or
// a callback. Waiting happens on `changed`.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/core/session.h"
#include "client/fork.h"

namespace sluice::client {

// A broadcast or (with an empty buffer) a barrier. The session owns the buffer until it is done;
// whoever started it may have given up by then.
struct CollectiveCall {
  std::vector<std::uint8_t> buffer;
  bool done = false;
  Status status;
};

struct SharedSession {
  SharedSession(SessionOptions options, Layout layout, TimeNs now)
      : wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        session(std::move(options), std::move(layout), now) {}

  bool ended() const noexcept { return session.state() == SessionState::kClosed; }
  // With the lock held: a call has left something to do.
  void wake() noexcept {
    called = true;
    if (!std::exchange(sleeping, false)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd.get(), &one, sizeof one);
  }

  const OwnedFd wake_fd;
  std::mutex mutex;
  // Something that a call may wait for has happened.
  std::condition_variable changed;
  // ---- under the mutex ----
  Session session;
  bool called = false;    // since the progress thread asked the session last
  bool sleeping = false;  // it sleeps: only wake_fd, a datagram or a timeout ends that
  bool stop = false;      // it ends within one loop
  std::shared_ptr<CollectiveCall> collective;  // in progress
  std::vector<std::uint8_t> giving;            // this rank's state, while the session reads it
  std::uint64_t send_errors = 0;               // of the transport
};

}  // namespace sluice::client

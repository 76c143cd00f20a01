// pthread_cancel() of a thread that is in a call of this library.
//
// Cancellation unwinds a thread's stack out of any system call, like an exception, also through
// functions that are noexcept, which ends the process. So a call of the C interface holds it back,
// and Job::wait() alone lets it happen, where nothing is half done.
#pragma once

#include <pthread.h>

namespace sluice::client {

class HeldCancellation {
 public:
  HeldCancellation() noexcept {
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);
    if (before_ == PTHREAD_CANCEL_ENABLE) held() = true;
  }
  HeldCancellation(const HeldCancellation&) = delete;
  HeldCancellation& operator=(const HeldCancellation&) = delete;
  ~HeldCancellation() {
    if (before_ != PTHREAD_CANCEL_ENABLE) return;
    held() = false;
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  }

  // Unwinds the calling thread, if it has been cancelled and may be.
  static void act() {
    if (!held()) return;
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    ::pthread_testcancel();
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  }

 private:
  static bool& held() noexcept {
    thread_local bool held = false;
    return held;
  }

  int before_ = PTHREAD_CANCEL_ENABLE;  // the caller's
};

}  // namespace sluice::client

// Outcomes of set-up and control calls: a code and one message written where the cause is known.
//
// Not for packets: those end in a Verdict (verdict.h) and a counter.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "aggregator/base/check.h"

namespace sluice {

enum class StatusCode : std::uint8_t {
  kOk,
  kInvalidArgument,  // the caller's value is wrong; the message gives value, place and remedy
  kNotFound,
  kRefused,      // the appliance said no; the message is its own
  kUnreachable,  // nothing answers at the address
  kTimedOut,
  kPeerLost,   // another worker died or fell silent
  kExhausted,  // a configured limit would be exceeded
  kIoError,    // the operating system or DPDK said no
  kClosed,     // the job or the handle has ended
  // Used by the client alone.
  kBusy,         // an earlier request is not done
  kInterrupted,  // the caller's own check asked for it
  kForked,       // the handle belongs to the parent process
  kInternal,     // a bug
  kBehind,       // this worker fell out of the window, or has returned: it needs a peer's state
};

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : state_(std::move(status)) { CHECK(!this->status().ok()); }  // NOLINT

  bool ok() const noexcept { return std::holds_alternative<T>(state_); }
  T& value() & {
    CHECK(ok());
    return std::get<T>(state_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<T>(state_);
  }
  T&& value() && {
    CHECK(ok());
    return std::get<T>(std::move(state_));
  }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace sluice

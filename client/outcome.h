// How a call of the C interface ends: its status and, unless it is SLUICE_OK, the one-line cause.
#pragma once

#include <string>
#include <utility>

#include "aggregator/base/status.h"
#include "client/include/sluice/sluice.h"

namespace sluice::client {

// Both enumerations number their common part alike.
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == SLUICE_INVALID_ARGUMENT &&
              static_cast<int>(StatusCode::kNotFound) == SLUICE_NOT_FOUND &&
              static_cast<int>(StatusCode::kRefused) == SLUICE_REFUSED &&
              static_cast<int>(StatusCode::kUnreachable) == SLUICE_UNREACHABLE &&
              static_cast<int>(StatusCode::kTimedOut) == SLUICE_TIMED_OUT &&
              static_cast<int>(StatusCode::kPeerLost) == SLUICE_PEER_LOST &&
              static_cast<int>(StatusCode::kExhausted) == SLUICE_EXHAUSTED &&
              static_cast<int>(StatusCode::kIoError) == SLUICE_IO_ERROR &&
              static_cast<int>(StatusCode::kClosed) == SLUICE_CLOSED &&
              static_cast<int>(StatusCode::kBehind) == SLUICE_BEHIND);

struct [[nodiscard]] Outcome {
  sluice_status code = SLUICE_OK;
  std::string text;

  Outcome() = default;
  Outcome(sluice_status outcome_code, std::string message)
      : code(outcome_code), text(std::move(message)) {}
  Outcome(const Status& status)  // NOLINT: implicit by design
      : code(static_cast<sluice_status>(status.code())), text(status.message()) {}
  bool ok() const noexcept { return code == SLUICE_OK; }
};

}  // namespace sluice::client

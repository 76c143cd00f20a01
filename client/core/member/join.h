// The handshake: from the first JOIN to an ACCEPT, or to an error that names both values.
//
// JOIN without proof, padded to the job's biggest datagram, so that the path's MTU is tested before
// a gradient depends on it; CHALLENGE; JOIN with the proof; ACCEPT or REFUSE. When padded requests
// stay unanswered, bare ones are sent beside them under another nonce: an answer to those alone, by
// the end of patience, tells a path that drops big packets from an appliance that is not there.
// While the appliance makes the job's memory it answers PREPARING with a percentage, and patience
// starts anew. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "aggregator/base/time.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/types.h"
#include "client/core/member/view.h"

namespace sluice::client {

// The size of a padded JOIN, the biggest datagram of a session.
std::size_t join_bytes(const Layout& layout, std::size_t world_size) noexcept;

// A join without proof.
struct PaddedJoin {
  PaddedJoin(const SessionOptions& options, const Layout& layout);
  // Precondition: `out` has room for `bytes`, which are written.
  std::size_t write(std::span<std::uint8_t> out, const wire::Sender& sender) const noexcept;

  wire::Join body;
  std::vector<std::uint64_t> absent;  // behind it: the ranks of its view
  std::vector<std::uint32_t> prints;  // behind these
  std::size_t bytes = 0;              // with the padding
};

class JoinMachine {
 public:
  // See wire::Join.
  struct Exchanges {
    std::uint64_t over = 0;
    std::uint64_t entered = 0;
  };
  // Of a process that joins once more: its appliance is silent, or the job moves.
  struct Again {
    Step resume_step = 0;  // that it is in; 0: the job has not started for it, or it is behind
    std::uint32_t resume_calls = 0;
    std::uint16_t resume_k = 0;
    Exchanges exchanges;
    View view;
    DurationNs patience_ns = 0;
  };
  JoinMachine(const SessionOptions& options, const Layout& layout, TimeNs now,
              std::optional<Again> again = {});

  enum class Outcome : std::uint8_t { kPending, kAccepted, kFailed };
  Outcome outcome() const noexcept { return outcome_; }
  const Status& failure() const noexcept { return failure_; }
  // Precondition: kAccepted.
  const wire::Accept& accept() const noexcept { return accept_; }
  const wire::Sender& identity() const noexcept { return identity_; }

  Verdict handle(const wire::Packet& packet, TimeNs now);
  // Bytes of the next request, 0 when none is due.
  std::size_t poll_transmit(std::span<std::uint8_t> out) noexcept;
  TimeNs next_timeout() const noexcept;
  void handle_timeout(TimeNs now);
  void handle_unreachable(TimeNs now);
  // How often the run has moved, as the appliance knows.
  std::uint32_t epoch() const noexcept { return epoch_; }
  // The appliance takes no new jobs, and another one may.
  bool is_draining() const noexcept { return draining_; }
  // Nothing at all has come from the appliance.
  bool is_unheard() const noexcept { return !challenged_ && !bare_passes_ && !padded_passes_; }
  TimeNs started_ns() const noexcept { return started_ns_; }
  // What the appliance does meanwhile; empty unless it prepares the job's memory.
  std::string describe() const;
  // The last answer was that the memory is being made.
  bool preparing() const noexcept { return preparing_ && outcome_ == Outcome::kPending; }
  TimeNs preparing_since() const noexcept { return preparing_since_ns_; }
  // The error for a datagram of `datagram_bytes` that did not fit a path of `path_bytes` (0:
  // unknown), now or later.
  Status too_big(std::size_t datagram_bytes, std::size_t path_bytes) const;

 private:
  void become(Outcome outcome) noexcept;
  void fail(Status why);
  void fail(StatusCode code, std::string message);
  Status size_error(const std::string& what) const;
  void fail_unreachable(TimeNs now);
  void fail_preparing(TimeNs now);
  std::string describe_difference(const wire::Differs& body) const;
  Verdict handle_preparing(const wire::Preparing& body, TimeNs now) noexcept;
  bool can_test_size() const noexcept { return request_.bytes > bare_bytes_; }

  const SessionOptions& options_;
  const Layout& layout_;
  PaddedJoin request_;
  wire::Sender identity_;
  wire::Accept accept_;
  const std::size_t bare_bytes_;
  const DurationNs patience_ns_;
  const DurationNs last_retry_ns_;
  const TimeNs started_ns_;
  TimeNs answered_ns_;      // patience counts from here: the start, or the last sign of progress
  bool preparing_ = false;  // the last answer said so
  TimeNs preparing_since_ns_ = 0;
  std::uint8_t percent_ = 0;
  TimeNs grown_ns_ = 0;  // when percent_ changed last
  TimeNs next_send_ns_;
  DurationNs retry_ns_;
  std::string size_reason_;  // what the appliance said to a bare request
  bool send_padded_ = true;
  bool send_bare_ = false;
  bool challenged_ = false;
  bool bare_passes_ = false;  // an answer to it has come
  bool padded_passes_ = false;
  std::uint32_t epoch_ = 0;
  bool draining_ = false;
  int unreachable_count_ = 0;
  Outcome outcome_ = Outcome::kPending;
  Status failure_;
};

}  // namespace sluice::client

// A member's control traffic after the join: keepalives and their answers, how the job forms,
// pings, notices, the silence of the appliance, and leaving. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "aggregator/base/limits.h"
#include "aggregator/base/time.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/counters.h"
#include "client/core/calls/types.h"
#include "client/core/member/view.h"

namespace sluice::client {

class Membership {
 public:
  explicit Membership(const SessionOptions& options) noexcept : options_(options) {}

  struct Restart {
    // The job goes on when the appliance comes back within that time. Then neither silence nor the
    // notice of a shutdown ends it before. 0: both do.
    DurationNs restart_ns = 0;
    // It is another one, or has come back, and the other ranks have that time to come; 0: new job.
    DurationNs returns_ns = 0;
  };
  void begin(const wire::Sender& identity, Restart restart, TimeNs now) noexcept;

  // What a control packet or a timeout brought; the session acts on it.
  enum class Change : std::uint8_t { kNone, kStarted, kLeft, kFailed };
  Change handle(const wire::Packet& packet, TimeNs now, Verdict& verdict);
  Change handle_timeout(TimeNs now);
  TimeNs next_timeout() const noexcept;
  bool has_control() const noexcept { return send_leave_ || send_keepalive_; }
  // Bytes of the next control packet, 0 when none is due.
  std::size_t poll_transmit(std::span<std::uint8_t> out, const Counters& counters,
                            TimeNs now) noexcept;

  // The job runs, as a data packet showed before a status did. False: that was known.
  bool note_running() noexcept {
    if (phase_ != Phase::kForming) return false;
    become(Phase::kRunning);
    return true;
  }
  // Any packet of this job came from the appliance.
  void heard(TimeNs now) noexcept { heard_ns_ = now; }
  TimeNs heard_ns() const noexcept { return heard_ns_; }
  // `why`: of kAborted.
  void leave(const wire::Leave& body, std::string why, TimeNs now);
  // After a failure: one LEAVE, so that the other ranks learn of it, and nothing else.
  void farewell(const wire::Leave& body) noexcept;
  // The appliance says that it is about to end, or to be drained.
  bool ends() const noexcept { return !shutdown_.empty(); }
  wire::Drain drain() const noexcept { return drain_; }
  // Why the last change was kFailed.
  const Status& failure() const noexcept { return failure_; }
  // The job runs, and goes on from an appliance that is lost with this step, as the last status
  // said; 0: it is new.
  Step resume_step() const noexcept { return resumed_.step; }
  // The rest of what it said about that, see wire::Status.
  struct Resumed {
    Step step = 0;
    Step from = 0;
    std::uint32_t calls = 0;
    std::uint64_t exchange = 0;
    std::uint64_t exchange_over = 0;
    bool needs_state = false;
  };
  const Resumed& resumed() const noexcept { return resumed_; }
  // A status of a store: takes the view that it tells. A keepalive says at once that it is known.
  void take_view(const wire::Packet& status, View& view) noexcept;
  // Members, as the last status said.
  std::uint16_t joined_count() const noexcept { return joined_count_; }
  // Ranks that have not joined, or are gone, as the last status said: "ranks 2, 5, 7".
  bool lacks_ranks() const noexcept;
  bool is_forming() const noexcept { return phase_ == Phase::kForming; }
  std::string missing_ranks() const;
  // While the job forms: who is here and who is awaited; and when the members' number changed last.
  std::string describe_forming() const;
  TimeNs grown_ns() const noexcept { return grown_ns_; }

 private:
  enum class Phase : std::uint8_t { kForming, kRunning, kLeaving, kOver };

  void become(Phase phase) noexcept;
  Change fail(StatusCode code, std::string message);
  Change handle_notice(const wire::Packet& packet);
  Change handle_status(const wire::Packet& packet, TimeNs now);
  Change fail_silent(TimeNs now);
  void note_wakeup(TimeNs now) noexcept;
  std::string describe_absent(TimeNs now) const;

  const SessionOptions& options_;
  wire::Sender identity_;
  wire::Leave leave_;
  std::string leave_text_;
  Phase phase_ = Phase::kForming;
  bool send_keepalive_ = false;
  std::uint32_t view_ = 0;   // the newest that is known
  std::uint64_t token_ = 0;  // of the last ping that had one; every keepalive echoes it
  bool send_leave_ = false;
  TimeNs joined_ns_ = 0;
  TimeNs grown_ns_ = 0;
  TimeNs heard_ns_ = 0;
  TimeNs woke_ns_ = 0;
  TimeNs next_send_ns_ = kNever;  // keepalive, or the repeated leave
  TimeNs leave_until_ns_ = kNever;
  TimeNs ended_by_ns_ = kNever;         // a status said that the job is over; its notice may follow
  DurationNs patience_ns_ = 0;          // with a silent appliance
  DurationNs forming_patience_ns_ = 0;  // with ranks that do not come
  bool survives_restart_ = false;
  std::string shutdown_;  // what an appliance that ends has said
  wire::Drain drain_{};
  std::uint16_t joined_count_ = 0;
  Resumed resumed_;
  std::uint64_t missing_[kMaskWords] = {};
  std::uint64_t unseen_[kMaskWords] = {};  // of a forming job: ranks that no status had as members
  Status failure_;
};

}  // namespace sluice::client

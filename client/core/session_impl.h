// The inside of a Session: its parts and how they are wired. Included by session*.cc only.
//
// join -> membership (control port) and gradients + collectives + transfers (data ports) over one
// Link. The session dispatches datagrams and timeouts, decides what leaves next, and turns the
// first failure into the one final event. session.cc: the control side; session_calls.cc: the
// public calls; session_data.cc: data packets in and out; stall.cc: what a step waits for.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "client/core/collective.h"
#include "client/core/gradients.h"
#include "client/core/join.h"
#include "client/core/link.h"
#include "client/core/membership.h"
#include "client/core/session.h"
#include "client/core/transfer.h"

namespace sluice::client {

// The last answer that named missing ranks, for reports.
struct MissingReport {
  StreamId stream{};
  Step step = 0;  // 0: none yet
  TimeNs arrived_ns = 0;
  std::array<std::uint64_t, kMaskWords> ranks{};
  std::array<wire::MissingAge, kMaxMissingAges> ages{};
  std::size_t age_count = 0;
};

struct Session::Impl {
  Impl(SessionOptions session_options, Layout layout, TimeNs now);

  // ---- control side (session.cc) ----
  Verdict handle(const wire::Packet& packet, TimeNs now);
  Verdict handle_join_answer(const wire::Packet& packet, TimeNs now);
  void after_join(TimeNs now);
  void start(TimeNs now);
  void act(Membership::Change change, TimeNs now);
  void handle_timeout(TimeNs now);
  TimeNs next_timeout() const noexcept;
  void leave(wire::LeaveReason reason, TimeNs now);
  // The first failure ends the session. `tell`: the appliance does not know yet.
  void fail(Status why, bool tell);
  Status ready() const;           // whether the application may still call
  Status ready_for_step() const;  // likewise, for what needs this rank to be where the others are
  // What a call for a step has set off: the end of the step, or of the session.
  Status finish_call(Status status, TimeNs now);
  wire::Leave leave_body(wire::LeaveReason reason) const noexcept;
  Status resync(TimeNs now);
  // The window need not wait any more when this worker is where the others are.
  void note_caught_up(TimeNs now) noexcept;

  // ---- data side (session_data.cc) ----
  Verdict handle_data(const wire::Packet& packet, TimeNs now);
  Verdict handle_state(const wire::Packet& packet, TimeNs now);
  std::size_t poll_data(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept;
  std::size_t poll_probe(std::uint16_t shard, std::span<std::uint8_t> out, TimeNs now,
                         Priority& priority) noexcept;
  std::size_t write_probe(std::uint16_t shard, StreamId stream, Recovery& recovery,
                          const Recovery::ProbePlan& plan, Priority priority,
                          std::span<std::uint8_t> out, TimeNs now) noexcept;
  // Streams 1 and 2: whether the stream has work for shard 0's flow.
  bool busy(StreamId stream) const noexcept {
    return stream == StreamId::kState ? transfers.in_progress() : collectives.in_progress();
  }
  PieceStream& pieces(StreamId stream) noexcept {
    return stream == StreamId::kState ? transfers.pieces() : collectives.pieces();
  }
  std::size_t poll_pieces(StreamId stream, std::span<std::uint8_t> out, TimeNs now) noexcept;
  std::size_t poll_gradients(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept;
  void work(TimeNs now) noexcept;
  void work(std::uint16_t shard, TimeNs now) noexcept;
  void remember_missing(const wire::Packet& packet, TimeNs now) noexcept;

  // ---- reports (stall.cc) ----
  std::string describe_stall(TimeNs now) const;
  void append_missing(std::string& text, StreamId stream, Step step, TimeNs now) const;
  TimeNs stall_report_due() const noexcept;
  void report_stall(TimeNs now);

  const SessionOptions options;
  Link link;
  GradientStream gradients;
  Collectives collectives;
  Transfers transfers;
  JobFacts facts;
  JoinMachine join;
  Membership membership;
  SessionState state = SessionState::kJoining;
  Status failure;  // why it is closed; ok: it left
  const std::size_t datagram_bytes;
  MissingReport missing;
  TimeNs stall_reported_ns = 0;
};

}  // namespace sluice::client

// One worker's side of one job: everything the protocol asks of a worker, without a socket.
//
// Pure: datagrams and time in, datagrams and events out. It owns recovery (the appliance keeps no
// per-packet timer): joins, numbers, windows, probes, credit, collectives, keepalives, and the
// errors that name address, job, ranks and values. Its owner (client/progress.h, the simulator)
// drives it: handle_datagram() for what arrived, then poll_transmit() until false, then sleep until
// next_timeout() at most. The application's calls only note what is wanted; the next
// poll_transmit() acts on it. One thread at a time. No allocation after start-up but for error
// texts, a received state, an appliance that has restarted, and events that nobody polls.
//
// session.cc: the control side; session_data.cc: data packets in and out; session_restart.cc: an
// appliance that is lost and comes back; session_standby.cc: a move to another one;
// session_resync.cc: another rank's state; stall.cc: what a
// step waits for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "aggregator/base/verdict.h"
#include "client/core/bytes/collective.h"
#include "client/core/bytes/transfer.h"
#include "client/core/calls/calls.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/types.h"
#include "client/core/handover/resumption.h"
#include "client/core/link/link.h"
#include "client/core/member/driven.h"
#include "client/core/member/join.h"
#include "client/core/member/membership.h"
#include "client/core/member/standby.h"
#include "client/core/operations/group_stream.h"
#include "client/core/store/store.h"
#include "client/core/sums/gradients.h"
#include "client/core/sums/held.h"

namespace sluice::client {

class Session final : public Calls, public Driven {
 public:
  Session(SessionOptions options, Layout layout, TimeNs now);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // ---- network side ----
  Verdict handle_datagram(std::span<const std::uint8_t> bytes, TimeNs now);
  // Writes the next datagram, most urgent first, as windows allow; a gradient's payload stays in
  // the caller's memory. False: nothing may be sent now.
  bool poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  // Schedules one of the tensors that were submitted; poll_transmit() does it for all, so only
  // whoever shares the session between threads needs it. False: there was none.
  bool act_on_call(TimeNs now) override;
  bool has_call() const noexcept override { return tensor_stream().has_next(); }
  // When handle_timeout() wants to run next; kNever when only a packet or the application can help.
  TimeNs next_timeout() const noexcept;
  void handle_timeout(TimeNs now);
  // The transport learnt that nothing listens there, or that a datagram was too big for the path
  // (`path_datagram_bytes` of it, 0 when unknown). Unless this host itself refused the datagram
  // (`certain`), that may be forged: it ends a join, never a job.
  void handle_unreachable(TimeNs now);
  void handle_too_big(std::size_t datagram_bytes, std::size_t path_datagram_bytes, bool certain,
                      TimeNs now);
  // kClosed, and all events polled: joins the job once more, or this run of it, as a member that it
  // has not had. Kept: the options, the layout, the counters and verdicts, which go on counting,
  // and the session's address. Anew: the steps of all streams, what was submitted, windows,
  // residuals, and the membership. Without memory, of which the membership before has just given
  // back as much, the process ends.
  void rejoin(std::uint64_t run_id, TimeNs now) noexcept;
  // The transport, or the memory to go on, is gone for good.
  void handle_broken(Status why, TimeNs now) override { fail(std::move(why), false, now); }
  bool poll_event(Event& event) noexcept override { return link_.events.pop(event); }
  // With options.trace: the tensors that are done, each at its kTensorDone event at the latest.
  bool poll_trace(TensorTimes& times) noexcept override {
    return tensor_stream().poll_trace(times);
  }

  // ---- application side, beside the calls that all memberships have (calls.h) ----
  void leave(wire::LeaveReason reason, TimeNs now) override;

  // ---- a job of kind store ----
  // Null: it is none. To be called while status() is ok, after kJoined.
  Store* store() noexcept { return store_.get(); }

  // Its groups, of a job of kind operations. Null: it is none. After kStarted.
  GroupStream* groups() noexcept { return groups_.get(); }

  // ---- stragglers: jobs whose policy is not sync ----
  // Asks for another rank's state; kStateReceived ends it. Called again before that, it goes on
  // with the same request. kBusy while something is in flight.
  Status resync(TimeNs now);
  bool has_state() const noexcept { return transfers_ != nullptr && transfers_->has_state(); }
  // Why the last resync() has brought no state; ok otherwise. Precondition: it was called.
  const Status& resync_failure() const noexcept { return transfers_->failure(); }
  // The state that has arrived: the caller's from now on, and the next step is the one after it.
  ReceivedState take_state(TimeNs now);
  // The rank that waits for this one's state.
  std::optional<Rank> state_wanted_by() const noexcept {
    return transfers_ != nullptr ? transfers_->wanted_by() : std::nullopt;
  }
  // Whether send_state() would take a state after `step`.
  Status check_state_step(Step step) const;
  // This rank's state after `step`. True: it is read, and must stay valid until kStateSent, of
  // which every such call has one. False: nobody waits for it (any more).
  bool send_state(std::span<const std::uint8_t> state, Step step, TimeNs now);
  // The step to catch up to before the next gradient: one that is open, or the first that this
  // worker may contribute to. In requeue mode that step too, while late chunks wait
  // to be contributed to it.
  Step open_step() const noexcept { return gradients_ != nullptr ? gradients_->open_step() : 1; }
  std::uint32_t waiting_late_chunks() const noexcept {
    return gradients_ != nullptr ? gradients_->waiting_late_chunks() : 0;
  }
  // Steps to catch up with before the next gradient, from the one that the next submission belongs
  // to.
  std::uint32_t behind() const noexcept;
  const StepReport* report(Step step) const noexcept override {
    return gradients_ != nullptr ? gradients_->reports().of(step) : nullptr;
  }
  const StepReport* last_report() const noexcept override {
    return gradients_ != nullptr ? gradients_->reports().last() : nullptr;
  }

  // ---- what it is and does ----
  std::string place() const { return error_prefix(options_); }  // how its texts begin
  // The running job's ranks that the appliance hears no more of, and that have not left in order.
  bool lacks_ranks() const noexcept { return membership_.lacks_ranks(); }
  std::string missing_ranks() const { return membership_.missing_ranks(); }
  // How often the job has moved to the next of its addresses, for this rank.
  std::uint32_t epoch() const noexcept { return options_.epoch; }
  // The appliance, by its place among its addresses.
  std::uint16_t address() const noexcept { return standby_.address(); }
  Step current_step() const noexcept { return tensors_.current(); }
  Step collective_step() const noexcept { return collectives_.current_step(); }
  // The appliance makes the job's memory and answers so: the join takes as long as that.
  bool preparing() const noexcept { return state_ == SessionState::kJoining && join_.preparing(); }
  Counters counters() const override { return link_.counters; }
  // Of datagrams that arrived.
  const std::array<std::uint64_t, kVerdictCount>& verdicts() const noexcept { return verdicts_; }
  Stall stall(TimeNs now) const override;
  std::string describe_stall(TimeNs now) const { return stall(now).text; }
  DurationNs stalled_ns(TimeNs now) const noexcept;
  std::string describe_plan() const override { return tensor_stream().describe_plan(); }

 private:
  // The last answer that named missing ranks, for reports.
  struct MissingReport {
    StreamId stream{};
    Step step = 0;  // 0: none yet
    TimeNs arrived_ns = 0;
    std::array<std::uint64_t, kMaskWords> ranks{};
    std::array<wire::MissingAge, kMaxMissingAges> ages{};
    std::size_t age_count = 0;
  };

  // ---- session.cc ----
  void submitted(const Submission& submission, TimeNs now) noexcept override;
  bool may_catch_up(Step step) const noexcept override { return gradients_->may_catch_up(step); }
  std::string describe_collective() const override { return collectives_.describe_call(); }
  // Any size: cut into several steps of the collectives stream, with barriers that hold the window.
  Status begin_collective(std::optional<Rank> root, void* buffer, std::size_t bytes,
                          TimeNs now) override;
  Verdict handle(const wire::Packet& packet, TimeNs now);
  Verdict handle_join_answer(const wire::Packet& packet, TimeNs now);
  void act_on_join(TimeNs now);
  Verdict handle_control(const wire::Packet& packet, TimeNs now);
  void become(SessionState state) noexcept;
  void after_join(TimeNs now);
  void use_flows(const JoinMachine& join);
  void start(TimeNs now);
  void act(Membership::Change change, TimeNs now);
  // The first failure ends the session. `tell`: the appliance does not know yet.
  void fail(Status why, bool tell, TimeNs now);
  void close(Event event, TimeNs now);
  wire::Leave leave_body(wire::LeaveReason reason) const noexcept;
  // The window need not wait any more when this worker is where the others are.
  void note_caught_up(TimeNs now) noexcept;

  // ---- session_restart.cc ----
  // What the job waits for when its appliance is lost; 0: it does not. Known since the join.
  DurationNs restart_timeout_ns() const noexcept;
  TimeNs next_asking() const noexcept;
  void ask_again(TimeNs now);
  void ask_anew(TimeNs now);
  DurationNs patience_left(TimeNs now) const noexcept;
  Verdict handle_answer_to_asking(const wire::Packet& packet, TimeNs now);
  void act_on_asking(TimeNs now);
  void change_appliance(TimeNs now);
  void begin_exchange(TimeNs now);
  void give_results(TimeNs now);
  void stop_giving();
  void advance_exchange(TimeNs now);
  void end_exchange(TimeNs now);
  std::string describe_silence(TimeNs now) const;
  std::string describe_restart(TimeNs now) const;

  // ---- session_standby.cc ----
  void consider_move(TimeNs now);
  void move(std::uint32_t epoch, TimeNs now);
  bool poll_move(Transmit& transmit, std::span<std::uint8_t> out) noexcept;

  // ---- session_data.cc ----
  Verdict handle_data(const wire::Packet& packet, TimeNs now);
  std::optional<std::uint16_t> shard_of_packet(const wire::Packet& packet) const noexcept;
  bool poll_data(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  bool poll_credit(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                   TimeNs now) noexcept;
  // The one that carries the job's tensors.
  Stream& tensor_stream() const noexcept { return *streams_.front(); }
  Stream* find(StreamId id) const noexcept;  // null: the job has no such stream
  void work(TimeNs now) noexcept;
  void work(std::uint16_t shard, TimeNs now) noexcept;
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept;
  void remember_missing(const wire::Packet& packet, TimeNs now) noexcept;

  // ---- stall.cc ----
  void append_missing(Stall& stall, StreamId stream, Step step, TimeNs now) const;
  TimeNs stall_report_due() const noexcept;
  void report_stall(TimeNs now);

  // Of a session's joins, so that the appliance tells one from the one before.
  static constexpr std::uint64_t kNonceStep = std::uint64_t{1} << 32;

  using Streams = std::vector<Stream*>;
  void make_streams();
  void make_store();

  Link link_;
  // The job's kind decides which streams there are, and their orders: the constructor is the only
  // place that asks for it. Of sums gradients and transfers; of a store its pushes and pulls; of
  // operations its groups.
  std::unique_ptr<GradientStream> gradients_;
  std::unique_ptr<Transfers> transfers_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<GroupStream> groups_;
  Collectives collectives_;
  Streams streams_;      // the tensors' first
  Streams probe_order_;  // probes leave before data
  Streams send_order_;
  JoinMachine join_;
  Membership membership_;
  Standby standby_;
  const std::size_t datagram_bytes_;
  bool has_started_ = false;  // the job, for this worker
  // Of an appliance that is lost. A join is on its way while it is silent.
  std::optional<JoinMachine> asking_;
  std::optional<Resumption> resumption_;  // while the ranks state what they know
  std::unique_ptr<Stream> held_;          // while they give it, with k < n or of a store
  JoinMachine::Exchanges exchanges_;      // likewise
  View view_;                             // of a store with a standby
  bool rejoined_ = false;                 // the job had gone on without this rank
  bool changed_ = false;                  // the appliance, which the ranks have yet to agree about
  TimeNs lost_ns_ = 0;                    // when the one before was heard last
  // This rank has left its appliance and has no place at the next: nothing that the former sends
  // counts any more, and it is told now and then.
  bool moving_ = false;
  struct Former {
    wire::Sender identity;
    std::uint16_t address = 0;
    bool tell = false;
  } former_;
  std::string refused_;  // by the next appliance, last
  MissingReport missing_;
  TimeNs stall_reported_ns_ = 0;
  std::string last_stall_;  // when it ended
  std::array<std::uint64_t, kVerdictCount> verdicts_{};
};

}  // namespace sluice::client

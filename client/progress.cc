#include "client/progress.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "client/trace_file.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLongestSleep = 100 * kMillisecond;
constexpr DurationNs kLeaveLimit = 800 * kMillisecond;  // the contract says 1 s for the whole call
// With fewer cores than threads, spinning takes time from whoever has work.
constexpr unsigned kCoresForSpinning = 8;
constexpr DurationNs kSpinLimit = 20 * kMicrosecond;
constexpr int kBurstsPerLoop = 2;  // of each direction, so that neither starves the other

// The application's signal handlers stay on the application's threads.
void block_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Progress::Progress(Board& board, std::unique_ptr<Transport> transport,
                   std::unique_ptr<Session> session, ProgressCallbacks callbacks, Log log,
                   std::string who, TraceFile* trace)
    : board_(board),
      transport_(std::move(transport)),
      session_(std::move(session)),
      callbacks_(std::move(callbacks)),
      log_(std::move(log)),
      who_(std::move(who)),
      trace_(trace),
      may_spin_(std::thread::hardware_concurrency() >= kCoresForSpinning),
      tx_bytes_(kBurst * kTxSlotBytes) {
  for (std::size_t i = 0; i < kBurst; ++i) {
    tx_[i].data = tx_bytes_.data() + i * kTxSlotBytes + kTxHeadroomBytes;
  }
}

Progress::~Progress() {
  stop_.store(true);
  board_.request_leave(wire::LeaveReason::kAbnormal);  // wakes it
  if (thread_.joinable()) thread_.join();
}

void Progress::start() {
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  block_signals();  // inherited by the new thread from its first instruction on
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Progress::run() {
  ::pthread_setname_np(::pthread_self(), "sluice");
  board_.set_progress_thread();
  while (!ended_) {
    TimeNs now = monotonic_now();
    apply_commands(now);
    bool worked = receive(now);
    handle_path_events(now);
    if (session_->next_timeout() <= now) session_->handle_timeout(now);
    if (session_->preparing()) board_.note_preparing();
    publish_counters();  // before anybody hears of what they count
    dispatch_events(now);
    worked |= transmit(now);
    publish_counters();
    if (ended_) break;
    if (now >= leave_deadline_ns_ || stop_.load(std::memory_order_relaxed)) {
      end({SLUICE_CLOSED, "this worker has left the job"}, now);
    } else if (worked) {
      last_work_ns_ = now;
    } else {
      idle(now);
    }
  }
  publish_counters();
}

// Moves `now` on when something came: a datagram must not seem to be here before it has come, or
// round trips would be too short by what the loop did before.
bool Progress::receive(TimeNs& now) {
  bool worked = false;
  for (int burst = 0; burst < kBurstsPerLoop; ++burst) {
    const std::span<const Incoming> datagrams = transport_->receive(now);
    if (!datagrams.empty()) now = monotonic_now();
    for (const Incoming& datagram : datagrams) session_->handle_datagram(datagram.bytes, now);
    worked |= !datagrams.empty();
    if (datagrams.size() < kBurst) break;
  }
  return worked;
}

bool Progress::fill_transmit_burst(TimeNs now) {
  tx_first_ = 0;
  tx_count_ = 0;
  client::Transmit transmit;
  while (tx_count_ < kBurst) {
    Outgoing& slot = tx_[tx_count_];
    if (!session_->poll_transmit(transmit, {slot.data, kMaxDatagramBytes}, now)) break;
    slot.bytes = transmit.bytes;
    slot.port_offset = transmit.port_offset;
    ++tx_count_;
  }
  return tx_count_ != 0;
}

bool Progress::transmit(TimeNs now) {
  bool worked = false;
  for (int burst = 0; burst < kBurstsPerLoop; ++burst) {
    if (tx_first_ == tx_count_ && !fill_transmit_burst(now)) break;
    const std::size_t sent = transport_->send({tx_.data() + tx_first_, tx_count_ - tx_first_}, now);
    tx_first_ += sent;
    worked |= sent != 0;
    if (tx_first_ != tx_count_) break;  // offered again in the next loop
  }
  return worked;
}

void Progress::handle_path_events(TimeNs now) {
  PathEvent event;
  while (transport_->poll_path_event(event)) {
    switch (event.kind) {
      case PathEvent::Kind::kUnreachable: session_->handle_unreachable(now); break;
      case PathEvent::Kind::kTooBig:
        session_->handle_too_big(event.datagram_bytes, event.path_datagram_bytes, event.certain,
                                 now);
        break;
      case PathEvent::Kind::kBroken:
        end(Status(event.status.code(), who_ + ": " + event.status.message()), now);
        return;
    }
  }
}

void Progress::apply_commands(TimeNs now) {
  if (!board_.take_commands(commands_)) return;
  for (Command& command : commands_) apply(command, now);
  commands_.clear();
  apply_steps(now);
}

void Progress::apply(Command& command, TimeNs now) {
  if (ended_) return;
  switch (command.kind) {
    case Command::Kind::kSubmit:
    case Command::Kind::kEndStep:  // of before this rank fell behind: the board has given them up
      if (!session_->must_resync()) steps_.push_back(std::move(command));
      break;
    case Command::Kind::kResync:
      if (const Status status = session_->resync(now); !status.ok()) board_.resync_failed(status);
      break;
    case Command::Kind::kSendState:
      if (!giving_.empty()) break;  // asked twice: the session reads the first one
      giving_ = std::move(command.state);
      board_.set_state_wanted(-1);
      if (!session_->send_state(giving_, command.step, now)) giving_ = {};
      break;
    case Command::Kind::kCollective: {
      CollectiveCall& call = *command.collective;
      const Status status = call.is_barrier ? session_->barrier(now)
                                            : session_->broadcast(call.root, call.buffer.data(),
                                                                  call.buffer.size(), now);
      if (!status.ok()) board_.collective_done(status);
      break;
    }
    case Command::Kind::kDescribe:
      board_.described(command.kind, session_->describe_stall(now));
      break;
    case Command::Kind::kDescribePlan:
      board_.described(command.kind, session_->describe_plan());
      break;
    case Command::Kind::kLeave:
      if (leave_deadline_ns_ != kNever) break;
      // The session itself ends the wait of a rank that ends before the others.
      if (command.reason != wire::LeaveReason::kUneven) leave_deadline_ns_ = now + kLeaveLimit;
      session_->leave(command.reason, now);
      break;
  }
}

// The application may be further ahead than the session, which takes the step under way and the one
// after it. What is not due waits, and everything behind it: a submission's step follows from the
// order.
void Progress::apply_steps(TimeNs now) {
  while (!ended_ && !steps_.empty() && steps_.front().step <= session_->current_step() + 1) {
    const Status status = apply_step(steps_.front(), now);
    steps_.pop_front();
    // The board has checked the arguments: only a session that is about to fail refuses.
    if (!status.ok() && status.code() != StatusCode::kBehind &&
        session_->state() == SessionState::kRunning) {
      end({SLUICE_INTERNAL, status.message()}, now);
    }
  }
}

Status Progress::apply_step(const Command& command, TimeNs now) {
  return command.kind == Command::Kind::kSubmit ? session_->submit(command.submission, now)
                                                : session_->end_step(now);
}

void Progress::dispatch_events(TimeNs now) {
  // Before anybody hears that the tensors are done and says what became of them.
  TensorTimes times;
  while (trace_ != nullptr && session_->poll_trace(times)) trace_->done(times);
  Event event;
  while (!ended_ && session_->poll_event(event)) dispatch(event, now);
  apply_steps(now);
}

void Progress::dispatch(const Event& event, TimeNs now) {
  switch (event.kind) {
    case Event::Kind::kJoined:
      log_.write(SLUICE_LOG_DEBUG, "joined, waiting for the others");
      break;
    case Event::Kind::kStarted:
      board_.mutable_counters().shards.set(session_->shard_count());
      log_.write(SLUICE_LOG_DEBUG, "all ranks have joined");
      board_.started(session_->facts(), session_->must_resync());
      break;
    case Event::Kind::kTensorDone:
      // Whoever has waited for the last tensor of a step may ask about the step at once.
      if (const StepReport* report = session_->report(event.step)) {
        board_.step_done(event.step, report);
      }
      board_.tensor_done(event, now);
      if (callbacks_.tensor_done) callbacks_.tensor_done(event.tensor, SLUICE_OK);
      break;
    case Event::Kind::kStepDone: board_.step_done(event.step, session_->report(event.step)); break;
    case Event::Kind::kFellBehind: fell_behind(event); break;
    case Event::Kind::kStateWanted: board_.set_state_wanted(event.peer.value); break;
    case Event::Kind::kStateUnwanted: board_.set_state_wanted(-1); break;
    case Event::Kind::kStateSent: giving_ = {}; break;
    case Event::Kind::kStateReceived:
      if (event.status.ok()) {
        board_.state_received({session_->take_state(), event.bytes, event.step});
      } else {
        board_.resync_failed(event.status);
      }
      break;
    case Event::Kind::kCollectiveDone: board_.collective_done(event.status); break;
    case Event::Kind::kStalled:
      if (callbacks_.stalled) {
        callbacks_.stalled(event.status.message());
      } else {
        log_.write(SLUICE_LOG_WARN, event.status.message());
      }
      break;
    case Event::Kind::kLeft: end({SLUICE_CLOSED, "this worker has left the job"}, now); break;
    case Event::Kind::kFailed: end(event.status, now); break;
  }
}

void Progress::fell_behind(const Event& event) {
  log_.write(SLUICE_LOG_INFO, event.status.message());
  steps_.clear();
  const std::vector<std::uint32_t> abandoned = board_.fell_behind(event);
  if (!callbacks_.tensor_done) return;
  for (const std::uint32_t tensor : abandoned) callbacks_.tensor_done(tensor, SLUICE_BEHIND);
}

void Progress::end(const Outcome& outcome, TimeNs now) {
  if (ended_) return;
  ended_ = true;
  if (outcome.code != SLUICE_CLOSED) log_.write(SLUICE_LOG_DEBUG, outcome.text);
  const std::vector<std::uint32_t> abandoned =
      board_.end(outcome, session_->describe_stall(now), session_->describe_plan());
  if (!callbacks_.tensor_done) return;
  for (const std::uint32_t tensor : abandoned) callbacks_.tensor_done(tensor, outcome.code);
}

void Progress::idle(TimeNs now) {
  if (may_spin_ && now - last_work_ns_ < kSpinLimit) return;
  if (!board_.prepare_sleep()) return;
  const TimeNs until = std::min(session_->next_timeout(), leave_deadline_ns_);
  const DurationNs sleep_ns = until <= now ? 0 : std::min(until - now, kLongestSleep);
  transport_->wait(board_.wake_fd(), sleep_ns);
  board_.finish_sleep();
}

void Progress::publish_counters() {
  const SessionStats& stats = session_->stats();
  ClientCounters& counters = board_.mutable_counters();
  counters.packets_sent.set(stats.packets_sent);
  counters.packets_received.set(stats.packets_received);
  counters.bytes_sent.set(stats.bytes_sent);
  counters.bytes_received.set(stats.bytes_received);
  counters.retransmissions.set(stats.retransmissions);
  counters.probes.set(stats.probes);
  counters.results_pulled.set(stats.results_pulled);
  counters.duplicate_results.set(stats.duplicate_results);
  counters.non_finite_results.set(stats.non_finite_results);
  counters.nil_contributions.set(stats.nil_contributions);
  counters.non_finite_inputs.set(stats.non_finite_inputs);
  counters.delivered_chunks.set(stats.delivered_chunks);
  counters.late_chunks.set(stats.late_chunks);
  counters.requeued_chunks.set(stats.requeued_chunks);
  counters.discarded_chunks.set(stats.discarded_chunks);
  counters.cancelled_bytes.set(stats.cancelled_bytes);
  counters.resyncs.set(stats.resyncs);
  board_.publish_position(session_->open_step(), session_->waiting_late_chunks() != 0);
  counters.send_errors.set(transport_->send_errors());
  std::uint64_t invalid = 0;
  for (std::size_t i = 0; i < kVerdictCount; ++i) {
    const PacketUse use = kVerdictInfo[i].use;
    if (use == PacketUse::kMalformed || use == PacketUse::kForeign) invalid += stats.verdicts[i];
  }
  counters.invalid_packets.set(invalid);
}

}  // namespace sluice::client

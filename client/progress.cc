#include "client/progress.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <new>
#include <utility>

#include "client/clock.h"
#include "client/trace_file.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLongestSleep = 100 * kMillisecond;
// With fewer cores than threads, spinning takes time from whoever has work.
constexpr unsigned kCoresForSpinning = 8;
constexpr DurationNs kSpinLimit = 20 * kMicrosecond;
// Of each direction in a loop, so that neither starves the other.
constexpr std::size_t kDatagramsPerLoop = 2 * kBurst;
constexpr std::size_t kUsualEvents = 64;

// The application's signal handlers stay on the application's threads.
void block_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Progress::Progress(SharedSession& shared, std::unique_ptr<Transport> transport,
                   ProgressCallbacks callbacks, Log log, std::string who, TraceFile* trace)
    : shared_(shared),
      transport_(std::move(transport)),
      callbacks_(std::move(callbacks)),
      log_(std::move(log)),
      who_(std::move(who)),
      trace_(trace),
      may_spin_(std::thread::hardware_concurrency() >= kCoresForSpinning),
      tx_bytes_(kBurst * kTxSlotBytes) {
  for (std::size_t i = 0; i < kBurst; ++i) {
    tx_[i].data = tx_bytes_.data() + i * kTxSlotBytes + kTxHeadroomBytes;
  }
  events_.reserve(kUsualEvents);
}

Progress::~Progress() {
  {
    const auto lock = shared_.mutex.lock();
    shared_.stop = true;
    shared_.wake();
  }
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
  thread_id_.store(std::this_thread::get_id());
  for (bool running = true; running;) {
    TimeNs now = monotonic_now();
    bool worked = receive(now);
    running = act(now);
    worked |= transmit(now);
    for (const Event& event : events_) tell(event);
    if (!running) break;
    if (worked) {
      last_work_ns_ = now;
    } else {
      idle(now);
    }
  }
}

// Before anybody hears that the tensors are done and says what became of them.
void Progress::drain_trace() {
  if (trace_ == nullptr) return;
  TensorTimes times;
  while (shared_.session.poll_trace(times)) trace_->done(times);
}

// Runs `body` on the session with the lock held; body calls what it is given where a caller may
// come between.
template <class Body>
void Progress::with_session(TimeNs now, Body body) {
  auto lock = shared_.mutex.lock_for_progress();
  try {
    body(shared_.session, [&] {
      drain_trace();
      shared_.mutex.give_way(lock);
    });
    drain_trace();
  } catch (const std::bad_alloc&) {
    shared_.session.handle_broken({StatusCode::kExhausted, "out of memory"}, now);
    let_go_of_callers_memory();
  }
}

template <class GiveWay>
void Progress::fill_transmit_burst(TimeNs now, GiveWay give_way) {
  tx_first_ = 0;
  tx_count_ = 0;
  client::Transmit transmit;
  const std::size_t limit_bytes = transport_->send_limit_bytes();
  for (std::size_t bytes = 0; tx_count_ < kBurst && bytes < limit_bytes; ++tx_count_) {
    Outgoing& slot = tx_[tx_count_];
    if (!shared_.session.poll_transmit(transmit, {slot.data, kMaxDatagramBytes}, now)) break;
    slot.bytes = transmit.bytes;
    slot.payload = transmit.payload;
    slot.port_offset = transmit.port_offset;
    if (!slot.payload.empty()) shared_.reading.store(true, std::memory_order_relaxed);
    bytes += slot.total_bytes();
    give_way();
  }
  // It has just failed: callers who see that may use their memory as they like.
  if (!shared_.session.status().ok()) let_go_of_callers_memory();
}

// What the transport has not taken is copied, as it may wait for long.
void Progress::let_go_of_callers_memory() noexcept {
  for (std::size_t i = tx_first_; i < tx_count_; ++i) {
    tx_[i].bytes = whole(tx_[i]).size();
    tx_[i].payload = {};
  }
  shared_.reading.store(false, std::memory_order_release);
}

// Moves `now` on when something came: a datagram must not seem to be here before it has come, or
// round trips would be too short by what the loop did before.
bool Progress::receive(TimeNs& now) {
  bool worked = false;
  for (std::size_t count = 0; count < kDatagramsPerLoop; count += kBurst) {
    const std::span<const Incoming> datagrams = transport_->receive(now);
    if (datagrams.empty()) break;
    now = monotonic_now();
    worked = true;
    with_session(now, [&](Session& session, auto give_way) {
      for (const Incoming& datagram : datagrams) {
        session.handle_datagram(datagram.bytes, now);
        give_way();
      }
    });
    if (datagrams.size() < kBurst) break;
  }
  return worked;
}

// Everything else that the session does in one loop. False: the job is over for this thread.
bool Progress::act(TimeNs now) {
  PathEvent path_event;
  while (transport_->poll_path_event(path_event)) path_events_.push_back(std::move(path_event));
  const TransportCounters counters = transport_->counters();
  events_.clear();
  bool running = true;
  with_session(now, [&](Session& session, auto give_way) {
    shared_.called = false;
    now = monotonic_now();  // what was submitted while this waited for the lock came before
    for (const PathEvent& event : path_events_) handle_path_event(event, now);
    path_events_.clear();
    if (session.next_timeout() <= now) session.handle_timeout(now);
    while (session.act_on_call(now)) give_way();
    if (tx_first_ == tx_count_) fill_transmit_burst(now, give_way);
    for (Event event; session.poll_event(event);) {
      note(event);
      events_.push_back(std::move(event));
    }
    shared_.transport = counters;
    next_timeout_ns_ = session.next_timeout();
    running = !shared_.ended() && !shared_.stop;
  });
  if (!events_.empty()) shared_.changed.notify_all();
  return running;
}

void Progress::handle_path_event(const PathEvent& event, TimeNs now) {
  Session& session = shared_.session;
  switch (event.kind) {
    case PathEvent::Kind::kUnreachable: return session.handle_unreachable(now);
    case PathEvent::Kind::kTooBig:
      return session.handle_too_big(event.datagram_bytes, event.path_datagram_bytes, event.certain,
                                    now);
    case PathEvent::Kind::kBroken:
      return session.handle_broken({event.status.code(), who_ + ": " + event.status.message()},
                                   now);
  }
}

bool Progress::transmit(TimeNs now) {
  std::size_t count = 0;
  while (count < kDatagramsPerLoop) {
    if (tx_first_ == tx_count_ && count != 0)
      with_session(now, [&](Session&, auto give_way) { fill_transmit_burst(now, give_way); });
    if (tx_first_ == tx_count_) break;
    const std::size_t sent = transport_->send({tx_.data() + tx_first_, tx_count_ - tx_first_}, now);
    tx_first_ += sent;
    count += sent;
    if (tx_first_ != tx_count_) break;  // offered again in the next loop
  }
  let_go_of_callers_memory();
  return count != 0;
}

// What the session has done with memory that is not its own. With the lock held.
void Progress::note(const Event& event) {
  if (event.kind == Event::Kind::kStateSent) shared_.giving = {};
  const bool ended = event.kind == Event::Kind::kLeft || event.kind == Event::Kind::kFailed;
  if (shared_.collective == nullptr || (event.kind != Event::Kind::kCollectiveDone && !ended))
    return;
  shared_.collective->done = true;
  shared_.collective->status = ended ? shared_.session.status() : event.status;
  shared_.collective.reset();
}

// Without the lock.
void Progress::tell(const Event& event) {
  const std::string& text = event.status.message();
  switch (event.kind) {
    case Event::Kind::kJoined:
      log_.write(SLUICE_LOG_DEBUG, "joined, waiting for the others");
      break;
    case Event::Kind::kStarted: log_.write(SLUICE_LOG_DEBUG, "all ranks have joined"); break;
    case Event::Kind::kTensorDone:
    case Event::Kind::kTensorLost:
      if (callbacks_.tensor_done) callbacks_.tensor_done(event.tensor, event.status.code());
      break;
    case Event::Kind::kFellBehind: log_.write(SLUICE_LOG_INFO, text); break;
    case Event::Kind::kStalled:
      if (callbacks_.stalled)
        callbacks_.stalled(text);
      else
        log_.write(SLUICE_LOG_WARN, text);
      break;
    case Event::Kind::kFailed: log_.write(SLUICE_LOG_DEBUG, text); break;
    case Event::Kind::kStepDone:
    case Event::Kind::kStateWanted:
    case Event::Kind::kStateUnwanted:
    case Event::Kind::kStateSent:
    case Event::Kind::kStateReceived:
    case Event::Kind::kCollectiveDone:
    case Event::Kind::kPushDone:
    case Event::Kind::kPullDone:
    case Event::Kind::kLeft: break;  // whoever waits for it asks the session
  }
}

void Progress::idle(TimeNs now) {
  if (may_spin_ && now - last_work_ns_ < kSpinLimit) return;
  {
    const auto lock = shared_.mutex.lock_for_progress();
    // A call that came since the session was asked last is served by one more loop.
    if (shared_.called || shared_.stop) return;
    shared_.sleeping = true;
  }
  const DurationNs sleep_ns =
      next_timeout_ns_ <= now ? 0 : std::min(next_timeout_ns_ - now, kLongestSleep);
  transport_->wait(shared_.wake_fd.get(), sleep_ns);
  const auto lock = shared_.mutex.lock_for_progress();
  shared_.sleeping = false;
  std::uint64_t drained = 0;
  [[maybe_unused]] const ssize_t read = ::read(shared_.wake_fd.get(), &drained, sizeof drained);
}

}  // namespace sluice::client

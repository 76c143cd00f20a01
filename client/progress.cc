#include "client/progress.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <new>
#include <utility>

#include "aggregator/base/check.h"
#include "client/clock.h"
#include "client/trace_file.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLongestSleep = 100 * kMillisecond;
// With fewer cores than threads, spinning takes time from threads that have work.
constexpr unsigned kCoresForSpinning = 8;
constexpr DurationNs kSpinLimit = 20 * kMicrosecond;
// Datagrams of each direction in a loop, so that neither starves the other.
constexpr std::size_t kDatagramsPerLoop = 2 * kBurst;
constexpr std::size_t kUsualEvents = 64;

// The event's name in the trace.
constexpr const char* name_of(Event::Kind kind) noexcept {
  if (kind == Event::Kind::kDetoured) return "detour";
  return kind == Event::Kind::kReturned ? "back from a detour" : "stalled";
}

// The application's signal handlers stay on the application's threads.
void block_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Progress::Lane::Lane(Line line)
    : session(line.session),
      transport(std::move(line.transport)),
      turn(std::min(line.turn, kDatagramsPerLoop)),
      tx_bytes(kBurst * kTxSlotBytes) {
  path_events.reserve(kMaxPathEvents);
  for (std::size_t i = 0; i < kBurst; ++i)
    tx[i].data = tx_bytes.data() + i * kTxSlotBytes + kTxHeadroomBytes;
}

Progress::Progress(SharedSession& shared, std::vector<Line> lines, ProgressCallbacks callbacks,
                   Log log, std::string who, TraceFile* trace)
    : shared_(shared),
      callbacks_(std::move(callbacks)),
      log_(std::move(log)),
      who_(std::move(who)),
      trace_(trace),
      may_spin_(std::thread::hardware_concurrency() >= kCoresForSpinning) {
  CHECK(!lines.empty());
  for (Line& line : lines) lanes_.push_back(std::make_unique<Lane>(std::move(line)));
  events_.reserve(kUsualEvents);
  if (lanes_.size() == 1) return;
  any_fd_ = OwnedFd(::epoll_create1(EPOLL_CLOEXEC));
  const auto add = [this](int fd) {
    epoll_event readable{.events = EPOLLIN, .data = {}};
    CHECK(fd >= 0 && ::epoll_ctl(any_fd_.get(), EPOLL_CTL_ADD, fd, &readable) == 0);
  };
  add(shared_.wake_fd.get());
  for (const auto& lane : lanes_) add(lane->transport->poll_fd());
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
    bool worked = false;
    for (const auto& lane : lanes_) worked |= receive(*lane, now);
    running = act(now);
    worked |= transmit(now);
    for (const Event& event : events_) try_to_tell(event);
    if (!running) break;
    if (worked) {
      last_work_ns_ = now;
    } else {
      idle(now);
    }
  }
}

// Called before any caller can learn that the tensors are done.
void Progress::drain_trace() {
  if (trace_ == nullptr) return;
  TensorTimes times;
  while (shared_.driven.poll_trace(times)) trace_->done(times);
}

// Runs `body` with the lock held. `body` calls its argument where a caller may take the lock.
template <class Body>
void Progress::with_lock(TimeNs now, Body body) {
  auto lock = shared_.mutex.lock_for_progress();
  try {
    body([&] {
      drain_trace();
      shared_.mutex.give_way(lock);
    });
    drain_trace();
  } catch (const std::bad_alloc&) {
    shared_.driven.handle_broken({StatusCode::kExhausted, "out of memory"}, now);
    let_go_of_callers_memory();
  }
}

template <class GiveWay>
void Progress::fill_transmit_burst(Lane& lane, std::size_t most, TimeNs now, GiveWay give_way) {
  lane.tx_first = 0;
  lane.tx_count = 0;
  client::Transmit transmit;
  most = std::min(most, kBurst);
  for (std::size_t bytes = 0; lane.tx_count < most && bytes < lane.limit_bytes; ++lane.tx_count) {
    Outgoing& slot = lane.tx[lane.tx_count];
    if (!lane.session.poll_transmit(transmit, {slot.data, kMaxDatagramBytes}, now)) break;
    slot.bytes = transmit.bytes;
    slot.payload = transmit.payload;
    slot.port_offset = transmit.port_offset;
    slot.address = transmit.address;
    if (!slot.payload.empty()) shared_.reading.store(true, std::memory_order_relaxed);
    bytes += slot.total_bytes();
    give_way();
  }
  // The job has just failed: callers that see the failure may use their memory as they like.
  if (!shared_.calls.status().ok()) let_go_of_callers_memory();
}

// Copies the payloads that the transports have not taken, as these may wait for long.
void Progress::let_go_of_callers_memory() noexcept {
  for (const auto& lane : lanes_)
    for (std::size_t i = lane->tx_first; i < lane->tx_count; ++i) {
      lane->tx[i].bytes = whole(lane->tx[i]).size();
      lane->tx[i].payload = {};
    }
  shared_.reading.store(false, std::memory_order_release);
}

// Moves `now` on when a datagram came. Otherwise it would seem to arrive before it did, and round
// trips would be too short by the loop's earlier work.
bool Progress::receive(Lane& lane, TimeNs& now) {
  bool worked = false;
  for (std::size_t count = 0; count < kDatagramsPerLoop; count += kBurst) {
    const std::span<const Incoming> datagrams = lane.transport->receive(now);
    if (datagrams.empty()) break;
    now = monotonic_now();
    worked = true;
    with_lock(now, [&](auto give_way) {
      for (const Incoming& datagram : datagrams) {
        lane.session.handle_datagram(datagram.bytes, now);
        give_way();
      }
    });
    if (datagrams.size() < kBurst) break;
  }
  return worked;
}

// All other work of the sessions in one loop. False: the job is over for this thread.
bool Progress::act(TimeNs now) {
  TransportCounters counters;
  for (const auto& lane : lanes_) {
    PathEvent path_event;
    while (lane->path_events.size() < kMaxPathEvents &&
           lane->transport->poll_path_event(path_event))
      lane->path_events.push_back(std::move(path_event));
    counters += lane->transport->counters();
    lane->limit_bytes = lane->transport->send_limit_bytes();
  }
  events_.clear();
  bool running = true;
  with_lock(now, [&](auto give_way) {
    shared_.called = false;
    now = monotonic_now();  // what was submitted while this waited for the lock came before
    for (const auto& lane : lanes_) {
      Session& session = lane->session;
      for (const PathEvent& event : lane->path_events) handle_path_event(session, event, now);
      lane->path_events.clear();
      if (session.next_timeout() <= now) session.handle_timeout(now);
    }
    while (shared_.driven.act_on_call(now)) give_way();
    next_timeout_ns_ = kNever;
    for (const auto& lane : lanes_) {
      if (lane->empty()) fill_transmit_burst(*lane, lane->turn, now, give_way);
      next_timeout_ns_ = std::min(next_timeout_ns_, lane->session.next_timeout());
    }
    for (Event event; shared_.driven.poll_event(event);) {
      note(event);
      if (!held_back(event)) events_.push_back(std::move(event));
    }
    note_copied();
    shared_.transport = counters;
    running = !shared_.ended() && !shared_.stop;
  });
  if (!events_.empty()) shared_.changed.notify_all();
  return running;
}

void Progress::handle_path_event(Session& session, const PathEvent& event, TimeNs now) {
  const bool elsewhere = event.address != session.address();  // the job is not there
  if (elsewhere && event.kind != PathEvent::Kind::kBroken) return;
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
  bool worked = false;
  for (const auto& lane : lanes_) worked |= transmit(*lane, now);
  let_go_of_callers_memory();
  return worked;
}

bool Progress::transmit(Lane& lane, TimeNs now) {
  std::size_t count = 0;
  while (count < lane.turn) {
    if (lane.empty() && count != 0) {
      lane.limit_bytes = lane.transport->send_limit_bytes();
      with_lock(
          now, [&](auto give_way) { fill_transmit_burst(lane, lane.turn - count, now, give_way); });
    }
    if (lane.empty()) break;
    const std::size_t sent =
        lane.transport->send({lane.tx.data() + lane.tx_first, lane.tx_count - lane.tx_first}, now);
    lane.tx_first += sent;
    count += sent;
    if (!lane.empty()) break;  // offered again in the next loop
  }
  return count != 0;
}

// Notes the membership's use of memory that is not its own. With the lock held.
void Progress::note(const Event& event) {
  if (event.kind == Event::Kind::kStateSent) shared_.giving = {};
  const bool ended = event.kind == Event::Kind::kLeft || event.kind == Event::Kind::kFailed;
  if (shared_.collective == nullptr || (event.kind != Event::Kind::kCollectiveDone && !ended))
    return;
  shared_.collective->done = true;
  shared_.collective->status = ended ? shared_.status() : event.status;
  shared_.collective.reset();
}

// The average of a tensor in device memory is not there yet. With the lock held.
bool Progress::held_back(Event& event) {
  if (shared_.operations != nullptr && event.kind == Event::Kind::kOperationDone) {
    const bool waits = shared_.operations->take(event);
    shared_.copies.notify_one();
    return waits;
  }
  const bool over =
      event.kind == Event::Kind::kTensorDone || event.kind == Event::Kind::kTensorLost;
  if (shared_.stage == nullptr || !over) return false;
  if (!shared_.stage->summed(event.tensor, event.status.code(), event.absent)) return false;
  shared_.copies.notify_one();
  return true;
}

void Progress::note_copied() {
  if (shared_.stage == nullptr) return;
  for (CopyStage::Done done; shared_.stage->poll_done(done);) {
    const bool ok = done.code == StatusCode::kOk;
    if (shared_.operations != nullptr) {
      if (std::optional<Event> event = shared_.operations->copied(done, shared_.failure))
        events_.push_back(std::move(*event));
      continue;
    }
    events_.push_back({.kind = ok ? Event::Kind::kTensorDone : Event::Kind::kTensorLost,
                       .tensor = done.tensor,
                       .status = ok ? Status() : Status(done.code, "its copies were given up")});
  }
  if (shared_.calls.state() == SessionState::kClosed) shared_.copies.notify_one();
}

// Without memory only a line of the log is missing.
void Progress::try_to_tell(const Event& event) noexcept {
  try {
    tell(event);
  } catch (const std::bad_alloc&) {
  }
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
    case Event::Kind::kOperationDone:
      if (event.done) event.done(event.operation, event.status.code());
      break;
    case Event::Kind::kFellBehind: log_.write(SLUICE_LOG_INFO, text); break;
    case Event::Kind::kCreditLimits: log_.write(SLUICE_LOG_WARN, text); break;
    case Event::Kind::kStalled:
    case Event::Kind::kDetoured:
    case Event::Kind::kReturned:
      if (trace_ != nullptr)
        trace_->mark({.name = name_of(event.kind),
                      .text = text,
                      .step = event.step,
                      .at_ns = monotonic_now()});
      if (!callbacks_.stalled) {
        log_.write(SLUICE_LOG_WARN, text);
        break;
      }
      log_.echo(SLUICE_LOG_WARN, text);
      callbacks_.stalled(text);
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
    case Event::Kind::kLeft: break;  // a waiting caller asks the membership
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
  wait(next_timeout_ns_ <= now ? 0 : std::min(next_timeout_ns_ - now, kLongestSleep));
  const auto lock = shared_.mutex.lock_for_progress();
  shared_.sleeping = false;
  std::uint64_t drained = 0;
  [[maybe_unused]] const ssize_t read = ::read(shared_.wake_fd.get(), &drained, sizeof drained);
}

// Sleeps in the transport that waits for room to send, since it knows best what wakes it. To that
// transport the others are one more descriptor.
void Progress::wait(DurationNs sleep_ns) noexcept {
  const auto full = std::ranges::find_if(lanes_, [](const auto& lane) { return !lane->empty(); });
  const auto& waiting = full == lanes_.end() ? lanes_.front() : *full;
  waiting->transport->wait(any_fd_ ? any_fd_.get() : shared_.wake_fd.get(), sleep_ns);
}

}  // namespace sluice::client

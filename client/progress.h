// The one thread that moves a job's datagrams between its sessions and their transports: one of
// each, or many of a job over several appliances.
//
// It also tells what became of things: it wakes whoever waits, calls the application's callbacks
// and logs. Nothing of the protocol is decided here. It is never pinned to a core. Other threads
// only construct, start and stop it.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/log.h"
#include "client/shared_session.h"
#include "client/transport/transport.h"

namespace sluice::client {

class TraceFile;

// Called on the progress thread, without the lock.
struct ProgressCallbacks {
  std::function<void(std::uint32_t tensor, StatusCode code)> tensor_done;
  std::function<void(const std::string& text)> stalled;
};

class Progress {
 public:
  struct Line {
    Session& session;
    std::unique_ptr<Transport> transport;
    std::size_t turn = SIZE_MAX;  // datagrams that it sends before the next line, at most
  };
  // `lines` in the order in which they are asked what to transmit. `who` begins the texts of
  // failures that the session does not write: "job 'cnn' rank 0". `trace` gets what the member
  // notes; null: nothing does.
  Progress(SharedSession& shared, std::vector<Line> lines, ProgressCallbacks callbacks, Log log,
           std::string who, TraceFile* trace);
  ~Progress();  // ends the thread within one loop if it still runs

  void start();
  bool is_this_thread() const noexcept { return thread_id_.load() == std::this_thread::get_id(); }

 private:
  static constexpr std::size_t kTxSlotBytes = kTxHeadroomBytes + kMaxDatagramBytes;

  // A line, and the burst of it that waits to be sent.
  struct Lane {
    explicit Lane(Line line);
    bool empty() const noexcept { return tx_first == tx_count; }

    Session& session;
    const std::unique_ptr<Transport> transport;
    const std::size_t turn;
    std::vector<PathEvent> path_events;  // to be handled
    std::vector<std::uint8_t> tx_bytes;
    std::array<Outgoing, kBurst> tx{};
    std::size_t tx_first = 0;
    std::size_t tx_count = 0;     // tx[tx_first, tx_count) waits to be sent
    std::size_t limit_bytes = 0;  // of the next burst, as the transport said
  };

  void run();
  template <class Body>
  void with_lock(TimeNs now, Body body);
  void drain_trace();
  bool receive(Lane& lane, TimeNs& now);
  bool act(TimeNs now);
  void handle_path_event(Session& session, const PathEvent& event, TimeNs now);
  template <class GiveWay>
  void fill_transmit_burst(Lane& lane, std::size_t most, TimeNs now, GiveWay give_way);
  void let_go_of_callers_memory() noexcept;
  bool transmit(TimeNs now);
  bool transmit(Lane& lane, TimeNs now);
  void note(const Event& event);
  bool held_back(Event& event);
  void note_copied();
  void tell(const Event& event);
  void try_to_tell(const Event& event) noexcept;
  void idle(TimeNs now);
  void wait(DurationNs sleep_ns) noexcept;

  SharedSession& shared_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  OwnedFd any_fd_;  // of several lanes: readable while one can receive, or the wake_fd is
  ProgressCallbacks callbacks_;
  Log log_;
  const std::string who_;
  TraceFile* const trace_;
  const bool may_spin_;
  TimeNs last_work_ns_ = 0;
  TimeNs next_timeout_ns_ = 0;  // of the sessions, when they were asked last
  std::vector<Event> events_;   // to be told
  std::atomic<std::thread::id> thread_id_{};
  std::thread thread_;  // last: uses all of the above
};

}  // namespace sluice::client

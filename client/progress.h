// The one thread that moves a job's datagrams between its session and its transport.
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
  // `who` begins the texts of failures that the session does not write: "job 'cnn' rank 0".
  // `trace` gets what the session notes; null: nothing does.
  Progress(SharedSession& shared, std::unique_ptr<Transport> transport, ProgressCallbacks callbacks,
           Log log, std::string who, TraceFile* trace);
  ~Progress();  // ends the thread within one loop if it still runs

  void start();
  bool is_this_thread() const noexcept { return thread_id_.load() == std::this_thread::get_id(); }

 private:
  static constexpr std::size_t kTxSlotBytes = kTxHeadroomBytes + kMaxDatagramBytes;

  void run();
  template <class Body>
  void with_session(TimeNs now, Body body);
  void drain_trace();
  bool receive(TimeNs& now);
  bool act(TimeNs now);
  void handle_path_event(const PathEvent& event, TimeNs now);
  template <class GiveWay>
  void fill_transmit_burst(TimeNs now, GiveWay give_way);
  void let_go_of_callers_memory() noexcept;
  bool transmit(TimeNs now);
  void note(const Event& event);
  void tell(const Event& event);
  void idle(TimeNs now);

  SharedSession& shared_;
  std::unique_ptr<Transport> transport_;
  ProgressCallbacks callbacks_;
  Log log_;
  const std::string who_;
  TraceFile* const trace_;
  const bool may_spin_;
  TimeNs last_work_ns_ = 0;
  TimeNs next_timeout_ns_ = 0;          // of the session, when it was asked last
  std::vector<PathEvent> path_events_;  // to be handled
  std::vector<Event> events_;           // to be told
  std::vector<std::uint8_t> tx_bytes_;
  std::array<Outgoing, kBurst> tx_{};
  std::size_t tx_first_ = 0;
  std::size_t tx_count_ = 0;  // tx_[tx_first_, tx_count_) waits to be sent
  std::atomic<std::thread::id> thread_id_{};
  std::thread thread_;  // last: uses all of the above
};

}  // namespace sluice::client

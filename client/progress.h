// The one thread that owns a job's session and transport.
//
// It moves datagrams between them, carries out the application's commands and reports what became
// of them on the board. Nothing of the protocol is decided here. It is never pinned to a core.
// Other threads only construct, start and stop it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/board.h"
#include "client/core/session.h"
#include "client/log.h"
#include "client/transport/transport.h"

namespace sluice::client {

// Called on the progress thread, without the board's mutex.
struct ProgressCallbacks {
  std::function<void(std::uint32_t tensor, sluice_status status)> tensor_done;
  std::function<void(const std::string& text)> stalled;
};

class Progress {
 public:
  // `who` begins the texts of failures that the session does not write: "job 'cnn' rank 0".
  // `trace` gets what the session notes; null: nothing does.
  Progress(Board& board, std::unique_ptr<Transport> transport, std::unique_ptr<Session> session,
           ProgressCallbacks callbacks, Log log, std::string who, TraceFile* trace);
  ~Progress();  // ends the thread within one loop if it still runs

  void start();

 private:
  static constexpr std::size_t kTxSlotBytes = kTxHeadroomBytes + kMaxDatagramBytes;

  void run();
  bool receive(TimeNs& now);
  bool transmit(TimeNs now);
  bool fill_transmit_burst(TimeNs now);
  void handle_path_events(TimeNs now);
  void apply_commands(TimeNs now);
  void apply(Command& command, TimeNs now);
  void apply_steps(TimeNs now);
  Status apply_step(const Command& command, TimeNs now);
  void dispatch_events(TimeNs now);
  void dispatch(const Event& event, TimeNs now);
  void idle(TimeNs now);
  void publish_counters();
  void fell_behind(const Event& event);
  void end(const Outcome& outcome, TimeNs now);

  Board& board_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Session> session_;
  ProgressCallbacks callbacks_;
  Log log_;
  const std::string who_;
  TraceFile* const trace_;
  const bool may_spin_;
  std::atomic<bool> stop_{false};
  bool ended_ = false;
  TimeNs last_work_ns_ = 0;
  TimeNs leave_deadline_ns_ = kNever;
  std::vector<Command> commands_;
  std::deque<Command> steps_;         // submissions and ends of steps, in order, not yet due
  std::vector<std::uint8_t> giving_;  // this rank's state, while the session reads it
  std::vector<std::uint8_t> tx_bytes_;
  std::array<Outgoing, kBurst> tx_{};
  std::size_t tx_first_ = 0;
  std::size_t tx_count_ = 0;  // tx_[tx_first_, tx_count_) waits to be sent
  std::thread thread_;        // last: uses all of the above
};

}  // namespace sluice::client

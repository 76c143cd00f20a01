// One membership of one job: the object behind the C interface's sluice_job.
//
// Puts together address, transport, session, board and progress thread at the join, and takes them
// down again. Any thread may call it; joining and leaving block as sluice.h says. Errors are
// returned, not thrown, except for std::bad_alloc and std::system_error.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "client/board.h"
#include "client/core/session.h"
#include "client/log.h"
#include "client/progress.h"
#include "client/trace_file.h"

namespace sluice::client {

struct JoinRequest {
  std::string address;
  std::string local_address;
  SessionOptions session;  // nonce, credit, datagram size and printable address are filled in
  std::vector<TensorSpec> tensors;
  std::size_t mtu_bytes = 1500;
  std::size_t chunk_bytes = 0;  // 0: the most that mtu_bytes carries
  std::string trace_dir;        // empty: no trace
  ProgressCallbacks callbacks;
  std::function<bool()> interrupted;
  Log log;
};

class ClientJob {
 public:
  // Blocks until all ranks have joined. On success `job` is set.
  static Outcome join(JoinRequest request, std::unique_ptr<ClientJob>& job);
  ~ClientJob();  // leaves, at most 1 s

  bool is_forked() const noexcept;  // this process is a child of the one that joined
  Board& board() noexcept { return board_; }
  const Board& board() const noexcept { return board_; }
  WaitOptions wait_options(std::int32_t timeout_ms) const { return {timeout_ms, interrupted_}; }
  void leave(wire::LeaveReason reason);
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  std::uint16_t world_size() const noexcept { return world_size_; }
  Rank rank() const noexcept { return rank_; }

 private:
  explicit ClientJob(const JoinRequest& request);
  Outcome start(JoinRequest& request);
  Outcome wait_for_others(const JoinRequest& request);
  Status open_trace(const JoinRequest& request);

  const pid_t pid_;
  const std::uint16_t world_size_;
  const Rank rank_;
  const std::function<bool()> interrupted_;
  const DurationNs uneven_limit_ns_;  // for the appliance to hear of an uneven end
  const Log log_;
  std::size_t chunk_bytes_ = 0;
  std::unique_ptr<TraceFile> trace_;  // used by the board and the progress thread
  Board board_;
  std::unique_ptr<Progress> progress_;
};

// Gradient bytes per packet that an MTU carries for so many workers, whatever the IP version; 0
// when it is too small for any.
std::size_t chunk_bytes_for(std::size_t mtu_bytes, std::size_t world_size) noexcept;

}  // namespace sluice::client

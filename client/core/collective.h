// Stream 1: broadcast and barrier, one call at a time.
//
// A broadcast of any size is cut into steps of the stream of at most kCollectiveChunks chunks, sent
// by the root alone. A barrier step follows every kBroadcastsPerBarrier of them, so that no rank
// falls out of the appliance's window of kMaxWindow steps, and one that comes after fewer ends the
// call: the appliance lets processes in only between calls. A step that the appliance has completed
// without data has lost its root: all ranks see the same, go to that last barrier at once, and the
// call fails while the job goes on. All ranks count the same
// steps 1, 2, 3, ... (whoever joins a running job begins where the others are) and check that the
// appliance's result is of the collective that they called. Whoever waits pulls by probe: a result
// may have passed before the call. A step is a Piece. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "client/core/link.h"
#include "client/core/piece.h"
#include "client/core/session.h"

namespace sluice::client {

class Collectives {
 public:
  Collectives(const SessionOptions& options, std::size_t chunk_bytes, Step first_step = 1);

  // The first step that this worker takes part in, and the one that is open.
  void join(Step first_step, Step open_step, Link& link) noexcept;
  void start(TimeNs now) noexcept;  // all ranks have joined
  Status broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) noexcept;
  Status barrier(TimeNs now) noexcept;

  bool in_progress() const noexcept { return busy_ && started_; }
  TimeNs last_progress_ns() const noexcept { return pieces_.last_progress_ns(); }
  Step current_step() const noexcept { return pieces_.step(); }  // under way, or the next one
  // "step 3 of the collectives: a broadcast of 4096 bytes from rank 0"
  std::string describe() const;

  Outcome handle_result(const wire::Packet& packet, Link& link, TimeNs now) noexcept;
  Outcome handle_answer(const wire::Packet& packet, Link& link, TimeNs now) noexcept;

  PieceStream& pieces() noexcept { return pieces_; }
  const PieceStream& pieces() const noexcept { return pieces_; }

 private:
  Status begin_call(bool is_broadcast, Rank root, void* buffer, std::size_t bytes,
                    TimeNs now) noexcept;
  void begin_piece(TimeNs now) noexcept;
  Status finish_piece(bool lost, Link& link, TimeNs now) noexcept;
  bool is_root() const noexcept { return options_.rank == root_; }

  const SessionOptions& options_;
  bool started_ = false;
  bool busy_ = false;
  // The call under way.
  bool is_broadcast_ = false;
  Rank root_{};
  std::uint8_t* buffer_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;           // of the piece under way
  std::uint32_t since_barrier_ = 0;  // broadcast steps
  bool last_ = false;                // the piece under way ends the call
  Status failure_;                   // of the call: its root is lost
  PieceStream pieces_;
};

}  // namespace sluice::client

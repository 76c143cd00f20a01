// Stream 1: broadcast and barrier, one call at a time.
//
// A broadcast of any size is cut into steps of the stream of at most kCollectiveChunks chunks, sent
// by the root alone. A barrier step follows every kBroadcastsPerBarrier of them and the last one,
// so that no rank falls out of the appliance's window of kMaxWindow steps. All ranks count the same
// steps 1, 2, 3, ... and check that the appliance's result is of the collective that they called.
// Whoever waits pulls by probe: a result may have passed before the call. Everything is in the
// first block, so all of it is on the flow of shard 0. Pure; the session's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "client/core/link.h"
#include "client/core/recovery.h"
#include "client/core/session.h"
#include "client/sched/strict.h"

namespace sluice::client {

class Collectives {
 public:
  Collectives(const SessionOptions& options, std::size_t chunk_bytes, Step first_step = 1);

  void start(TimeNs now) noexcept;  // all ranks have joined
  Status broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) noexcept;
  Status barrier(TimeNs now) noexcept;

  bool in_progress() const noexcept { return busy_ && started_; }
  TimeNs last_progress_ns() const noexcept { return last_progress_ns_; }
  Step current_step() const noexcept { return step_; }  // under way, or the next one
  // "step 3 of the collectives: a broadcast of 4096 bytes from rank 0"
  std::string describe() const;

  bool waiting() const noexcept { return !queue_.empty(); }
  std::size_t write_next(Link& link, std::span<std::uint8_t> out, TimeNs now) noexcept;
  Outcome handle_result(const wire::Packet& packet, Link& link, TimeNs now) noexcept;
  Outcome handle_answer(const wire::Packet& packet, Link& link, TimeNs now) noexcept;

  Recovery& recovery() noexcept { return recovery_; }
  const Recovery& recovery() const noexcept { return recovery_; }

 private:
  // The step of the stream under way.
  struct Piece {
    CollectiveKind kind = CollectiveKind::kBarrier;
    std::uint32_t bytes = 0;
    std::uint32_t chunk_count = 1;
    std::uint8_t* data = nullptr;
  };

  Status begin_call(bool is_broadcast, Rank root, void* buffer, std::size_t bytes,
                    TimeNs now) noexcept;
  void begin_piece(TimeNs now) noexcept;
  Status finish_piece(Link& link, TimeNs now) noexcept;
  std::uint32_t piece_root() const noexcept;
  std::size_t chunk_size(ChunkIndex chunk) const noexcept;
  bool is_root() const noexcept { return options_.rank == root_; }

  const SessionOptions& options_;
  const std::size_t chunk_bytes_;
  bool started_ = false;
  bool busy_ = false;
  // The call under way.
  bool is_broadcast_ = false;
  Rank root_{};
  std::uint8_t* buffer_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;           // of the piece under way
  std::uint32_t since_barrier_ = 0;  // broadcast steps
  Step step_;
  Piece piece_;
  std::uint32_t chunks_left_ = 0;
  Step passed_step_ = 0;  // newest step of which a result came before its call
  TimeNs last_progress_ns_ = 0;
  std::array<ChunkIndex, kCollectiveChunks> links_{};
  StrictQueue queue_{links_};
  Recovery recovery_{kCollectiveChunks, 1};
};

}  // namespace sluice::client

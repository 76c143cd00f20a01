// One step of a stream of opaque bytes at a time, at most kCollectiveChunks chunks of it: what
// collectives (stream 1) and transfers of state (stream 2) are made of.
//
// Its owner says what the next step is and what this worker contributes to it; this sends, awaits,
// recovers, checks that the appliance's results are of the same step of the same thing, and puts
// the bytes where they belong. Everything is in the first block, so all of it is on the flow of
// shard 0. Pure, no allocation; the session's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "aggregator/base/check.h"
#include "client/core/link/recovery.h"
#include "client/core/link/stream.h"
#include "client/sched/strict.h"

namespace sluice::client {

struct Piece {
  enum class Part : std::uint8_t {
    kNone,      // it only receives
    kPresence,  // its presence, in the first chunk, without data; of a broadcast: that it waits
    kData,      // it is the root: all chunks, from `source`
  };
  CollectiveKind kind = CollectiveKind::kBarrier;
  Rank root{};
  std::uint32_t bytes = 0;  // 0: no data
  Part part = Part::kPresence;
  const std::uint8_t* source = nullptr;
  std::uint8_t* sink = nullptr;  // gets the results' data; null: not wanted
  Priority priority = 0;

  wire::Operation operation() const noexcept {
    return {.size_bytes = bytes, .root = root.value, .kind = kind};
  }
};

class PieceStream : public Stream {
 public:
  PieceStream(StreamId stream, std::size_t chunk_bytes, Step first_step, Link& link)
      : Stream(stream, Flows::kFirst, link), chunk_bytes_(chunk_bytes), step_(first_step) {
    recovery_.emplace(kCollectiveChunks, std::uint16_t{1});
  }

  Step current_step() const noexcept override { return step_; }
  bool in_progress() const noexcept override { return busy(); }
  TimeNs last_progress_ns() const noexcept override { return last_progress_ns_; }
  Verdict handle_result(const wire::Packet& packet, TimeNs now) override;
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) override;
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) override;
  Priority block_priority(std::uint32_t) const noexcept override { return piece_.priority; }
  bool uses(std::uint16_t shard) const noexcept override { return recovers(shard); }
  // Its leftovers are nobody's work once the piece is done.
  TimeNs next_timeout() const noexcept override {
    return in_progress() ? recovery_->next_timeout() : kNever;
  }

 protected:
  void send_again(std::uint32_t block, std::uint64_t chunks) override;
  std::size_t max_piece_bytes() const noexcept { return kCollectiveChunks * chunk_bytes_; }
  const Piece& piece() const noexcept { return piece_; }
  bool busy() const noexcept { return chunks_left_ != 0; }
  // The piece is whole: its owner calls next_step() or move_to(). `lost`: some of it has no data,
  // because its root is gone.
  virtual void piece_done(bool lost, TimeNs now) = 0;
  // The piece after the one under way, if this worker knows where its data belongs: results of it
  // that come early are kept, so that who lacks one packet of a piece need not pull all later ones.
  virtual Piece following() const noexcept { return {}; }
  // A result is of another kind, root or size than the piece, or holds other bytes than its root's.
  virtual void mismatch(const wire::Operation&) {}

  // The piece of current_step(). Its results are asked for after a while, or at once when some have
  // passed.
  void begin(const Piece& piece, TimeNs now) noexcept;
  // The next piece's step is not open yet: it sends nothing before an answer says that it is.
  void hold() noexcept { held_ = true; }
  // At another appliance, with flows of its own: nothing is under way, and steps begin at 1.
  void begin_anew() noexcept;
  // Nothing of the step under way is wanted any more; the next piece is that of `step`.
  void move_to(Step step) noexcept;
  void next_step() noexcept {
    CHECK(!busy() && step_ < kLastStep);
    ++step_;
    held_ = false;
  }

 private:
  std::uint32_t chunks_of(const Piece& piece) const noexcept;  // 0: no data
  std::size_t chunk_size(const Piece& piece, ChunkIndex chunk) const noexcept;
  Verdict keep_early(const wire::Packet& packet) noexcept;
  std::size_t write_chunk(ChunkIndex chunk, std::span<std::uint8_t> out, TimeNs now) noexcept;

  const std::size_t chunk_bytes_;
  Step step_;
  Piece piece_;
  std::uint32_t chunk_count_ = 0;
  std::uint32_t chunks_left_ = 0;
  bool lost_ = false;  // chunks of a broadcast came without data
  bool held_ = false;
  Step passed_step_ = 0;     // newest step of which a result came before its piece was begun
  std::uint64_t early_ = 0;  // chunks of the next piece that are in its sink already
  TimeNs last_progress_ns_ = 0;
  std::array<ChunkIndex, kCollectiveChunks> links_{};
  StrictQueue queue_{links_};
};

}  // namespace sluice::client

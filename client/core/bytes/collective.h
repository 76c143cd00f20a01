// Stream 1: broadcast and barrier, one call at a time.
//
// A broadcast of any size is cut into steps of the stream of at most kCollectiveChunks chunks, sent
// by the root alone. A barrier step follows every kBroadcastsPerBarrier of them, so that no rank
// falls out of the appliance's window of kMaxWindow steps, and one that comes after fewer ends the
// call: the appliance lets processes in only between calls. A step that the appliance has completed
// without data has lost its root: all ranks see the same, go to that last barrier at once, and the
// call fails while the job goes on. All ranks count the same
// steps 1, 2, 3, ... (whoever joins a running job begins where the others are) and check that the
// appliance's result is of the collective that they called; the root, that it holds its bytes: the
// process that had its rank before may have sent others. Whoever waits pulls by probe: a result
// may have passed before the call. A step is a Piece. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "client/core/bytes/piece.h"
#include "client/core/calls/types.h"
#include "client/core/link/link.h"

namespace sluice::client {

class Collectives final : public PieceStream {
 public:
  Collectives(const SessionOptions& options, std::size_t chunk_bytes, Link& link,
              Step first_step = 1);

  // None is under way, and there is such a rank. No root: a barrier.
  void begin_call(std::optional<Rank> root, void* buffer, std::size_t bytes, TimeNs now);
  // The call under way, by its step: "collective step 3, a broadcast step of 4096 bytes from rank
  // 0"; empty: none.
  std::string describe_call() const { return call_ ? describe_step() : std::string(); }

  // ---- an appliance that is lost and comes back ----
  // Calls of the application that have ended, each alike for all ranks.
  std::uint32_t calls_ended() const noexcept { return calls_ended_; }
  // With k < n and of a store, where a process may have come later than calls of others: the same
  // for all ranks between two calls, or in one, and more for a rank that has ended one more.
  // Counted in the stream's steps.
  std::uint32_t position() const noexcept {
    return started_ ? base_ + (running_ ? call_step_ : current_step()) - 1 : position_;
  }
  // That of the ranks as the appliance began the job, where the stream begins with step 1.
  void count_from(std::uint32_t position) noexcept { base_ = position; }
  // At another appliance, which knows nothing of the call under way: that waits for end_exchange().
  void change_appliance() noexcept;
  // All ranks are there. From now on broadcasts are the session's own, by exchange(), one at a
  // time; its end is no event.
  void begin_exchange() noexcept;
  void exchange(Rank root, std::span<std::uint8_t> buffer, TimeNs now);
  bool exchanges() const noexcept { return exchanging_ && running_; }
  // The call that was under way begins again, unless it is over: it ends with a barrier, and then
  // every rank has had all of its bytes before.
  void end_exchange(bool call_is_over, TimeNs now);
  bool has_call() const noexcept { return call_.has_value(); }
  // The call needs no bytes any more: it awaits its last barrier. Then it is over here as well, if
  // another rank says so; one that lacks bytes was lost by the others.
  bool has_all_bytes() const noexcept { return has_all_bytes_; }

  // Whoever joins a running job begins where the others are.
  Status join(const wire::Accept& accept) override;
  void start(TimeNs now) override;
  bool owes_others() const noexcept override {
    return in_progress() || (changed_ && call_.has_value());
  }
  bool in_progress() const noexcept override { return running_; }
  std::string describe(TimeNs now) const override;
  Verdict handle_result(const wire::Packet& packet, TimeNs now) override;
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) override;

 private:
  void piece_done(bool lost, TimeNs now) override;
  void mismatch(const wire::Operation& other) override;
  struct Call {
    std::optional<Rank> root;  // none: a barrier
    std::uint8_t* buffer = nullptr;
    std::size_t bytes = 0;
  };

  std::string describe_step() const;
  void run(const Call& call, TimeNs now);
  void end_call(Step step);
  void begin_piece(TimeNs now) noexcept;
  bool is_root() const noexcept { return options_.rank == root_; }

  const SessionOptions& options_;
  bool started_ = false;
  bool changed_ = false;        // the appliance, since the job has started
  bool exchanging_ = false;     // what runs is the session's
  bool running_ = false;        // steps of a call are under way
  bool has_all_bytes_ = false;  // of the call, at an appliance that is lost
  std::optional<Call> call_;    // of the application
  std::uint32_t calls_ended_ = 0;
  std::uint32_t base_ = 0;      // see count_from()
  std::uint32_t position_ = 0;  // at an appliance that is lost
  Step call_step_ = 0;          // with which the call that runs began
  // The call that runs.
  Rank root_{};
  std::uint8_t* buffer_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;           // of the piece under way
  std::uint32_t since_barrier_ = 0;  // broadcast steps
  bool last_ = false;                // the piece under way ends the call
  Status failure_;                   // of the call: its root is lost
};

}  // namespace sluice::client

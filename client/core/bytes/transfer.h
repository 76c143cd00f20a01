// Stream 2: one rank's whole state (parameters, optimizer) to another one that lacks it.
//
// Receiver: asks on the control port every 250 ms until a status names its transfer, takes a header
// piece (size of the state, last step in it) and the state in pieces of at most kCollectiveChunks
// chunks, and tells the appliance when it has caught up, so that the window may move on. Giver: a
// status names it, its application hands the state over, the pieces leave. A piece is done for the
// giver when the receiver has everything before it: its presence in the first chunk says so, and
// that paces the transfer. When the giver dies, a status names another one and it starts again. A
// rank is in one transfer at a time, as giver or receiver. Pure, no allocation but for the received
// state; the session's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/bytes/piece.h"
#include "client/core/calls/types.h"

namespace sluice::client {

class Transfers final : public PieceStream {
 public:
  Transfers(const SessionOptions& options, std::size_t chunk_bytes, Link& link)
      : PieceStream(StreamId::kState, chunk_bytes, 1, link), options_(options) {}

  // ---- receiver ----
  // A new request, unless one is under way.
  void request(TimeNs now);
  // Everything up to the open step has been applied: the window may move on.
  void caught_up(TimeNs now) noexcept;
  // All of it is here, and this rank has not caught up yet.
  bool received() const noexcept { return role_ == Role::kReceived; }
  // All of it is here, and nobody has taken it.
  bool has_state() const noexcept { return state_.has_value(); }
  // Why the last request has brought nothing; ok otherwise.
  const Status& failure() const noexcept { return failure_; }
  // Precondition: has_state().
  ReceivedState take_state() noexcept {
    CHECK(has_state());
    return *std::exchange(state_, {});
  }

  // ---- giver ----
  // The rank that waits for this one's state, if the application has not handed it over.
  std::optional<Rank> wanted_by() const noexcept {
    return role_ == Role::kWanted ? std::optional<Rank>(target_) : std::nullopt;
  }
  // Whether it is read, until kStateSent: somebody waits for it, and has none yet.
  bool give(std::span<const std::uint8_t> state, Step step, TimeNs now);

  // ---- control port ----
  void handle_status(const wire::Status& status, TimeNs now) override;
  std::size_t poll_control(std::span<std::uint8_t> out) noexcept override;
  void handle_timeout(TimeNs now) override;
  TimeNs next_timeout() const noexcept override;

  // Another appliance, which knows of no transfer: what was under way begins anew.
  void change_appliance(TimeNs now);

  // Whether the job tolerates stragglers: in another one no state is transferred.
  Status join(const wire::Accept& accept) override {
    tolerant_ = PolicyOptions(accept.policy).tolerates_stragglers();
    return {};
  }

  // "the state of rank 2: 1000 of 4096 bytes" while this rank waits for one.
  std::string describe(TimeNs now) const override;

 private:
  enum class Role : std::uint8_t {
    kNone,
    kAsking,     // receiver: no status names the transfer yet
    kReceiving,  // receiver: pieces come
    kReceived,   // receiver: all is here, the application catches up
    kTelling,    // receiver: it has, and the appliance may not know yet
    kWanted,     // giver: the application has not handed the state over
    kGiving,     // giver: pieces leave
    kGiven,      // giver: all pieces are done
  };
  struct [[gnu::packed]] Header {  // the first piece of a transfer
    std::uint64_t bytes = 0;
    std::uint32_t step = 0;
  };
  static_assert(sizeof(Header) == 12);

  // It answers a keepalive that left after `time_ns`.
  static bool is_answer_after(const wire::Status& status, TimeNs time_ns) noexcept;
  void start_receiving(const wire::Status& status, TimeNs now) noexcept;
  void stop_giving();
  void become(Role role) noexcept;
  void tell(TimeNs now) noexcept;
  void stop_telling() noexcept;
  void begin_header(TimeNs now) noexcept;
  void begin_data(TimeNs now) noexcept;
  Piece data_piece(std::uint64_t offset) const noexcept;
  Piece following() const noexcept override;
  void piece_done(bool lost, TimeNs now) override;
  void refuse_state(bool fits, TimeNs now);
  bool giver() const noexcept { return role_ >= Role::kWanted; }
  Piece next_piece(std::uint32_t bytes) const noexcept;

  const SessionOptions& options_;
  Role role_ = Role::kNone;
  std::uint32_t number_ = 0;  // of this rank's last request
  Step first_step_ = 0;       // of the transfer, on stream kState
  Rank source_{};
  Rank target_{};  // of the transfer that this rank gives to
  bool tolerant_ = false;
  TimeNs next_control_ns_ = kNever;
  TimeNs told_ns_ = 0;       // when this rank had caught up
  TimeNs wanted_ns_ = 0;     // when a status wanted its state
  TimeNs receiving_ns_ = 0;  // when a status named the transfer to it
  Step given_step_ = 0;      // newest transfer that it has given a state to
  Header header_;
  bool in_header_ = false;
  std::uint64_t offset_ = 0;  // of the data piece under way
  std::span<const std::uint8_t> given_;
  std::unique_ptr<std::uint8_t[]> receiving_;
  std::optional<ReceivedState> state_;  // that was received
  Status failure_;
};

}  // namespace sluice::client

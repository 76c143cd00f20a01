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
#include <span>
#include <string>

#include "client/core/link.h"
#include "client/core/piece.h"
#include "client/core/session.h"

namespace sluice::client {

class Transfers {
 public:
  Transfers(const SessionOptions& options, std::size_t chunk_bytes)
      : options_(options), pieces_(StreamId::kState, chunk_bytes, 1) {}

  // ---- receiver ----
  // A new request, unless one is under way.
  void request(Link& link, TimeNs now) noexcept;
  // Everything up to the open step has been applied: the window may move on.
  void caught_up(TimeNs now) noexcept;
  bool received() const noexcept { return role_ == Role::kReceived; }
  Step state_step() const noexcept { return header_.step; }  // the last one in the state
  std::unique_ptr<std::uint8_t[]> take_state() noexcept { return std::move(state_); }

  // ---- giver ----
  // Whether it is read, until kStateSent: somebody waits for it, and has none yet.
  bool give(std::span<const std::uint8_t> state, Step step, Link& link, TimeNs now) noexcept;

  // ---- control port ----
  void handle_status(const wire::Status& status, Link& link, TimeNs now) noexcept;
  std::size_t poll_control(const Link& link, std::span<std::uint8_t> out) noexcept;
  void handle_timeout(TimeNs now) noexcept;

  // ---- data port ----
  Verdict handle_result(const wire::Packet& packet, Link& link, TimeNs now) noexcept;
  void handle_answer(const wire::Answer& body, Link& link, TimeNs now) noexcept {
    pieces_.handle_answer(body, link, now);
  }
  bool in_progress() const noexcept { return pieces_.busy(); }
  TimeNs next_timeout() const noexcept;
  PieceStream& pieces() noexcept { return pieces_; }
  const PieceStream& pieces() const noexcept { return pieces_; }

  // This rank waits for a state: "the state of rank 2: 1000 of 4096 bytes". Else empty.
  std::string describe() const;

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
#pragma pack(push, 1)
  struct Header {  // the first piece of a transfer
    std::uint64_t bytes = 0;
    std::uint32_t step = 0;
    std::uint8_t reserved[20] = {};
  };
#pragma pack(pop)
  static_assert(sizeof(Header) == 32);

  // It answers a keepalive that left after `time_ns`.
  static bool is_answer_after(const wire::Status& status, TimeNs time_ns) noexcept;
  void start_receiving(const wire::Status& status, Link& link, TimeNs now) noexcept;
  void stop_giving(Link& link) noexcept;
  void tell(TimeNs now) noexcept;
  void stop_telling() noexcept;
  void begin_header(TimeNs now) noexcept;
  void begin_data(TimeNs now) noexcept;
  void piece_done(Link& link, TimeNs now) noexcept;
  bool giver() const noexcept { return role_ >= Role::kWanted; }
  Piece next_piece(std::uint32_t bytes) const noexcept;

  const SessionOptions& options_;
  PieceStream pieces_;
  Role role_ = Role::kNone;
  std::uint32_t number_ = 0;  // of this rank's last request
  Step first_step_ = 0;       // of the transfer, on stream kState
  Rank source_{};
  bool send_control_ = false;
  TimeNs next_control_ns_ = kNever;
  TimeNs told_ns_ = 0;       // when this rank had caught up
  TimeNs wanted_ns_ = 0;     // when a status wanted its state
  TimeNs receiving_ns_ = 0;  // when a status named the transfer to it
  Step given_step_ = 0;      // newest transfer that it has given a state to
  Header header_;
  bool in_header_ = false;
  std::uint64_t offset_ = 0;  // of the data piece under way
  std::span<const std::uint8_t> given_;
  std::unique_ptr<std::uint8_t[]> state_;
};

}  // namespace sluice::client

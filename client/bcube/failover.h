// One level's failover: which of its rows are under way at another switch, once its own is lost.
//
// A row is a tensor of one of the level's legs. What becomes of each row is decided by the
// handover among the switch's n servers (client/core/handover), whose rows are the same in the same
// order, and when all of them return by their votes. This class adds where a row is at the other
// switch, and how often the legs have moved.
//
// Pure: it decides, the relay submits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "client/core/calls/types.h"
#include "client/core/handover/handover.h"
#include "client/core/handover/return_vote.h"

namespace sluice::client {

enum class Role : std::uint8_t { kUp, kTurn, kDown, kRendezvous, kStates, kVote, kStandby };

constexpr const char* name_of(Role role) noexcept {
  switch (role) {
    case Role::kUp: return "up";
    case Role::kTurn: return "turn";
    case Role::kDown: return "down";
    case Role::kRendezvous: return "meeting";
    case Role::kStates: return "survey";
    case Role::kVote: return "vote";
    case Role::kStandby: break;
  }
  return "spare";
}

class Failover {
 public:
  enum class State : std::uint8_t {
    kNone,        // there is no other switch, or not all reach it now
    kReady,       // the legs are where they belong
    kExchanging,  // they have moved, and the servers' states are not known
    kMoved,
  };
  struct Row {
    // What is under way at the other switch.
    enum class There : std::uint8_t {
      kNothing,
      kHeldBack,        // nothing: `submission` waits for the servers' states
      kAwaited,         // a submission whose event the relay waits for
      kForOthers,       // a submission that only the other servers wait for
      kForOthersFirst,  // the same, and `submission` follows
    };
    Role role{};
    std::uint32_t leg = 0;
    std::uint32_t tensor = 0;          // of the leg
    std::uint32_t standby = 0;         // the leg at the other switch
    std::uint32_t standby_tensor = 0;  // of that leg
    Submission submission;             // the last one
    There there{};

    bool is_under_way() const noexcept { return there >= There::kAwaited; }
    bool is_for_others() const noexcept { return there >= There::kForOthers; }
  };
  // The legs that are needed once the others have moved.
  struct Standbys {
    std::uint32_t states_leg = 0;
    std::uint32_t vote_leg = 0;
  };

  Failover(std::uint32_t ports, std::uint32_t digit) noexcept
      : handover_(ports, digit), return_vote_(ports, digit) {}

  // Before the first step. `owner`: the digit of the server that owns the slice at this level.
  void add_row(const Row& row, std::uint32_t owner);
  void set_standbys(const Standbys& standbys) noexcept;
  const Standbys& standbys() const noexcept { return standbys_; }
  std::vector<Row>& rows() noexcept { return rows_; }
  const std::vector<Row>& rows() const noexcept { return rows_; }

  State state() const noexcept;
  bool in_use() const noexcept { return handover_.state() != Handover::State::kSettled; }
  std::uint32_t moves() const noexcept { return moves_; }  // how often the legs did
  // How often they went back: the same for all servers of the switch in every step.
  std::uint32_t returns() const noexcept { return returns_; }

  void give_up() noexcept;  // the standbys are lost before they were needed
  void regain() noexcept;   // and there again
  // kReady: the legs move, in this step, with so many collectives done at the level.
  void begin(Step step, std::uint32_t collectives);
  // The sum is in handover().states().
  void end_exchange();
  // With the step that all have decided on.
  void go_back() noexcept;

  Handover& handover() noexcept { return handover_; }
  const Handover& handover() const noexcept { return handover_; }
  ReturnVote& return_vote() noexcept { return return_vote_; }
  const ReturnVote& return_vote() const noexcept { return return_vote_; }

  // A submission to one of the other switch's legs is not done: of states, votes and rows.
  bool is_busy() const noexcept { return busy_ != 0; }
  void note_submitted() noexcept { ++busy_; }
  void note_done() noexcept;

 private:
  Handover handover_;
  ReturnVote return_vote_;
  std::vector<Row> rows_;
  Standbys standbys_;
  std::uint32_t busy_ = 0;
  std::uint32_t moves_ = 0;
  std::uint32_t returns_ = 0;
  bool has_standbys_ = false;  // which all reach
};

}  // namespace sluice::client

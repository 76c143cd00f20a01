// What the n servers of a lost switch must know to finish at another switch what they began there.
//
// A row is a tensor of one of the level's lanes. When the switch is lost, some of the servers have
// a row's result and some have not, and nobody knows of the others. So each says in a survey, which
// they sum, which step it is in and which results it has. Of a row whose result somebody has, who
// must have it, the survey names one that gives it to the others, bit by bit the same; the rest is
// summed again from what is still in memory. Why that is enough:
//
// - They are in one step, or some in the next: nobody gets further without the others. Who is in
//   the next has all results of the one before, and of the next nobody has any.
// - Of a row on the way up one server alone wants the result. On the way down one has the sum from
//   the beginning. At the turn whoever has it may give it.
// - A server that may have to give a sum keeps it until it has the next step's, to which all
//   servers have contributed, and nobody does before it has all of its own step before.
//
// Server A has slice 7's sum R and is in the next step; the switch dies before B has R. A is ahead,
// so A gives the R that it kept, C, who has it too, nothing; B takes it. Had nobody R, all would
// contribute again: nobody has used another sum.
//
// The way back. While the lanes are at the other switch, each server says in each step, at its
// first submission, whether it could go back: whether all its lanes there run again. Of these votes
// there is a sum a step, too, and nobody ends the step without it. So the first step in whose sum
// all are ready is the same one for all, and from the step after it on they are back: of that one
// nobody has submitted anything, and of those before it nothing is left. Server A is ready in step
// 8, B in step 9: the sum of 8 lacks B, that of 9 nobody, and with step 10 both are back. A loses
// the switch once more before step 10: it goes back all the same, and there it is lost as if for
// the first time. A lane back there that fails makes no difference to whose vote was counted.
//
// A collective that is over for some is over for all: it ends with a barrier, to which nobody
// contributes before it has all bytes. Whose own was under way does it again unless the survey has
// one who counts one more.
//
// Collectives follow the lanes, but may begin in any step. So nobody is ready while one is under
// way, and a vote says how many are over: unless all say the same, they stay. Who begins one votes
// first, if it has not, and waits for the sum, and who is in one when a step begins, or when the
// survey comes back, votes at once: else some would wait for the sum and others, in the collective,
// never vote.
//
// Pure: it decides, the relay submits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/core/calls/types.h"

namespace sluice::client {

enum class Way : std::uint8_t { kUp, kTurn, kDown, kMeeting, kSurvey, kVote, kSpare };

constexpr const char* name_of(Way way) noexcept {
  switch (way) {
    case Way::kUp: return "up";
    case Way::kTurn: return "turn";
    case Way::kDown: return "down";
    case Way::kMeeting: return "meeting";
    case Way::kSurvey: return "survey";
    case Way::kVote: return "vote";
    case Way::kSpare: break;
  }
  return "spare";
}

class Detour {
 public:
  enum class State : std::uint8_t {
    kNone,    // there is no other switch, or not all reach it now
    kReady,   // the lanes are where they belong
    kAsking,  // they have moved, and the survey is not back
    kMoved,
  };
  struct Row {
    Way way{};
    std::uint32_t lane = 0;
    std::uint32_t tensor = 0;  // of the lane
    std::uint32_t source = 0;  // a digit; up: who wants the result; down: who has the sum
    // ---- what this worker has done ----
    Submission submission;   // the last one
    Step asked = 0;          // its step
    Step held = 0;           // newest step whose result came
    bool in_flight = false;  // the relay waits for it
    // ---- at the other switch ----
    std::uint32_t spare = 0;         // the lane there
    std::uint32_t spare_tensor = 0;  // of that lane
    bool busy = false;               // a submission there is not done
    bool silent = false;             // and nobody here waits for it
    bool waiting = false;            // `submission` is still to be made there
  };
  // What becomes of a row of the step that was under way.
  struct Fate {
    bool over = false;                      // its result is where it must come from
    std::optional<std::uint32_t> supplier;  // the digit that gives it to who lacks it
  };

  Detour(std::uint32_t ports, std::uint32_t digit) noexcept : ports_(ports), digit_(digit) {}

  // Before the first step.
  std::uint32_t add_row(Row row);
  // The lanes that are needed once the others have moved.
  struct Spares {
    std::uint32_t survey_lane = 0;
    std::uint32_t vote_lane = 0;
  };
  void set_spares(const Spares& spares) noexcept;

  State state() const noexcept { return state_; }
  std::uint32_t moves() const noexcept { return moves_; }  // how often they did
  // How often they went back: the same for all servers of the switch in every step.
  std::uint32_t returns() const noexcept { return returns_; }
  bool in_use() const noexcept { return state_ == State::kAsking || state_ == State::kMoved; }
  const Spares& spares() const noexcept { return spares_; }
  std::vector<Row>& rows() noexcept { return rows_; }
  const std::vector<Row>& rows() const noexcept { return rows_; }
  void give_up() noexcept;  // the spares are lost before they were needed
  void regain() noexcept;   // and there again

  // kReady: the lanes move, in this step, with so many collectives done at the level.
  void begin(Step step, std::uint32_t collectives);
  // In: what this worker says; out: the sum.
  std::span<float> survey() noexcept { return survey_; }
  static std::size_t survey_elems(std::uint32_t ports, std::size_t rows) noexcept;
  // The sum is in survey().
  void handle_survey();

  // ---- once the survey is back ----
  Step step() const noexcept { return first_step_; }  // the one that is finished first
  Fate fate(std::uint32_t row) const noexcept;
  bool is_self(std::uint32_t digit) const noexcept { return digit == digit_; }
  // For somebody that collective is over which this worker was in.
  bool is_collective_over() const noexcept;

  // ---- the way back, once the survey is back ----
  // This worker has come to this step at this level.
  void come_to(Step step) noexcept { reached_ = std::max(reached_, step); }
  // The next vote is due; it is of this step.
  bool is_vote_due() const noexcept {
    return state_ == State::kMoved && !voting_ && vote_step_ <= reached_;
  }
  Step vote_step() const noexcept { return vote_step_; }
  bool is_voting() const noexcept { return voting_; }
  // In: what this worker says; out: the sum.
  std::span<float> vote(bool ready, std::uint32_t collectives);
  // The sum is there. True: all go back with the next step.
  bool handle_votes();
  Step back_step() const noexcept { return back_step_; }  // 0: they don't, yet
  void go_back() noexcept;

  // Submissions at the other switch that are not done, surveys and votes among them.
  std::uint32_t busy = 0;

 private:
  static constexpr std::uint32_t kWordBits = 16;  // a sum of them is exact in a float
  static std::uint32_t words(std::uint32_t ports) noexcept {
    return (ports + kWordBits - 1) / kWordBits;
  }
  bool has(std::uint32_t digit, std::uint32_t row) const noexcept;
  bool is_ahead(std::uint32_t digit) const noexcept;

  const std::uint32_t ports_;
  const std::uint32_t digit_;  // this worker's
  std::vector<Row> rows_;
  std::vector<float> votes_;   // by digit: 0, or one more than the collectives that are over
  std::vector<float> survey_;  // steps and collectives by digit, then who has each row's result
  Spares spares_;
  Step begun_ = 0;                 // this worker's, when the lanes moved
  std::uint32_t collectives_ = 0;  // likewise, those that were over
  Step first_step_ = 0;
  Step reached_ = 0;
  Step vote_step_ = 0;
  Step back_step_ = 0;
  std::uint32_t moves_ = 0;
  std::uint32_t returns_ = 0;
  bool voting_ = false;
  State state_ = State::kNone;
};

}  // namespace sluice::client

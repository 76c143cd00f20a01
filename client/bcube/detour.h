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
// Pure: it decides, the relay submits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/core/types.h"

namespace sluice::client {

enum class Way : std::uint8_t { kUp, kTurn, kDown, kMeeting, kSurvey, kSpare };

class Detour {
 public:
  enum class State : std::uint8_t {
    kNone,    // there is no other switch, or none that all reach
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
    bool busy = false;     // a submission there is not done
    bool silent = false;   // and nobody here waits for it
    bool waiting = false;  // `submission` is still to be made there
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
  void set_spares(std::uint32_t survey_lane, std::uint32_t lane) noexcept;

  State state() const noexcept { return state_; }
  std::uint32_t moves() const noexcept { return moves_; }  // how often they did
  bool in_use() const noexcept { return state_ == State::kAsking || state_ == State::kMoved; }
  std::uint32_t survey_lane() const noexcept { return survey_lane_; }
  std::uint32_t spare_lane() const noexcept { return spare_lane_; }
  std::vector<Row>& rows() noexcept { return rows_; }
  void give_up() noexcept;  // the spare is lost before it was needed

  // kReady: the lanes move, in this step, with so many collectives done at the level.
  void begin(Step step, std::uint32_t collectives);
  // In: what this worker says; out: the sum.
  std::span<float> survey() noexcept { return survey_; }
  static std::size_t survey_elems(std::uint32_t ports, std::size_t rows) noexcept;
  // The sum is in survey(). False: a collective is over for some of them alone.
  bool handle_survey();

  // ---- once the survey is back ----
  Step step() const noexcept { return first_step_; }  // the one that is finished first
  Fate fate(std::uint32_t row) const noexcept;
  bool is_self(std::uint32_t digit) const noexcept { return digit == digit_; }

  // Submissions at the other switch that are not done, the survey among them.
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
  std::vector<float> survey_;  // steps and collectives by digit, then who has each row's result
  std::uint32_t survey_lane_ = 0;
  std::uint32_t spare_lane_ = 0;
  Step begun_ = 0;  // this worker's, when the lanes moved
  Step first_step_ = 0;
  std::uint32_t moves_ = 0;
  State state_ = State::kNone;
};

}  // namespace sluice::client

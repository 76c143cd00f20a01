// What the application has asked for each tensor and what came of it: the one place where steps are
// counted.
//
// A tensor's n-th submission belongs to step n; ending a step without the tensor (leaving it out)
// counts as one. The step that the application fills ends with its last tensor, or when it says so.
// It may be any number of steps ahead of the step under way, but each tensor has one submission in
// flight at most. The step under way begins when every result of the one before is in; which
// tensors take part in it is told once each, in order. Pure, no allocation after construction but
// for error texts; under the session's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/base/status.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/types.h"

namespace sluice::client {

class Tensors {
 public:
  // What a tensor does in the step under way.
  enum class Part : std::uint8_t {
    kUnasked,   // nothing yet: the application has not come to it
    kGradient,  // submitted, with data or without
    kCatchUp,   // only its average is wanted
    kLeftOut,   // the step was ended without it: no data, and its average is not wanted
    kDone,      // its average is whole
  };
  // What is known about a tensor's last average.
  struct Result {
    std::uint64_t weight = 0;
    DurationNs latency_ns = 0;  // from its submission
    Step step = 0;
    bool absent = false;
    bool non_finite = false;
  };

  // `first_step`: 1, but in tests of the last steps.
  Tensors(const SessionOptions& options, const Layout& layout, Step first_step = 1);

  // ---- the application's side ----
  // `call`: which call asks, for the text.
  Status check_exists(std::uint32_t tensor, const char* call) const;
  // Whether accept() may follow: the index, the pointers, nothing in flight.
  Status check(const Submission& submission) const;
  Step next_step(std::uint32_t tensor) const noexcept { return rows_[tensor].asked + 1; }
  void accept(const Submission& submission, TimeNs now) noexcept;
  Status end_step();
  // Whether end_step() would have nothing to do, which is then said. Any thread, without the lock:
  // of a step whose tensors were all submitted nothing is left to declare.
  bool take_ended() noexcept { return ended_by_itself_.exchange(false, std::memory_order_acq_rel); }

  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(rows_.size()); }
  bool in_flight(std::uint32_t tensor) const noexcept { return rows_[tensor].in_flight != 0; }
  std::uint32_t in_flight_count() const noexcept { return in_flight_count_; }
  // Its last submission was given up: see abandon().
  bool lost(std::uint32_t tensor) const noexcept { return rows_[tensor].lost; }
  // What its output holds: never kDefault once the job is joined.
  AveragingChoice averaging(std::uint32_t tensor) const noexcept { return rows_[tensor].averaging; }
  void set_averaging(std::uint32_t tensor, AveragingChoice choice) noexcept {
    rows_[tensor].averaging = choice;
  }
  const Result& result(std::uint32_t tensor) const noexcept { return rows_[tensor].result; }
  // Its last submission, in flight or not, was for this step.
  Step last_asked(std::uint32_t tensor) const noexcept { return rows_[tensor].asked; }
  // Nothing is in flight, and every step that was ended is complete.
  bool at_rest() const noexcept { return in_flight_count_ == 0 && current_ >= filling_; }
  // The step that the next submission belongs to, if every tensor is submitted once a step.
  Step filling() const noexcept { return filling_; }

  // ---- the step under way ----
  Step current() const noexcept { return current_; }
  Part part(std::uint32_t tensor) const noexcept { return rows_[tensor].part; }
  // It takes part and is not done.
  bool active(std::uint32_t tensor) const noexcept {
    const Part part = rows_[tensor].part;
    return part != Part::kUnasked && part != Part::kDone;
  }
  // Some tensor takes part, or has.
  bool begun() const noexcept { return asked_now_ != 0; }
  // Some tensor of it has no gradient of this worker and catches up.
  bool catching_up() const noexcept { return catch_ups_ != 0; }
  // Valid while part(tensor) is kGradient or kCatchUp.
  const Submission& submission(std::uint32_t tensor) const noexcept {
    return rows_[tensor].submission;
  }
  // Given up, it would have carried a gradient: in this step or a later one.
  bool carries_data(std::uint32_t tensor) const noexcept {
    const Row& row = rows_[tensor];
    return row.in_flight != 0 && row.submission.contribute && row.submission.input != nullptr;
  }
  // The next tensor that takes part and has not been told of. False: none has come.
  bool next_joined(std::uint32_t& tensor) noexcept;
  bool has_joined() const noexcept { return joined_first_ != joined_.size(); }

  // The tensor's average is whole. `result.latency_ns` is filled in.
  void done(std::uint32_t tensor, Result result, TimeNs now) noexcept;
  bool all_done() const noexcept { return done_count_ == rows_.size(); }
  // Precondition: all_done().
  void begin_next_step() noexcept;

  // Why nothing can be asked before resume(); ok while it can.
  const Status& behind_status() const noexcept { return behind_; }
  void fall_behind(Status why) noexcept { behind_ = std::move(why); }
  // Gives up what is in flight. Precondition: behind.
  void abandon() noexcept;
  // All is as if step - 1 had just been done.
  void resume(Step step) noexcept;

 private:
  struct Row {
    Submission submission;  // the last one
    Step asked = 0;         // newest step that it was submitted or left out for
    Step in_flight = 0;     // that its submission is for; 0: none
    Part part = Part::kUnasked;
    bool lost = false;
    AveragingChoice averaging{};
    Result result;
  };

  Status refuse(std::uint32_t tensor, const std::string& why) const;
  Status refuse_left_out() const;
  void fill_next() noexcept;
  void join(std::uint32_t tensor) noexcept;
  void become(Row& row, Part part) noexcept;
  void end_submission(Row& row) noexcept;
  void check() const noexcept;

  const SessionOptions& options_;
  const Layout& layout_;
  std::vector<Row> rows_;
  Status behind_;
  Step current_;
  Step filling_;              // that the application is submitting
  std::uint32_t filled_ = 0;  // tensors asked for in it
  // The last step ended with its last tensor, and nobody has said so since.
  std::atomic<bool> ended_by_itself_{false};
  std::uint32_t in_flight_count_ = 0;
  std::uint32_t asked_now_ = 0;  // tensors that take part in the step under way, or have
  std::uint32_t done_count_ = 0;
  std::uint32_t catch_ups_ = 0;
  std::vector<std::uint32_t> joined_;  // that take part; from joined_first_ on not told of
  std::size_t joined_first_ = 0;
};

}  // namespace sluice::client

#include "client/core/calls/tensors.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "client/core/calls/error_prefix.h"

namespace sluice::client {
namespace {

constexpr std::size_t kListedNames = 8;

}  // namespace

Tensors::Tensors(const SessionOptions& options, const Layout& layout, Step first_step)
    : options_(options),
      layout_(layout),
      rows_(layout.tensor_count()),
      current_(first_step),
      filling_(first_step) {
  CHECK(0 < first_step && first_step <= kLastStep);
  for (Row& row : rows_) row.asked = first_step - 1;
  joined_.reserve(rows_.size());
}

// The invariants between any two calls.
void Tensors::check() const noexcept {
  DCHECK(current_ <= filling_);
  DCHECK(filled_ < rows_.size());
  DCHECK(in_flight_count_ <= rows_.size());
  DCHECK(done_count_ <= asked_now_ && catch_ups_ <= asked_now_ && asked_now_ <= rows_.size());
  DCHECK(joined_first_ <= joined_.size() && joined_.size() == asked_now_);
}

// ---- the application's side ----

Status Tensors::refuse(std::uint32_t tensor, const std::string& why) const {
  return {StatusCode::kInvalidArgument,
          error_prefix(options_) + "tensor '" + layout_.tensor(tensor).name + "': " + why};
}

Status Tensors::check_exists(std::uint32_t tensor, const char* call) const {
  if (tensor < rows_.size()) return {};
  return {StatusCode::kInvalidArgument,
          error_prefix(options_) + call + ": tensor " + std::to_string(tensor) +
              " does not exist; the job has " + std::to_string(rows_.size()) + " tensors"};
}

Status Tensors::check(const Submission& submission) const {
  if (!behind_.ok()) return behind_;
  const std::uint32_t tensor = submission.tensor;
  if (Status status = check_exists(tensor, "submit"); !status.ok()) return status;
  const Row& row = rows_[tensor];
  DCHECK(row.in_flight <= row.asked);
  if (submission.output == nullptr) return refuse(tensor, "output is NULL");
  if (submission.contribute && submission.input == nullptr && !options_.allow_nil)
    return refuse(tensor, "input is NULL; submit zeros, or join with allow_nil on every rank");
  if (row.in_flight != 0)
    return {StatusCode::kBusy, error_prefix(options_) + "tensor '" + layout_.tensor(tensor).name +
                                   "' is still in flight for step " +
                                   std::to_string(row.in_flight) +
                                   "; wait for it before submitting again"};
  if (row.asked >= kLastStep)
    return refuse(tensor, "step numbers are used up after " + std::to_string(kLastStep) +
                              " steps: start a new job from a checkpoint");
  return {};
}

void Tensors::accept(const Submission& submission, TimeNs now) noexcept {
  CHECK(submission.tensor < rows_.size() && submission.output != nullptr);
  Row& row = rows_[submission.tensor];
  CHECK(row.in_flight == 0 && row.asked < kLastStep);
  row.submission = submission;
  if (row.submission.ready_ns == 0) row.submission.ready_ns = now;
  row.lost = false;
  row.in_flight = ++row.asked;
  ++in_flight_count_;
  if (row.asked == current_) join(submission.tensor);
  if (row.asked != filling_) return;
  const bool ended = ++filled_ == rows_.size();
  if (ended) fill_next();
  ended_by_itself_ = ended;
  check();
}

Status Tensors::end_step() {
  if (!behind_.ok()) return behind_;
  if (take_ended()) return {};
  if (filling_ > kLastStep)
    return {StatusCode::kExhausted, error_prefix(options_) +
                                        "step numbers are used up: start a new job from a "
                                        "checkpoint"};
  if (!options_.allow_nil) return refuse_left_out();
  for (std::uint32_t tensor = 0; tensor < rows_.size(); ++tensor) {
    Row& row = rows_[tensor];
    if (row.asked >= filling_) continue;
    row.asked = filling_;
    if (filling_ == current_) join(tensor);
  }
  fill_next();
  check();
  return {};
}

Status Tensors::refuse_left_out() const {
  std::string names;
  std::size_t count = 0;
  for (std::uint32_t tensor = 0; tensor < rows_.size(); ++tensor) {
    if (rows_[tensor].asked >= filling_) continue;
    if (++count <= kListedNames) names += (names.empty() ? "" : ", ") + layout_.tensor(tensor).name;
  }
  CHECK(count != 0);  // else the step had ended by itself
  if (count > kListedNames) names += " and " + std::to_string(count - kListedNames) + " more";
  return {StatusCode::kInvalidArgument, error_prefix(options_) + "step " +
                                            std::to_string(filling_) +
                                            " cannot end: not submitted: " + names +
                                            "; submit them, or join with allow_nil on every rank"};
}

void Tensors::fill_next() noexcept {
  ++filling_;
  filled_ = static_cast<std::uint32_t>(std::count_if(
      rows_.begin(), rows_.end(), [this](const Row& row) { return row.asked >= filling_; }));
  DCHECK(filled_ < rows_.size());  // a step can't be full before the one before it
}

// ---- the step under way ----

// The legal changes: a tensor joins the step, is done, and begins the next step.
void Tensors::become(Row& row, Part part) noexcept {
  const bool was_active = row.part != Part::kUnasked && row.part != Part::kDone;
  switch (part) {
    case Part::kGradient:
    case Part::kCatchUp:
    case Part::kLeftOut: CHECK(row.part == Part::kUnasked); break;
    case Part::kDone: CHECK(was_active); break;
    case Part::kUnasked: CHECK(!was_active); break;
  }
  row.part = part;
}

// The tensor takes part in the step under way, which has asked for it.
void Tensors::join(std::uint32_t tensor) noexcept {
  Row& row = rows_[tensor];
  CHECK(row.asked >= current_);
  if (row.in_flight != current_)
    become(row, Part::kLeftOut);
  else
    become(row, row.submission.contribute ? Part::kGradient : Part::kCatchUp);
  catch_ups_ += row.part == Part::kCatchUp;
  ++asked_now_;
  joined_.push_back(tensor);
}

bool Tensors::next_joined(std::uint32_t& tensor) noexcept {
  if (!has_joined()) return false;
  tensor = joined_[joined_first_++];
  DCHECK(active(tensor));
  return true;
}

void Tensors::end_submission(Row& row) noexcept {
  CHECK(row.in_flight != 0 && in_flight_count_ != 0);
  row.in_flight = 0;
  --in_flight_count_;
}

void Tensors::done(std::uint32_t tensor, Result result, TimeNs now) noexcept {
  Row& row = rows_[tensor];
  CHECK(row.part == Part::kLeftOut || row.in_flight == current_);
  if (row.part != Part::kLeftOut) {
    result.latency_ns = std::max<DurationNs>(0, now - row.submission.ready_ns);
    result.step = current_;
    row.result = result;
    end_submission(row);
  }
  become(row, Part::kDone);
  ++done_count_;
  check();
}

void Tensors::begin_next_step() noexcept {
  CHECK(all_done() && !has_joined());
  DCHECK(std::ranges::count_if(rows_, [](const Row& row) { return row.in_flight != 0; }) ==
         std::ptrdiff_t{in_flight_count_});
  ++current_;
  asked_now_ = done_count_ = catch_ups_ = 0;
  joined_.clear();
  joined_first_ = 0;
  for (Row& row : rows_) become(row, Part::kUnasked);
  for (std::uint32_t tensor = 0; tensor < rows_.size(); ++tensor)
    if (rows_[tensor].asked >= current_) join(tensor);
  check();
}

void Tensors::abandon() noexcept {
  CHECK(!behind_.ok());
  for (Row& row : rows_) {
    if (row.in_flight != 0) {
      end_submission(row);
      row.lost = true;
    }
    row.part = Part::kUnasked;
    row.asked = current_ - 1;
  }
  CHECK(in_flight_count_ == 0);
  filling_ = current_;
  filled_ = 0;
  ended_by_itself_ = false;
  asked_now_ = done_count_ = catch_ups_ = 0;
  joined_.clear();
  joined_first_ = 0;
}

void Tensors::resume(Step step) noexcept {
  CHECK(in_flight_count_ == 0 && !begun());
  CHECK(0 < step && step <= kLastStep);
  behind_ = {};
  current_ = filling_ = step;
  for (Row& row : rows_) {
    row.asked = step - 1;
    row.lost = false;
  }
}

}  // namespace sluice::client

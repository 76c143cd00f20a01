// What a session does when its appliance is lost, and another one, or the same one without its
// memory, answers at the same address.
//
// While the appliance is silent the session asks to join again, under the same nonce: an appliance
// that still knows this member repeats its answer, and then nothing has happened. One that does not
// gives another cookie. Then all ranks join anew, state what they know (handover/resumption.h), and
// the step goes on. Tensors, averages and residuals stay, so the application only waits.
#include <algorithm>
#include <memory>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/text.h"
#include "client/core/session.h"

namespace sluice::client {
namespace {

// Two keepalives are without an answer.
constexpr DurationNs kAskAfter = 2 * kKeepaliveInterval;

}  // namespace

DurationNs Session::restart_timeout_ns() const noexcept {
  if (groups_ != nullptr) return groups_->survives() ? options_.restart_timeout_ns : 0;
  const bool survives =
      kind_of(options_) == JobKind::kSums && !facts_.policy.tolerates_stragglers();
  return survives ? options_.restart_timeout_ns : 0;
}

TimeNs Session::next_asking() const noexcept {
  if (state_ != SessionState::kForming && state_ != SessionState::kRunning) return kNever;
  if (restart_timeout_ns() == 0) return kNever;
  return asking_.has_value() ? asking_->next_timeout() : membership_.heard_ns() + kAskAfter;
}

void Session::ask_again(TimeNs now) {
  if (asking_.has_value()) {
    asking_->handle_timeout(now);
    return act_on_asking(now);
  }
  ask_anew(now);
}

void Session::ask_anew(TimeNs now) {
  const Step stands = groups_ != nullptr ? 1 + groups_->returning_count() : tensors_.current();
  asking_.emplace(
      options_, layout_, now,
      JoinMachine::Again{.resume_step = has_started_ ? stands : 0,
                         .patience_ns = moving_ ? std::max<DurationNs>(patience_left(now), 1)
                                                : restart_timeout_ns()});
}

// Of a job that is on its way.
DurationNs Session::patience_left(TimeNs now) const noexcept {
  return lost_ns_ + restart_timeout_ns() - now;
}

Verdict Session::handle_answer_to_asking(const wire::Packet& packet, TimeNs now) {
  const Verdict verdict = asking_->handle(packet, now);
  // Its memory may take longer than restart_timeout. One that a rank moves to has not been heard.
  if (asking_->preparing() || (moving_ && verdict == Verdict::kJoin)) membership_.heard(now);
  standby_.learn(asking_->epoch());
  act_on_asking(now);
  consider_move(now);
  return verdict;
}

void Session::act_on_asking(TimeNs now) {
  switch (asking_->outcome()) {
    case JoinMachine::Outcome::kPending: return;
    case JoinMachine::Outcome::kFailed: {
      const Status why = asking_->failure();
      asking_.reset();
      if (moving_ && why.code() != StatusCode::kPeerLost && patience_left(now) > 0) {
        refused_ = why.message();
        return ask_anew(now);
      }
      const bool elsewhere =
          !moving_ && why.code() == StatusCode::kRefused && standby_.is_there(now);
      if (elsewhere) return move(options_.epoch + 1, now);
      if (moving_)
        return fail({why.code(), (refused_.empty() ? why.message() : refused_) +
                                     " (the appliance before was heard last " +
                                     seconds_text(now - lost_ns_) + " ago)"},
                    false, now);
      return fail({why.code(), why.message() + " (the appliance had been silent for " +
                                   seconds_text(now - membership_.heard_ns()) + ")"},
                  false, now);
    }
    case JoinMachine::Outcome::kAccepted: break;
  }
  if (moving_ || asking_->identity().cookie != link_.identity.cookie) return change_appliance(now);
  membership_.heard(now);
  asking_.reset();
}

// It has a place for this rank, and knows nothing else.
void Session::change_appliance(TimeNs now) {
  const wire::Accept accept = asking_->accept();
  if (!changed_) lost_ns_ = membership_.heard_ns();
  changed_ = true;
  moving_ = false;
  refused_.clear();
  resumption_.reset();
  use_flows(*asking_);
  asking_.reset();
  missing_ = {};
  std::destroy_at(&membership_);
  std::construct_at(&membership_, options_);
  const DurationNs returns_ns =
      standby_.exists() ? std::max(patience_left(now), kSecond) : restart_timeout_ns();
  membership_.begin(link_.identity, {.restart_ns = restart_timeout_ns(), .returns_ns = returns_ns},
                    now);
  become(SessionState::kForming);
  if (PolicyOptions(accept.policy) != facts_.policy)
    return fail({StatusCode::kRefused,
                 place() + "the appliance has come back with another policy for this job: start "
                           "the job again"},
                true, now);
  collectives_.change_appliance();
  if (groups_ != nullptr) return groups_->change_appliance();
  gradients_->change_appliance(accept);
}

// ---- what the ranks know ----

void Session::note_returned(Step step, TimeNs now) {
  changed_ = false;
  link_.events.push({.kind = Event::Kind::kReturned,
                     .step = step,
                     .status = Status(StatusCode::kUnreachable, describe_restart(now))});
  ++link_.counters.appliance_restarts;
  standby_.settled();
}

// Groups need no exchange: the appliance is told where each member is in them.
void Session::begin_exchange(TimeNs now) {
  if (groups_ != nullptr && collectives_.has_call())
    return fail({StatusCode::kUnreachable,
                 place() + "the appliance was lost in the middle of a collective of all ranks, "
                           "which a job of operations does not finish then: call it in a group"},
                true, now);
  if (groups_ != nullptr) {
    note_returned(1, now);
    collectives_.begin_exchange();
    return collectives_.end_exchange(false, now);
  }
  const Step first = membership_.resume_step();
  if (tensors_.current() != first && tensors_.current() != first + 1)
    return fail({StatusCode::kRefused,
                 place() + "this rank is in step " + std::to_string(tensors_.current()) +
                     ", and the job goes on with step " + std::to_string(first) +
                     ": start it again from a checkpoint"},
                true, now);
  resumption_.emplace(options_.world_size, options_.rank, layout_.chunk_count(), first,
                      Resumption::State{.step = tensors_.current(),
                                        .calls = collectives_.calls_ended(),
                                        .results = gradients_->results()});
  collectives_.begin_exchange();
  collectives_.exchange(resumption_->next(), resumption_->buffer(), now);
}

// A rank's state is here.
void Session::advance_exchange(TimeNs now) {
  const Rank rank = resumption_->next();
  if (!resumption_->take())
    return link_.fail({StatusCode::kRefused,
                       place() + "rank " + std::to_string(rank.value) +
                           " is in another step or collective than this rank can be in: start the "
                           "job again from a checkpoint"});
  if (resumption_->is_over()) return end_exchange(now);
  collectives_.exchange(resumption_->next(), resumption_->buffer(), now);
}

void Session::end_exchange(TimeNs now) {
  const Resumption& resumption = *resumption_;
  if (resumption.is_call_over() && !collectives_.has_call())
    return link_.fail({StatusCode::kRefused,
                       place() + "another rank has ended a collective that this rank has not "
                                 "called: start the job again from a checkpoint"});
  note_returned(resumption.first_step(), now);
  collectives_.end_exchange(resumption.is_call_over(), now);
  if (Status status = gradients_->go_on(resumption, now); !status.ok())
    link_.fail(std::move(status));
  resumption_.reset();
}

std::string Session::describe_silence(TimeNs now) const {
  const std::string memory = asking_->describe();  // of an appliance that prepares it
  if (!memory.empty()) return memory;
  if (moving_)
    return place() +
           "the job moves here, and this rank has no place yet; the appliance before was "
           "heard last " +
           seconds_text(now - lost_ns_) + " ago, and the job waits for " +
           seconds_text(restart_timeout_ns()) + " (restart_timeout)" +
           (refused_.empty() ? std::string() : "; it was told: " + refused_);
  return place() + "the appliance has been silent for " +
         seconds_text(now - membership_.heard_ns()) + "; the job waits for it for " +
         seconds_text(restart_timeout_ns()) + " (restart_timeout)";
}

std::string Session::describe_restart(TimeNs now) const {
  if (groups_ != nullptr)
    return place() + "the appliance was lost and is back: operations go on " +
           seconds_text(now - lost_ns_) + " after it was heard last";
  return place() +
         (standby_.is_settled()
              ? "the appliance was lost in step " + std::to_string(tensors_.current()) +
                    " and is back"
              : "the job has moved here in step " + std::to_string(tensors_.current())) +
         ": the step goes on " + seconds_text(now - lost_ns_) + " after it was heard last";
}

}  // namespace sluice::client

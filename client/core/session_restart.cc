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
  return options_.restart_timeout_ns;
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
  const bool is_in_step = has_started_ && behind_status().ok();
  const bool tolerant = gradients_ != nullptr && gradients_->tolerant();
  const ReceiveArena* const kept = tolerant ? gradients_->kept() : nullptr;
  const Step stands = groups_ != nullptr  ? 1 + groups_->returning_count()
                      : store_ != nullptr ? 1
                                          : tensors_.current();
  asking_.emplace(
      options_, layout_, now,
      JoinMachine::Again{.resume_step = is_in_step ? stands : 0,
                         .resume_calls = tolerant || store_ != nullptr ? collectives_.position()
                                                                       : collectives_.calls_ended(),
                         .resume_k = kept != nullptr && is_in_step
                                         ? HeldResults::newest_k(*kept, layout_.chunk_count())
                                         : std::uint16_t{0},
                         .exchanges = exchanges_,
                         .view = view_,
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
      // The membership ends the wait, and leaves out of it what this process stood still.
      if (!moving_ && why.code() == StatusCode::kUnreachable) return ask_anew(now);
      const bool elsewhere =
          !moving_ && why.code() == StatusCode::kRefused && standby_.is_there(now);
      if (elsewhere) return move(options_.epoch + 1, now);
      if (moving_)
        return fail({why.code(), (refused_.empty() ? why.message() : refused_) +
                                     " (the appliance before was heard last " +
                                     seconds_text(now - lost_ns_) + " ago" +
                                     (membership_.is_forming() && membership_.lacks_ranks()
                                          ? ": " + membership_.describe_forming()
                                          : "") +
                                     ")"},
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
  stop_giving();
  use_flows(*asking_);
  rejoined_ = accept.rejoined != 0;
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
  if (rejoined_) static_cast<void>(collectives_.join(accept));
  if (groups_ != nullptr) return groups_->change_appliance();
  if (store_ != nullptr) return store_->change_appliance(accept, !has_started_);
  gradients_->change_appliance(accept);
  transfers_->change_appliance(now);
}

// ---- what the ranks know ----

// Groups need no exchange: the appliance is told where each member is in them.
void Session::begin_exchange(TimeNs now) {
  if (groups_ != nullptr && collectives_.has_call())
    return fail({StatusCode::kUnreachable,
                 place() + "the appliance was lost in the middle of a collective of all ranks, "
                           "which a job of operations does not finish then: call it in a group"},
                true, now);
  if (groups_ != nullptr) {
    end_exchange(now);
    collectives_.begin_exchange();
    return collectives_.end_exchange(false, now);
  }
  if (store_ != nullptr || facts_.policy.tolerates_stragglers()) return give_results(now);
  const Step first = membership_.resume_step();
  if (tensors_.current() != first && tensors_.current() != first + 1)
    return fail({StatusCode::kRefused,
                 place() + "this rank is in step " + std::to_string(tensors_.current()) +
                     ", and the job goes on with step " + std::to_string(first) +
                     ": start it again from a checkpoint"},
                true, now);
  Resumption::State own{.step = tensors_.current(),
                        .calls = collectives_.calls_ended(),
                        .results = gradients_->results()};
  own.results.resize(Resumption::words(layout_.chunk_count()));  // of a rank that is new here: none
  resumption_.emplace(options_.world_size, options_.rank, layout_.chunk_count(), first,
                      std::move(own));
  collectives_.begin_exchange();
  collectives_.exchange(resumption_->next(), resumption_->buffer(), now);
}

// With k < n, or of a store. A rank that is too far back, or that the job has gone on without, lets
// go of what it has: the others may have made other sums since. Of a store it ends, since a new
// process would pull what the application of this one has.
void Session::give_results(TimeNs now) {
  const Membership::Resumed& resumed = membership_.resumed();
  const bool is_over = resumed.calls > collectives_.position();
  bool lacks_state = resumed.needs_state || rejoined_;
  const ReceiveArena* const kept = gradients_ != nullptr ? gradients_->kept() : nullptr;
  CHECK(lacks_state || store_ != nullptr || kept != nullptr);  // a new process may keep none
  if (lacks_state && store_ != nullptr)
    return fail({StatusCode::kRefused,
                 place() + "the store has gone on from an appliance that is lost without this "
                           "rank: start this rank again"},
                true, now);
  for (ChunkIndex chunk = 0; kept != nullptr && chunk < layout_.chunk_count() && !lacks_state;
       ++chunk)
    lacks_state = kept->has(chunk) && kept->get(chunk).step > resumed.step;
  // A call ends with a barrier of all ranks, so it is over for one that has all of its bytes.
  const bool has_call = collectives_.has_call();
  const bool has_ended = is_over && has_call && collectives_.has_all_bytes();
  const bool goes_on = has_call ? !is_over && !lacks_state : !is_over || lacks_state;
  if (!has_ended && !goes_on)
    return fail({StatusCode::kRefused,
                 place() + "the appliance was lost, and this rank was not in the collective that "
                           "the others were in: start it again from a checkpoint"},
                true, now);
  if (lacks_state && behind_status().ok()) {
    Status why(StatusCode::kBehind,
               place() + "the job has gone on from an appliance that is lost with step " +
                   std::to_string(resumed.step) + ", and this rank is in step " +
                   std::to_string(tensors_.current()) + ": get the state of another rank (resync)");
    if (changed_)
      link_.events.push(
          {.kind = Event::Kind::kFellBehind, .step = tensors_.current(), .status = why});
    gradients_->fall_behind(std::move(why));
  }
  collectives_.begin_exchange();
  collectives_.end_exchange(has_ended, now);
  exchanges_ = {.over = resumed.exchange_over, .entered = resumed.exchange};
  if (!lacks_state) {
    if (store_ != nullptr) {
      held_ = store_->give(now);
    } else {
      gradients_->begin_there(resumed.step, true, now);
      held_ = std::make_unique<HeldResults>(*kept, layout_, link_, resumed.from, resumed.step, now);
    }
    for (Streams* const streams : {&streams_, &probe_order_, &send_order_})
      streams->push_back(held_.get());
    return work(now);
  }
  exchanges_.over = resumed.exchange;  // it has nothing of before
  gradients_->begin_there(std::min(resumed.step, kLastStep - 2) + 2, false, now);
  if (changed_) end_exchange(now);
}

void Session::stop_giving() {
  for (Streams* const streams : {&streams_, &probe_order_, &send_order_})
    std::erase(*streams, held_.get());
  held_.reset();
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
  if (resumption_ && resumption_->is_call_over() && !collectives_.has_call())
    return link_.fail({StatusCode::kRefused,
                       place() + "another rank has ended a collective that this rank has not "
                                 "called: start the job again from a checkpoint"});
  const Step step = resumption_ ? resumption_->first_step() : membership_.resume_step();
  if (std::exchange(changed_, false)) {
    link_.events.push({.kind = Event::Kind::kReturned,
                       .step = step,
                       .status = Status(StatusCode::kUnreachable, describe_restart(now))});
    ++link_.counters.appliance_restarts;
  }
  standby_.settled();
  stop_giving();
  if (!resumption_) return;
  collectives_.end_exchange(resumption_->is_call_over(), now);
  if (Status status = gradients_->go_on(*resumption_, now); !status.ok())
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
  const std::string in_step =
      gradients_ != nullptr ? " in step " + std::to_string(tensors_.current()) : "";
  std::string text = place() +
                     (standby_.is_settled() ? "the appliance was lost" : "the job has moved here") +
                     in_step + (standby_.is_settled() ? " and is back: " : ": ");
  text += groups_ != nullptr  ? "operations go on "
          : store_ != nullptr ? "the store goes on "
                              : "the step goes on ";
  text += seconds_text(now - lost_ns_) + " after it was heard last";
  if (store_ != nullptr) {
    text += ", with the newest values that its ranks had read";
    if (membership_.lacks_ranks())
      text += "; what ranks that are not back (" + membership_.missing_ranks() +
              ") had pushed and nobody has read is lost";
    text += store_->describe_loss();
  }
  const PolicyKind policy = facts_.policy.kind;
  if (gradients_ != nullptr && policy != PolicyKind::kSync && policy != PolicyKind::kFixed)
    text += "; policy " + std::string(name_of(policy)) + " keeps its k and observes anew";
  return text;
}

}  // namespace sluice::client

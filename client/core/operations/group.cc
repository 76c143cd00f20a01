#include "client/core/operations/group.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/text.h"
#include "client/core/operations/describe.h"

namespace sluice::client {
namespace {

constexpr int kMaxBackoff = 4;  // doublings of the time until a call that is not noted leaves again

wire::Description what_of(const OperationCall& call) noexcept {
  return {.bytes = call.bytes,
          .root = call.root,
          .kind = call.kind,
          .dtype = call.dtype,
          .wire = call.wire,
          .reduction = call.reduction};
}

}  // namespace

Group::Group(GroupFacts facts, std::string name, std::string error_prefix, Link& link,
             std::uint64_t first_chunk)
    : facts_(std::move(facts)),
      name_(std::move(name)),
      error_prefix_(std::move(error_prefix)),
      link_(link),
      sequences_{Sequence{facts_, wire::Sequence::kUp, link, first_chunk},
                 Sequence{facts_, wire::Sequence::kDown, link, first_chunk},
                 Sequence{facts_, wire::Sequence::kBoth, link, first_chunk},
                 Sequence{facts_, wire::Sequence::kSmall, link, first_chunk}} {}

// ---- its making ----

void Group::made(std::uint16_t id, std::uint32_t generation, TimeNs now) {
  CHECK(!made_);
  made_ = true;
  facts_.id = id;
  facts_.generation = generation;
  begin_waiting(now);
}

void Group::begin_waiting(TimeNs now) {
  while (made_ && !waiting_.empty() && !waiting_.front().call.held) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    begin(next.call, next.number, next.called_ns, now);
    if (next.cancelled) cancel(next.number, now);
  }
}

void Group::release(std::uint64_t number, const void* input, void* output, TimeNs now) {
  const auto waiting = std::ranges::find(waiting_, number, &Waiting::number);
  if (waiting == waiting_.end()) return;
  CHECK(waiting->call.held);
  waiting->call.input = input;
  waiting->call.output = output;
  waiting->call.held = false;
  begin_waiting(now);
}

void Group::give_up(const Status& why) {
  for (Called& called : called_)
    if (!called.done) finish(called, why, wire::OutcomeCode::kCancelled);
  for (const Waiting& waiting : waiting_) {
    --open_count_;
    events_.push_back({.group = this, .number = waiting.number, .status = why});
  }
  waiting_.clear();
}

// ---- calls ----

Status Group::check(const OperationCall& call) const {
  const std::string place = error_prefix_ + "group '" + name_ + "': ";
  const std::size_t under_way = called_.size() - told_count_ + waiting_.size();
  if (under_way >= kKeptCalls)
    return {StatusCode::kBusy, place + std::to_string(under_way) +
                                   " operations are under way, and more cannot be: wait for one"};
  const wire::Description what = what_of(call);
  const bool rooted = call.root != wire::kNoRank;
  if (!wire::is_possible(what) ||
      (rooted && std::ranges::find(facts_.members, Rank{call.root}) == facts_.members.end()))
    return {StatusCode::kInvalidArgument,
            place + sluice::client::describe(what) +
                ": there is no such operation; its bytes, types or root are wrong"};
  const wire::Cut cut(what, facts_.members.size(), facts_.chunk_bytes);
  if (cut.chunk_count() >= wire::kMaxOperationChunks)
    return {StatusCode::kInvalidArgument,
            place + sluice::client::describe(what) + " takes " + std::to_string(cut.chunk_count()) +
                " packets, and may take " + std::to_string(wire::kMaxOperationChunks - 1) +
                ": call several"};
  return {};
}

Status Group::call(const OperationCall& call, TimeNs now, std::uint64_t& number) {
  if (Status status = check(call); !status.ok()) return status;
  number = next_++;
  ++open_count_;
  waiting_.push_back({.call = call, .number = number, .called_ns = now});
  begin_waiting(now);
  if (call.patience_ns != kNever) deadline_ns_ = std::min(deadline_ns_, now + call.patience_ns);
  return {};
}

void Group::begin(const OperationCall& call, std::uint64_t number, TimeNs called_ns, TimeNs now) {
  Sequence& sequence = of(wire::sequence_of(what_of(call), facts_.members.size()));
  const wire::Description what = sequence.describe(call, number);
  called_.push_back(
      {.number = number,
       .what = what,
       .sequence = sequence.id(),
       .begun_ns = called_ns,
       .next_ns = now,
       .deadline_ns = call.patience_ns == kNever ? kNever : called_ns + call.patience_ns});
  quiet_until_ns_ = 0;
  called_.back().end = sequence.begin(call, what, number, now);
}

Group::Called* Group::find(std::uint64_t number) noexcept {
  if (called_.empty() || number < called_.front().number || number > called_.back().number)
    return nullptr;
  return &called_[number - called_.front().number];
}

void Group::cancel(std::uint64_t number, TimeNs now) {
  const auto waiting = std::ranges::find(waiting_, number, &Waiting::number);
  if (waiting != waiting_.end()) waiting->cancelled = true;
  Called* const called = find(number);
  if (called == nullptr || called->done || called->cancelled) return;
  called->cancelled = true;
  ask_about(*called, now);
}

void Group::ask_about(Called& called, TimeNs now) noexcept {
  called.next_ns = std::min(called.next_ns, now);
  quiet_until_ns_ = 0;
}

void Group::ask_about_all(TimeNs now) noexcept {
  for (Called& called : called_)
    if (!called.done) ask_about(called, now);
}

bool Group::poll_event(OperationEvent& event) {
  collect_done();
  if (events_.empty()) return false;
  event = std::move(events_.front());
  events_.pop_front();
  return true;
}

void Group::collect_done() {
  Sequence::Done done;
  for (Sequence& sequence : sequences_)
    while (sequence.poll_done(done)) {
      Called* const called = find(done.number);
      CHECK(called != nullptr && !called->done);
      if (wire::needs_all(called->what.kind) && !done.unsure)  // so all have called it
        called_by_all_ = std::max(called_by_all_, done.number + 1);
      called->non_finite = done.non_finite;
      called->unsure = done.unsure;
      if (done.unsure)
        ask_about(*called, 0);
      else
        finish(*called, {}, completed_code(*called));
    }
  forget_done();
}

void Group::finish(Called& called, Status status, wire::OutcomeCode heard,
                   std::uint16_t heard_rank) {
  CHECK(!called.done && open_count_ != 0);
  called.done = true;
  called.heard = heard;
  called.heard_rank = heard_rank;
  --open_count_;
  of(called.sequence).end(called.number, status.ok());
  events_.push_back({.group = this,
                     .number = called.number,
                     .non_finite = called.non_finite,
                     .status = std::move(status)});
}

bool Group::is_told(const Called& called) const noexcept {
  return called.done && (called.number < noted_ || (broken_ && called.number >= retold_to_));
}

// What is done and noted is nobody's question any more, unless the appliance is lost.
void Group::forget_done() noexcept {
  // Every member has its results, or has called so much since that it has heard how it ended.
  const auto is_nobodys = [this](const Called& called) {
    if (!facts_.survives) return true;
    const auto& sequence = sequences_[static_cast<std::size_t>(called.sequence)];
    const bool completed =
        called.heard == wire::OutcomeCode::kOpen || called.heard == wire::OutcomeCode::kCompleted;
    return sequence.group_floor() >= called.end &&
           (completed || called.number + kKeptCalls < called_by_all_);
  };
  while (told_count_ < called_.size() && is_told(called_[told_count_])) ++told_count_;
  while (told_count_ != 0 &&
         (is_nobodys(called_.front()) || told_count_ > std::size_t{2} * kKeptCalls)) {
    called_.pop_front();
    --told_count_;
  }
}

void Group::note(std::uint64_t noted) noexcept {
  if (noted > noted_ && noted <= next_) noted_ = noted;
  forget_done();
}

// ---- what leaves ----

// The calls in their order, then the questions that are due.
bool Group::poll_call(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  if (!made_ || now < quiet_until_ns_) return false;
  Flow& flow = link_.flows[0];
  TimeNs next_ns = kNever;
  for (std::size_t i = told_count_; i < called_.size(); ++i) {
    Called& called = called_[i];
    if (is_told(called)) continue;
    if (now < called.next_ns) {
      next_ns = std::min(next_ns, called.next_ns);
      // Those behind it wait too, but for what is told again: no question is answered before that.
      if (!called.sent && !called.done && called.number >= retold_to_) break;
      continue;
    }
    const bool noted = called.number < noted_;
    // One that is too far ahead of others' calls asks until they have called theirs.
    const bool asks = called.sent || called.number >= number_limit();
    wire::Call body{.flow = flow.next_header(now, asks ? kUsualPriority : Priority{0}),
                    .group = of(called.sequence).header_to(0),
                    .what = called.what,
                    .request = called.cancelled && !called.done ? wire::CallRequest::kCancel
                               : asks                           ? wire::CallRequest::kAsk
                                                                : wire::CallRequest::kTell,
                    .heard = called.heard,
                    .heard_rank = called.heard_rank};
    if (flow.take_report_flag(asks, now)) body.flow.flags |= wire::kFlagReport;
    called.sent = called.sent || called.number < number_limit();
    const DurationNs again_ns = flow.rtt().timeout_ns() << std::min<int>(called.asked, kMaxBackoff);
    called.next_ns =
        now +
        (noted && !called.cancelled && !broken_ ? std::max(again_ns, kAskInterval) : again_ns);
    if (called.asked < UINT8_MAX) ++called.asked;
    transmit = {.bytes = wire::encode(out, link_.identity, body),
                .port_offset = 1,
                .priority = body.flow.priority};
    return true;
  }
  quiet_until_ns_ = next_ns;
  return false;
}

void Group::handle_timeout(TimeNs now) {
  if (now < deadline_ns_) return;
  deadline_ns_ = kNever;
  const auto pass = [&](std::uint64_t number, TimeNs deadline_ns) {
    if (now >= deadline_ns)
      cancel(number, now);
    else
      deadline_ns_ = std::min(deadline_ns_, deadline_ns);
  };
  for (const Called& called : called_)
    if (!called.done && !called.cancelled) pass(called.number, called.deadline_ns);
  for (const Waiting& waiting : waiting_)
    if (!waiting.cancelled && waiting.call.patience_ns != kNever)
      pass(waiting.number, waiting.called_ns + waiting.call.patience_ns);
}

TimeNs Group::waiting_since_ns() const noexcept {
  if (open_count_ == 0) return kNever;
  TimeNs since_ns = waiting_.empty() ? kNever : waiting_.front().called_ns;
  for (const Called& called : called_)
    if (!called.done)
      since_ns = std::min(
          since_ns,
          std::max(called.begun_ns,
                   sequences_[static_cast<std::size_t>(called.sequence)].last_progress_ns()));
  return since_ns;
}

TimeNs Group::next_timeout() const noexcept {
  if (!made_) return deadline_ns_;
  TimeNs next_ns = std::min(quiet_until_ns_, deadline_ns_);
  for (const Sequence& sequence : sequences_) next_ns = std::min(next_ns, sequence.next_timeout());
  return next_ns;
}

std::string Group::describe_stall(DurationNs patience_ns, TimeNs now) const {
  if (!waiting_.empty() && now - waiting_.front().called_ns >= patience_ns)
    return error_prefix_ + "group '" + name_ + "' has waited for " +
           (made_ ? "data of operation " + std::to_string(waiting_.front().number) +
                        ", which are on a device, for "
                  : std::string("the appliance to make it for ")) +
           seconds_text(now - waiting_.front().called_ns);
  for (const Called& called : called_) {
    if (called.done) continue;
    const TimeNs since_ns = std::max(
        called.begun_ns, sequences_[static_cast<std::size_t>(called.sequence)].last_progress_ns());
    if (now - since_ns < patience_ns) continue;
    std::string text = place_of(called) + sluice::client::describe(called.what) +
                       " has made no progress for " + seconds_text(now - since_ns);
    for (std::size_t i = 0; called.number == behind_number_ && i < behind_count_; ++i)
      text += sluice::client::describe(behind_[i], i == 0);
    return text;
  }
  return {};
}

}  // namespace sluice::client

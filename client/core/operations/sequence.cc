#include "client/core/operations/sequence.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/narrow.h"

namespace sluice::client {
namespace {

constexpr std::uint64_t kBlock = kChunksPerBlock;

std::uint64_t next_in_shard(std::uint64_t chunk, std::uint16_t shard_count) noexcept {
  if ((chunk + 1) % kBlock != 0) return chunk + 1;
  return chunk + 1 + kBlock * (shard_count - 1u);
}

}  // namespace

std::uint64_t capacity_for(const Link& link) noexcept {
  std::uint64_t wanted = 0;
  for (const Flow& flow : link.flows) wanted += 2 * flow.credit_packets();
  const std::uint64_t round = kBlock * link.shard_count();
  std::uint64_t capacity = (kFirstSlots + round - 1) / round * round;
  while (capacity < wanted) capacity *= 2;
  return capacity;
}

Sequence::Sequence(const GroupFacts& group, wire::Sequence id, Link& link,
                   std::uint64_t first_chunk)
    : group_(group),
      id_(id),
      link_(link),
      capacity_(capacity_for(link)),
      again_(link.shard_count()),
      departures_(link.shard_count()),
      group_floor_(first_chunk),
      next_(first_chunk),
      admitted_(first_chunk),
      told_(first_chunk) {
  CHECK(link.joined() && group.place < group.members.size());
}

// ---- calls ----

wire::Description Sequence::describe(const OperationCall& call,
                                     std::uint64_t number) const noexcept {
  return {.bytes = call.bytes,
          .number = static_cast<std::uint32_t>(number),
          .first = static_cast<std::uint32_t>(next_),
          .root = call.root,
          .kind = call.kind,
          .dtype = call.dtype,
          .wire = call.wire,
          .reduction = call.reduction};
}

std::uint64_t Sequence::begin(const OperationCall& call, const wire::Description& what,
                              std::uint64_t number, TimeNs now) {
  CHECK(wire::is_possible(what) && wire::sequence_of(what, group_.members.size()) == id_);
  if (!recovery_) {
    recovery_.emplace(static_cast<ChunkIndex>(capacity_), link_.shard_count());
    rounds_.assign(capacity_ / kBlock, next_ / capacity_);
  }
  const wire::Cut cut(what, group_.members.size(), group_.chunk_bytes);
  OpenCall& open =
      calls_.emplace_back(OpenCall{.what = what,
                                   .number = number,
                                   .first = next_,
                                   .end = next_ + cut.chunk_count(),
                                   .hash = wire::hash_of(what, group_.id, group_.generation),
                                   .cut = cut,
                                   .input = static_cast<const std::uint8_t*>(call.input),
                                   .output = static_cast<std::uint8_t*>(call.output),
                                   .priority = call.priority,
                                   .left = cut.chunk_count(),
                                   .floor = next_});
  next_ = open.end;
  open.begin_sending(link_.shard_count());
  // This rank's part of an all-gather does not travel to it.
  if (what.kind == wire::OperationKind::kAllGather && what.bytes != 0 &&
      open.output + group_.place * what.bytes != open.input)
    std::copy_n(open.input, what.bytes, open.output + group_.place * what.bytes);
  if (calls_.size() == 1) last_progress_ns_ = now;
  admit(now);
  return next_;
}

// What was admitted of it is nobody's business any more, and what was not never will be.
void Sequence::end(std::uint64_t number, bool completed) noexcept {
  const auto call = std::ranges::find(calls_, number, &OpenCall::number);
  if (call == calls_.end()) return;
  const bool stays = completed && owes(call->first, call->end);
  if (completed && group_.survives && call->end > group_floor_)
    call->keep(group_, std::max(call->first, group_floor_));
  for (std::uint64_t chunk = std::max(call->first, group_floor_);
       chunk < std::min(call->end, admitted_); ++chunk)
    if (!stays || !was_over_.has(chunk))
      recovery_->result(place_of(chunk), last_progress_ns_, link_.flows[shard_of(chunk)]);
  if (!stays) {
    if (call->ended) kept_.add(std::move(*call));
    calls_.erase(call);
  }
  admit(last_progress_ns_);
}

bool Sequence::poll_done(Done& done) noexcept {
  if (done_.empty()) return false;
  done = done_.front();
  done_.pop_front();
  return true;
}

OpenCall* Sequence::find(std::uint64_t chunk) noexcept {
  const auto after = std::ranges::upper_bound(calls_, chunk, {}, &OpenCall::first);
  if (after == calls_.begin()) return nullptr;
  OpenCall& call = *std::prev(after);
  return call.contains(chunk) ? &call : nullptr;
}

// ---- the window ----

std::uint64_t Sequence::chunk_limit() const noexcept {
  const std::uint64_t slots = std::min<std::uint64_t>(slots_, capacity_);
  return (group_floor_ + slots) / kBlock * kBlock;
}

// Chunks of calls that have ended are passed over.
void Sequence::admit(TimeNs now) noexcept {
  const std::uint64_t limit = std::min(next_, chunk_limit());
  for (; admitted_ < limit; ++admitted_) {
    OpenCall* const call = find(admitted_);
    if (call == nullptr) continue;
    if (admitted_ < group_floor_) {  // void, if anything: nobody waited for this member
      if (was_over_.has(admitted_)) continue;
      call->unsure = true;
      count_over(*call);
      continue;
    }
    const std::uint32_t place = place_of(admitted_);
    const std::uint32_t block = place / kChunksPerBlock;
    if (rounds_[block] != admitted_ / capacity_) {
      rounds_[block] = admitted_ / capacity_;
      recovery_->renew(block, link_.flows[shard_of(admitted_)]);
    }
    if (!sends(*call, admitted_)) {
      // Its result may have passed already.
      recovery_->await(place, admitted_ < passed_ ? now : now + kIdleProbeInterval);
      continue;
    }
    recovery_->expect(place);
    if (!call->wants(group_, admitted_) || was_over_.has(admitted_))
      recovery_->want_no_result(place);
  }
}

// Whether this member has sent all that the floor allows, and has more. Or it has heard of no slots
// after a restart: of calls that it has ended it asks nothing, so nothing else would tell it.
bool Sequence::is_stopped() const noexcept {
  if (slots_ == 0) return owes(group_floor_, UINT64_MAX);
  if (admitted_ == next_ || admitted_ < chunk_limit()) return false;
  OpenCall* const call = const_cast<Sequence*>(this)->find(admitted_);
  if (call == nullptr || (wire::has_root(call->what.kind) && !sends(*call, admitted_)))
    return false;
  for (std::uint16_t shard = 0; shard < link_.shard_count(); ++shard) {
    skip_foreign(*call, shard);
    if (call->next_send[shard] < admitted_) return false;
  }
  return true;
}

void Sequence::learn(const wire::GroupState& state, bool sure, TimeNs now) noexcept {
  const std::uint64_t told = wire::unwrap(state.floor, group_floor_);
  const bool grown = state.slots > slots_;
  slots_ = std::max<std::uint32_t>(slots_, state.slots);
  if (!in_use()) return;
  // The group's floor is not beyond this member's: another one is an error or a forgery.
  if (told > group_floor_ && told <= floor())
    raise(told, sure, now);
  else if (grown)
    admit(now);
}

// What is below the floor is over for everybody: what this member has sent of it is counted, or
// void, if its operation has ended and this member has not heard of it.
void Sequence::raise(std::uint64_t new_floor, bool sure, TimeNs now) noexcept {
  for (std::uint64_t chunk = group_floor_; chunk < std::min(new_floor, admitted_); ++chunk) {
    if (!recovery_->lacks(place_of(chunk))) continue;
    OpenCall* const call = find(chunk);
    CHECK(call != nullptr && (!call->wants(group_, chunk) || was_over_.has(chunk)));
    call->unsure |= !sure;
    over(*call, chunk, now);
  }
  group_floor_ = new_floor;
  kept_.forget(new_floor, calls_);
  stopped_ns_ = now + link_.flows[0].rtt().smoothed_ns();
  stopped_count_ = 0;
  admit(now);
}

// A chunk is over for this member: its result is here, or is not wanted and its part is counted.
void Sequence::over(OpenCall& call, std::uint64_t chunk, TimeNs now) noexcept {
  if (!recovery_->result(place_of(chunk), now, link_.flows[shard_of(chunk)])) return;
  last_progress_ns_ = now;
  if (!was_over_.has(chunk)) count_over(call);
}

void Sequence::count_over(OpenCall& call) noexcept {
  CHECK(call.left != 0);
  if (--call.left != 0) return;
  done_.push_back({.number = call.number, .non_finite = call.non_finite, .unsure = call.unsure});
}

void Sequence::advance_floor(OpenCall& call) const noexcept {
  const bool wants_none = wire::has_root(call.what.kind) && !call.wants(group_, call.first);
  if (wants_none) call.floor = call.end;
  const std::uint64_t end = std::min(call.end, call.differs_from);
  while (call.floor < end && (!call.wants(group_, call.floor) || is_over(call.floor))) ++call.floor;
}

std::uint64_t Sequence::floor() const noexcept {
  for (const OpenCall& call : calls_) {
    if (call.ended) continue;
    advance_floor(const_cast<OpenCall&>(call));
    if (call.floor < call.end) return call.floor;
  }
  return next_;
}

wire::GroupHeader Sequence::header_to(std::uint16_t shard) noexcept {
  const std::uint64_t own = std::min(floor(), group_floor_ + slots_);
  if (shard == 0) {
    told_ = own;
    asked_ = false;
  }
  return {.generation = group_.generation,
          .floor = static_cast<std::uint32_t>(own),
          .group_floor = static_cast<std::uint32_t>(group_floor_),
          .group = group_.id,
          .sequence = id_};
}

// ---- what leaves ----

void Sequence::skip_foreign(OpenCall& call, std::uint16_t shard) const noexcept {
  std::uint64_t& chunk = call.next_send[shard];
  const std::uint64_t limit = std::min(call.end, admitted_);
  while (chunk < limit && (chunk < group_floor_ || !sends(call, chunk)))
    chunk = next_in_shard(chunk, link_.shard_count());
}

Sequence::Choice Sequence::choose(std::uint16_t shard, std::uint64_t number_limit) noexcept {
  Choice best;
  std::deque<std::uint64_t>& again = again_[shard];
  while (!again.empty() && (again.front() < group_floor_ || find(again.front()) == nullptr ||
                            !recovery_->lacks(place_of(again.front()))))
    again.pop_front();
  if (!again.empty()) {
    OpenCall* const call = find(again.front());
    best = {.urgency = again.front() == group_floor_ ? -1 : call->priority,
            .call = call,
            .chunk = again.front(),
            .again = true};
  }
  for (OpenCall& call : calls_) {
    if (call.first >= admitted_) break;
    if (call.number >= number_limit && !call.ended) continue;  // what has ended was completed
    skip_foreign(call, shard);
    const std::uint64_t chunk = call.next_send[shard];
    if (chunk >= std::min(call.end, admitted_)) continue;
    const int urgency = chunk == group_floor_ ? -1 : call.priority;
    if (urgency < best.urgency) best = {.urgency = urgency, .call = &call, .chunk = chunk};
  }
  return best;
}

int Sequence::urgency(std::uint16_t shard, std::uint64_t number_limit) noexcept {
  if (calls_.empty()) return kIdle;
  choice_ = choose(shard, number_limit);
  return choice_.urgency;
}

bool Sequence::is_last(std::uint16_t shard, std::uint64_t number_limit) noexcept {
  const Choice choice = choice_;
  if (choice.again) return again_[shard].size() == 1;
  std::uint64_t& next = choice.call->next_send[shard];
  const std::uint64_t before =
      std::exchange(next, next_in_shard(choice.chunk, link_.shard_count()));
  const bool last = choose(shard, number_limit).call == nullptr;
  next = before;
  return last;
}

void Sequence::write_next(std::uint16_t shard, bool last, Transmit& transmit,
                          std::span<std::uint8_t> out, TimeNs now) noexcept {
  const Choice choice = std::exchange(choice_, {});
  CHECK(choice.call != nullptr && shard_of(choice.chunk) == shard);
  OpenCall& call = *choice.call;
  Flow& flow = link_.flows[shard];
  if (choice.again)
    again_[shard].pop_front();
  else
    call.next_send[shard] = next_in_shard(choice.chunk, link_.shard_count());
  if (recovery_->take(place_of(choice.chunk)) == 0) return;  // it need not be sent after all
  wire::Part body{.flow = flow.next_header(now, call.priority),
                  .group = header_to(shard),
                  .chunk = static_cast<std::uint32_t>(choice.chunk),
                  .hash = call.hash,
                  .owner = call.owner_of(group_, choice.chunk),
                  .kind = call.what.kind,
                  .wire = call.what.wire,
                  .reduction = call.what.reduction,
                  .given = gives(call, choice.chunk)};
  if (flow.take_report_flag(last, now)) body.flow.flags |= wire::kFlagReport;
  if (recovery_->sent(place_of(choice.chunk), body.flow.number, now, flow))
    ++link_.counters.retransmissions;
  if (!call.wants(group_, choice.chunk) || was_over_.has(choice.chunk))
    departures_[shard].push_back(
        {.number = body.flow.number, .block = place_of(choice.chunk) / kChunksPerBlock});
  transmit = {.port_offset = static_cast<std::uint16_t>(1 + shard), .priority = call.priority};
  transmit.bytes = write_part(call, choice.chunk, body, out, transmit);
}

// Elements that travel as they are stay in the caller's memory.
std::size_t Sequence::write_part(const OpenCall& call, std::uint64_t chunk, wire::Part& body,
                                 std::span<std::uint8_t> out, Transmit& transmit) noexcept {
  body.payload_bytes = call.cut.bytes_of(chunk - call.first);
  const std::size_t bytes = wire::encode(out, link_.identity, body);
  CHECK(out.size() >= bytes + body.payload_bytes);
  return bytes +
         call.part_of(group_, chunk, gives(call, chunk), out.subspan(bytes), transmit.payload);
}

Priority Sequence::least_urgent() const noexcept {
  Priority least = 0;
  for (const OpenCall& call : calls_) least = std::max(least, call.priority);
  return least;
}

bool Sequence::poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                          TimeNs now) noexcept {
  Flow& flow = link_.flows[shard];
  Recovery::ProbePlan plan;
  if (!in_use() || !recovery_->may_probe(shard) || !flow.on_pace(now) ||
      !recovery_->plan_probe(shard, flow, plan))
    return false;
  recovery_->probe_sent(shard, plan, now, flow);
  ++link_.counters.probes;
  const std::uint64_t first = rounds_[plan.block] * capacity_ + plan.block * kBlock;
  wire::PartProbe body{.flow = flow.next_header(now, least_urgent()),
                       .group = header_to(shard),
                       .first = static_cast<std::uint32_t>(first),
                       .want = plan.want};
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .port_offset = static_cast<std::uint16_t>(1 + shard),
              .priority = body.flow.priority};
  return true;
}

}  // namespace sluice::client

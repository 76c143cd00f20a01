#include "aggregator/jobs/rank_holders.h"

#include <algorithm>
#include <cstring>

#include "aggregator/jobs/text.h"
#include "aggregator/jobs/views.h"

namespace sluice::agg {

Cookie RankHolders::make_cookie(Rank rank, std::uint64_t nonce) noexcept {
  CHECK(entry_.serial != 0);  // or another job's would be the same
  struct [[gnu::packed]] {
    char purpose[6] = {'c', 'o', 'o', 'k', 'i', 'e'};
    std::uint16_t rank;
    std::uint64_t serial;
    std::uint64_t nonce;
    std::uint64_t use;
  } message{
      .rank = rank.value, .serial = entry_.serial, .nonce = nonce, .use = context_.next_serial++};
  const wire::Digest digest =
      context_.boot_key.digest({reinterpret_cast<const std::uint8_t*>(&message), sizeof(message)});
  Cookie cookie;
  std::memcpy(&cookie, digest.data(), sizeof(cookie));
  return cookie == 0 ? 1 : cookie;
}

void RankHolders::occupy(const Request& request) {
  MemberEntry& member = entry_.member(request.rank());
  member.stale_cookie = member.cookie;
  member.stale_nonce = member.nonce;
  member.cookie = make_cookie(request.rank(), request.join().nonce);
  CHECK(member.cookie != member.stale_cookie);
  member.nonce = request.join().nonce;
  member.change_to(MemberPhase::kJoined);
  member.address = request.origin.address;
  member.liveness = {};
  member.liveness.hear(request.now);
  member.resyncs_done = 0;
  member.was_member = request.join().was_member != 0;
  member.moved = false;
  note_resumption(request);

  Member& shared = entry_.shared(request.rank());
  shared.last_heard_ns.store(context_.clock.caller_time(request.now), std::memory_order_relaxed);
  shared.stale_cookie.store(member.stale_cookie, std::memory_order_relaxed);
  shared.cookie.store(member.cookie, std::memory_order_release);  // restarts the shards' flows
  shared.reachable.store(true, std::memory_order_release);
}

void RankHolders::note_resumption(const Request& request) noexcept {
  MemberEntry& member = entry_.member(request.rank());
  member.resume_step = request.join().resume_step;
  member.resume_calls = request.join().resume_calls;
  member.resume_k = request.join().resume_k;
  member.exchange_over = request.join().exchange_over;
  member.exchange_entered = request.join().exchange_entered;
  member.view = request.join().view;
  member.settled_view = request.join().settled_view;
  member.absent = {};
  for (std::size_t word = 0; word < request.packet.mask_word_count(); ++word)
    member.absent.words()[word] = request.packet.mask_word(word);
  entry_.standby |= request.join().has_standby != 0;
  if (member.resume_step != 0 && entry_.resuming_ns == 0) entry_.resuming_ns = request.now;
}

// Greater than all that members know of, and no other job's; see is_of_epoch().
std::uint64_t RankHolders::next_exchange() noexcept {
  constexpr unsigned kCountBits = 24;
  std::uint64_t newest = 0;
  for (const MemberEntry& one : entry_.members)
    newest = std::max({newest, one.exchange_over, one.exchange_entered});
  const std::uint64_t unique = make_cookie(Rank{0}, newest) >> (kCountBits + kEpochBits);
  return (((newest >> (64 - kCountBits)) + 1) << (64 - kCountBits)) | unique << kEpochBits |
         epoch_bits(entry_.epoch);
}

// Ranks that are away, or too far back to be given results, need another rank's state.
void RankHolders::resume(const Resumed& resumed, TimeNs now) noexcept {
  CHECK(entry_.forming() && !resumed.givers.empty());
  entry_.resume_from = resumed.step;
  entry_.exchange = next_exchange();
  entry_.exchange_over = entry_.newest_exchange();
  if (entry_.in_views()) {
    const MemberEntry& newest = *newest_view(entry_);
    entry_.view = newest.view;
    entry_.settled_view = newest.settled_view;
  }
  for (std::uint16_t index = 0; index < entry_.world_size(); ++index) {
    MemberEntry& member = entry_.member(Rank{index});
    Member& shared = entry_.shared(Rank{index});
    if (resumed.givers.test(Rank{index})) {
      entry_.resume_from = std::min(entry_.resume_from, member.resume_step);
      entry_.resume_calls = std::max(entry_.resume_calls, member.resume_calls);
      shared.reached.store(member.resume_step, std::memory_order_relaxed);
      continue;
    }
    if (entry_.in_views() && member.is(MemberPhase::kJoined)) {
      member.change_to(MemberPhase::kEvicted);
      member.notice = text("job '%s' has gone on without rank %u: start that rank again",
                           entry_.name.c_str(), unsigned{index});
      member.liveness.reset_suspicion();
      shared.reachable.store(false, std::memory_order_release);
      context_.outbox.send(entry_, Rank{index}, wire::PacketType::kNotice);
    }
    member.rejoined = member.needs_state = true;
    member.admitted_ns = now;
    // As for a rank that returns to a running job. A store's ends, and another process may come.
    if (member.is(MemberPhase::kJoined) && !entry_.is_store())
      shared.joined_from[kTensorStream].store(std::min(resumed.step, kLastStep - 2) + 2,
                                              std::memory_order_release);
    else
      for (auto& left_from : shared.left_from) left_from.store(0, std::memory_order_release);
  }
  const auto givers = static_cast<unsigned>(resumed.givers.count());
  if (entry_.is_store() && givers != entry_.world_size())
    entry_.loss = text(
        "job '%s' goes on from an appliance that is lost with the values that %u of %u ranks have: "
        "what the others had pushed and none of these has read is lost",
        entry_.name.c_str(), givers, unsigned{entry_.world_size()});
}

void RankHolders::go_on_without_absent() noexcept {
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank)
    if (!entry_.member(Rank{rank}).live())
      for (auto& left_from : entry_.shared(Rank{rank}).left_from)
        left_from.store(0, std::memory_order_release);
}

void RankHolders::remove(Rank rank) noexcept {
  CHECK(entry_.goes_on());
  Member& shared = entry_.shared(rank);
  for (auto& left_from : shared.left_from) left_from.store(0, std::memory_order_release);
  shared.reachable.store(false, std::memory_order_release);
  entry_.member(rank).liveness.reset_suspicion();
  context_.outbox.command(entry_, ShardCommand::Kind::kMemberGone, rank);
}

void RankHolders::rejoin(Rank rank, TimeNs now) {
  CHECK(entry_.goes_on());
  MemberEntry& member = entry_.member(rank);
  Member& shared = entry_.shared(rank);
  // In no step until shard 0 has said from which on. Asked again, it may have done so: then records
  // with the rank are out.
  if (!member.is(MemberPhase::kReturning))
    for (const std::size_t stream : {kTensorStream, index_of(StreamId::kCollectives)})
      shared.joined_from[stream].store(kNoStep, std::memory_order_release);
  CHECK(member.cookie != 0 && !entry_.resyncs.is_target(rank) && !entry_.resyncs.in_line(rank));
  if (!member.is(MemberPhase::kReturning)) member.liveness.hear(now);
  member.change_to(MemberPhase::kReturning);
  member.liveness.reset_suspicion();
  member.rejoined_ns = now;
  ++member.admissions_due;
  if (++member.admission == 0) ++member.admission;  // which says that no shard holds for it yet

  for (auto& left_from : shared.left_from) left_from.store(kNoStep, std::memory_order_release);
  shared.reachable.store(true, std::memory_order_release);
  context_.outbox.command(
      entry_,
      entry_.is_store() ? ShardCommand::Kind::kHoldClocks : ShardCommand::Kind::kMemberJoined,
      rank);
}

void RankHolders::repeat_rejoin(Rank rank, TimeNs now) {
  MemberEntry& member = entry_.member(rank);
  CHECK(member.is(MemberPhase::kReturning));
  if (!entry_.goes_on() || now - member.rejoined_ns < kShardAnswer) return;
  member.admissions_due = 0;
  rejoin(rank, now);
}

void RankHolders::admitted(Rank rank, TimeNs now) {
  MemberEntry& member = entry_.member(rank);
  CHECK(!entry_.is_synchronous() && !entry_.forming());
  if (member.admissions_due != 0) --member.admissions_due;
  // Another process may have claimed the rank since: its own admission is still to come.
  if (!member.is(MemberPhase::kReturning) || member.admissions_due != 0) return;
  member.change_to(MemberPhase::kJoined);
  member.liveness.hear(now);
  member.admitted_ns = now;
  const auto away = [](const MemberEntry& other) { return other.lost(); };
  if (std::none_of(entry_.members.begin(), entry_.members.end(), away)) entry_.loss.clear();
}

void RankHolders::start_joiners(TimeNs now) {
  CHECK(entry_.goes_on() && entry_.is_store());
  for (std::uint16_t index = 0; index < entry_.world_size(); ++index) {
    const Rank rank{index};
    MemberEntry& member = entry_.member(rank);
    if (!member.is(MemberPhase::kReturning)) continue;
    if (entry_.view != entry_.settled_view) continue;  // a member may move without having heard
    Step first = 1;
    const bool all_hold = std::ranges::all_of(entry_.job->slices, [&](const JobSlice& slice) {
      const std::uint64_t held = slice.joiners[index].held.load(std::memory_order_acquire);
      first = std::max(first, static_cast<Step>(held));
      return held >> 32 == member.admission;
    });
    if (!all_hold) continue;
    entry_.shared(rank).joined_from[index_of(StreamId::kPushes)].store(first,
                                                                       std::memory_order_release);
    context_.outbox.command(entry_, ShardCommand::Kind::kMemberStarts, rank, first);
    member.admissions_due = 0;
    admitted(rank, now);
  }
}

}  // namespace sluice::agg

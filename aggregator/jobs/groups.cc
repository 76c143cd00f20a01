#include "aggregator/jobs/groups.h"

#include <algorithm>
#include <utility>

#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

// A shard's events that mean a group come before it has removed the group, and are read by then.
constexpr DurationNs kRemembered = kSecond;

std::string list(const MemberMask& ranks) { return list_ranks(ranks.words(), kMaskWords); }

}  // namespace

Groups::Entry* Groups::find(std::string_view name) noexcept {
  const auto found = std::ranges::find(groups_, name, &Entry::name);
  return found == groups_.end() ? nullptr : &*found;
}

Refusal Groups::refuse(std::string why) const {
  return no(wire::RefuseCode::kBadRequest, std::move(why));
}

// One that no group has, or kMaxGroups.
std::uint16_t Groups::free_id() const noexcept {
  std::uint16_t id = 0;
  while (id < kMaxGroups &&
         std::ranges::any_of(groups_, [id](const Entry& one) { return one.group->id == id; }))
    ++id;
  return id;
}

// At the appliance, besides slots.
std::size_t Groups::bytes_of(std::size_t member_count) const noexcept {
  return Group::memory_bytes(member_count, entry_.world_size(), entry_.spec.shard_count);
}

Groups::Answer Groups::make(Rank rank, std::string_view name, const MemberMask& ranks) {
  CHECK(entry_.is_operations() && entry_.running() && !name.empty());
  const std::string shown = printable(name);
  const auto refuse = [&](std::string why) {
    return Answer{
        .refusal = this->refuse(text("job '%s', group '%s': ", entry_.name.c_str(), shown.c_str()) +
                                std::move(why))};
  };
  if (!ranks.test(rank) || ranks.count() == 0)
    return refuse(
        text("rank %u is not one of its ranks: %s", unsigned{rank.value}, list(ranks).c_str()));
  if (Entry* const known = find(name); known != nullptr) {
    if (known->ranks != ranks)
      return refuse(
          text("rank %u says %s, rank %u has made it of %s: give all members the same "
               "ranks, and each group a name of its own",
               unsigned{rank.value}, list(ranks).c_str(), unsigned{known->founder.value},
               list(known->ranks).c_str()));
    if (known->lost != UINT16_MAX)
      return refuse(text("rank %u of it has left or was lost: make a group of another name",
                         unsigned{known->lost}));
    if (!known->present.test(rank))
      return refuse("this rank has left it, and other members have not: take another name");
    return {.group = known->group.get(), .refusal = {}};
  }
  std::vector<Rank> members;
  for (std::uint16_t index = 0; index < kMaxWorkers; ++index) {
    if (!ranks.test(Rank{index})) continue;
    if (index >= entry_.world_size())
      return refuse(text("rank %u is not of the world, which has ranks 0 to %u", unsigned{index},
                         unsigned{entry_.world_size()} - 1));
    if (!entry_.member(Rank{index}).live())
      return refuse(
          text("rank %u is no member of the job any more: leave it out", unsigned{index}));
    members.push_back(Rank{index});
  }
  const std::uint16_t id = free_id();
  if (id == kMaxGroups)
    return refuse(text("the job has %zu groups, and may have no more: leave one", kMaxGroups));
  const std::size_t needed_bytes = bytes_of(members.size());
  const std::size_t group_bytes = entry_.spec.operations->group_bytes;
  std::size_t used_bytes = 0;
  for (const Entry& one : groups_) used_bytes += bytes_of(one.group->members.size());
  if (used_bytes + needed_bytes > group_bytes)
    return refuse(
        text("it needs %zu KiB, and the %zu groups of the job have %zu of %zu KiB: leave "
             "one, or raise limits.job_memory_mib (%zu)",
             (needed_bytes + 1023) >> 10, groups_.size(), used_bytes >> 10, group_bytes >> 10,
             entry_.options->max_job_memory_bytes >> 20));
  if (!reservations_) reservations_.emplace(*entry_.spec.operations);
  groups_.push_back(
      {.name = std::string(name),
       .ranks = ranks,
       .present = ranks,
       .founder = rank,
       .group = std::make_unique<Group>(id, next_generation_++, std::move(members),
                                        entry_.world_size(), context_.options->shard_count)});
  command(ShardCommand::Kind::kAddGroup, {.group = groups_.back().group.get()});
  return {.group = groups_.back().group.get(), .refusal = {}};
}

void Groups::leave(Rank rank, std::string_view name, std::uint32_t called) {
  Entry* const known = find(name);
  if (known == nullptr || !known->present.test(rank)) return;
  OperationsRequest left{
      .kind = OperationsRequest::Kind::kLeave, .group = known->group.get(), .first = called};
  left.rank = rank;
  command(ShardCommand::Kind::kGroups, left);
  depart(*known, rank);
}

void Groups::abort(Rank rank, std::string_view name) {
  Entry* const known = find(name);
  if (known == nullptr || !known->present.test(rank)) return;
  known->lost = rank.value;
  OperationsRequest broken{.kind = OperationsRequest::Kind::kBreak, .group = known->group.get()};
  broken.rank = rank;
  command(ShardCommand::Kind::kGroups, broken);
  depart(*known, rank);
}

void Groups::remove_member(Rank rank) {
  for (Entry& entry : groups_) {
    if (entry.name.empty() || !entry.present.test(rank)) continue;
    entry.lost = rank.value;
    depart(entry, rank);
  }
}

void Groups::depart(Entry& entry, Rank rank) {
  if (!entry.present.test(rank)) return;
  entry.present.clear(rank);
  if (!entry.present.empty()) return;
  entry.name.clear();
  command(ShardCommand::Kind::kRemoveGroup, {.group = entry.group.get()});
}

// What is asked for the sake of a group that is removed since is nobody's wish any more.
void Groups::handle(const OperationsRequest& request) {
  const auto found = std::ranges::find_if(
      groups_, [&](const Entry& one) { return one.group.get() == request.group; });
  if (found == groups_.end() || found->name.empty()) return;
  OperationsRequest granted = request;
  if (request.kind == OperationsRequest::Kind::kReserve)
    granted.slots = reservations_->grant(*request.group, request.sequence, request.slots);
  command(ShardCommand::Kind::kGroups, granted);
}

void Groups::tick(TimeNs now) {
  for (Entry& entry : groups_) {
    if (!entry.name.empty() || entry.removed_ns != 0) continue;
    if (entry.group->serving.load(std::memory_order_acquire) == 0) entry.removed_ns = now;
  }
  std::erase_if(groups_, [&](const Entry& entry) {
    const bool over = entry.removed_ns != 0 && now - entry.removed_ns >= kRemembered;
    if (over) reservations_->release(*entry.group);
    return over;
  });
}

void Groups::command(ShardCommand::Kind kind, const OperationsRequest& request) {
  CHECK(entry_.job != nullptr);
  context_.outbox.commands.push_back({.kind = kind, .job = entry_.job.get(), .groups = request});
}

}  // namespace sluice::agg

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
    if (entry_.member(Rank{index}).is_elsewhere()) return {};  // this one is to follow it
    if (!entry_.member(Rank{index}).live())
      return refuse(
          text("rank %u is no member of the job any more: leave it out", unsigned{index}));
    members.push_back(Rank{index});
  }
  const Answer made = create(rank, name, ranks, std::move(members));
  if (made.group != nullptr)
    command(ShardCommand::Kind::kAddGroup, {.group = groups_.back().group.get()});
  return made;
}

Groups::Answer Groups::create(Rank founder, std::string_view name, const MemberMask& ranks,
                              std::vector<Rank> members) {
  const auto refuse = [&](std::string why) {
    return Answer{.refusal = this->refuse(
                      text("job '%s', group '%s': ", entry_.name.c_str(), printable(name).c_str()) +
                      std::move(why))};
  };
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
       .founder = founder,
       .group = std::make_unique<Group>(id, next_generation_++, std::move(members),
                                        entry_.world_size(), context_.options->shard_count)});
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

// ---- a job that goes on from an appliance that is lost ----

bool Groups::returning() const noexcept {
  if (entry_.job->resumed_step() == 0) return false;
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank) {
    const MemberEntry& member = entry_.member(Rank{rank});
    const std::uint32_t told = told_counts_.empty() ? 0 : told_counts_[rank];
    if (member.live() && member.resume_step != 0 && told + 1 < member.resume_step) return true;
  }
  return false;
}

Groups::Answer Groups::resume(Rank rank, std::string_view name, const MemberMask& ranks,
                              const std::optional<wire::GroupPosition>& position) {
  CHECK(entry_.is_operations() && entry_.running() && !name.empty());
  auto known = std::ranges::find(returning_, name, &Returning::name);
  const bool fits = known == returning_.end() || known->ranks == ranks;
  if (!fits || !ranks.test(rank) || entry_.member(rank).resume_step == 0)
    return {.refusal = refuse(text(
                "job '%s', group '%s' goes on from an appliance that is lost, and rank %u was in "
                "another group of this name there: start the job again from a checkpoint",
                entry_.name.c_str(), printable(name).c_str(), unsigned{rank.value}))};
  if (known == returning_.end()) {
    if (!returning()) return {};
    returning_.push_back({.name = std::string(name), .ranks = ranks, .founder = rank});
    known = returning_.end() - 1;
    known->positions.resize(entry_.world_size());
  }
  if (told_counts_.empty()) told_counts_.resize(entry_.world_size());
  if (!known->told.test(rank)) {
    known->told.set(rank);
    known->positions[rank.value] = position;
    ++told_counts_[rank.value];
  } else if (!position && !known->positions.empty()) {
    known->positions[rank.value].reset();  // it has left it since
  }
  go_on();
  const Entry* const made = find(name);
  if (made == nullptr) return {.group = nullptr, .refusal = known->refusal};
  // Its floor is below what the others know: it could not go on.
  if (!made->present.test(rank))
    return {.refusal = refuse(text(
                "job '%s', group '%s': rank %u was lost to it at an appliance before this one, or "
                "has left it: make a group of another name",
                entry_.name.c_str(), printable(name).c_str(), unsigned{rank.value}))};
  return {.group = made->group.get(), .refusal = {}};
}

// Once all members have said where they are. A member that has joined and has not told of the group
// is still to make it; what a process does not know that has taken a rank since is lost.
void Groups::go_on() {
  if (returning()) return;
  for (Returning& one : returning_)
    if (!one.positions.empty()) go_on(one);
}

void Groups::go_on(Returning& one) {
  std::vector<std::optional<wire::GroupPosition>> positions;
  std::vector<Rank> members;
  MemberMask present;
  for (std::uint16_t index = 0; index < entry_.world_size(); ++index) {
    const Rank rank{index};
    if (!one.ranks.test(rank)) continue;
    const MemberEntry& member = entry_.member(rank);
    std::optional<wire::GroupPosition> position = one.positions[index];
    if (!one.told.test(rank) && member.was_member) position = wire::GroupPosition{};
    if (!member.live()) position.reset();
    if (position) present.set(rank);
    members.push_back(rank);
    positions.push_back(std::move(position));
  }
  one.positions.clear();
  if (present.empty()) return;
  const Answer made = create(one.founder, one.name, one.ranks, members);
  one.refusal = made.refusal;
  if (made.group == nullptr) return;
  Entry& entry = groups_.back();
  entry.group->resume(positions);
  for (std::uint16_t place = 0; place < members.size(); ++place) {
    if (entry.group->calls.lives(place)) continue;
    entry.lost = members[place].value;
    present.clear(members[place]);
  }
  entry.present = present;
  command(ShardCommand::Kind::kAddGroup, {.group = entry.group.get()});
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
  if (!returning_.empty()) go_on();
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

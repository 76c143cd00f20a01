#include "tests/unit/exhaustive/group_model.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice::exhaustive {
namespace {

constexpr auto kSequence = wire::Sequence::kSmall;
constexpr std::uint16_t kElems = 4;
constexpr std::uint16_t kBytes = kElems * sizeof(float);

// No two sums of parts are equal.
float value_of(std::uint16_t rank, std::uint32_t operation) {
  return static_cast<float>(1 << (3 * operation + rank));
}

std::uint32_t chunk_of(std::uint32_t operation) noexcept { return operation * kChunksPerBlock; }

}  // namespace

std::string describe(const GroupEvent& event) {
  static constexpr std::array kNames{"call", "part", "old part", "floors", "probe", "learn"};
  return std::string(kNames[static_cast<std::size_t>(event.kind)]) + " of " +
         std::to_string(event.rank) + ", operation " + std::to_string(event.operation) +
         (event.lost ? ", results lost\n" : "\n");
}

GroupModel::GroupModel(const GroupConfig& config) : config_(config), members_(config.member_count) {
  const agg::OperationsSpec spec{.world_size = config.member_count,
                                 .chunk_bytes = 64,
                                 .shard_count = 1,
                                 .page_count = config.slot_blocks};
  std::vector<Rank> ranks;
  for (std::uint16_t rank = 0; rank < config.member_count; ++rank) ranks.push_back(Rank{rank});
  group_ = std::make_unique<agg::Group>(std::uint16_t{0}, 1u, std::move(ranks), config.member_count,
                                        std::uint16_t{1});
  shard_ = std::make_unique<agg::OperationShard>(spec, ShardId{0});
  shard_->add(*group_);
  group_->growing[static_cast<std::size_t>(kSequence)] = 1;
  shard_->grow(*group_, kSequence, config.slot_blocks * kChunksPerBlock);
}

bool GroupModel::contributes(std::uint16_t rank, std::uint32_t operation) const noexcept {
  return wire::needs_all(config_.kinds[operation]) || rank == 0;
}
bool GroupModel::wants(std::uint16_t rank, std::uint32_t operation) const noexcept {
  return wire::wants_result(config_.kinds[operation], rank == 0);
}

bool GroupModel::is_complete(std::uint32_t operation) const noexcept {
  for (std::uint16_t rank = 0; rank < members_.size(); ++rank)
    if (contributes(rank, operation) && !(members_[rank].counted >> operation & 1)) return false;
  return true;
}

// The first operation that it has not called, or of which it wants what it lacks.
std::uint32_t GroupModel::floor_of(const Member& member) const noexcept {
  std::uint32_t floor = 0;
  const auto rank = static_cast<std::uint16_t>(&member - members_.data());
  while (floor < member.called && (!wants(rank, floor) || (member.over >> floor & 1))) ++floor;
  return floor;
}

std::uint32_t GroupModel::group_floor() const {
  return static_cast<std::uint32_t>(
      group_->slices[0].sequences[static_cast<std::size_t>(kSequence)].floor / kChunksPerBlock);
}

std::vector<GroupEvent> GroupModel::events() const {
  using Kind = GroupEvent::Kind;
  std::vector<GroupEvent> found;
  for (std::uint16_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    if (member.called < count()) found.push_back({Kind::kCall, rank});
    if (member.known < group_floor()) found.push_back({Kind::kLearn, rank});
    found.push_back({Kind::kFloors, rank});
    const bool early = config_.mutation == GroupConfig::Mutation::kSendEarly;
    const std::uint32_t admitted = member.known + config_.slot_blocks + early;
    for (std::uint32_t operation = 0; operation < std::min(member.called, admitted); ++operation) {
      if (contributes(rank, operation)) {
        found.push_back({Kind::kPart, rank, operation});
        found.push_back({Kind::kOld, rank, operation});
      }
      if (!(member.over >> operation & 1)) found.push_back({Kind::kProbe, rank, operation});
    }
  }
  return found;
}

wire::GroupHeader GroupModel::header(std::uint16_t rank, bool old) const {
  const Member& member = members_[rank];
  const bool early = config_.mutation == GroupConfig::Mutation::kTellEarly && member.called != 0;
  return {.generation = 1,
          .floor = old ? 0 : chunk_of(floor_of(member) + early),
          .group_floor = old ? 0 : chunk_of(member.known),
          .group = 0,
          .sequence = kSequence};
}

std::string GroupModel::play(const GroupEvent& event) {
  Member& member = members_[event.rank];
  std::string broken;
  switch (event.kind) {
    case GroupEvent::Kind::kCall: ++member.called; break;
    case GroupEvent::Kind::kLearn: member.known = group_floor(); break;
    case GroupEvent::Kind::kPart:
    case GroupEvent::Kind::kOld: broken = part(event); break;
    case GroupEvent::Kind::kFloors:
      member.told = std::max(member.told, floor_of(member));
      if (shard_->floors(Rank{event.rank}, {.group = header(event.rank, false)}) !=
          Verdict::kFloors)
        broken = "floors are not taken";
      break;
    case GroupEvent::Kind::kProbe: broken = probe(event); break;
  }
  if (broken.empty() && event.kind != GroupEvent::Kind::kProbe) broken = take_results(event.lost);
  agg::OperationsRequest request;
  while (shard_->poll_request(request)) continue;
  return broken.empty() ? check() : broken;
}

std::string GroupModel::part(const GroupEvent& event) {
  const std::uint32_t operation = event.operation;
  Member& member = members_[event.rank];
  const wire::OperationKind kind = config_.kinds[operation];
  const bool sums = wire::is_reduction(kind);
  std::array<float, kElems> values;
  values.fill(value_of(event.rank, operation));
  std::array<std::uint8_t, kBytes> payload;
  std::memcpy(payload.data(), values.data(), kBytes);
  const bool old = event.kind == GroupEvent::Kind::kOld;
  const wire::Part body{.group = header(event.rank, old),
                        .chunk = chunk_of(operation),
                        .hash = operation + 1,
                        .owner = wire::has_owner(kind) ? std::uint16_t{0} : wire::kNoRank,
                        .payload_bytes = kBytes,
                        .kind = kind,
                        .wire = sums ? Dtype::kFloat32 : Dtype::kBytes};
  if (!old) member.told = std::max(member.told, floor_of(member));
  const bool was_over = is_complete(operation);
  const Verdict verdict = shard_->part(Rank{event.rank}, body, payload);
  const bool counts = verdict == Verdict::kFolded || verdict == Verdict::kCompleted;
  const bool is_new = !(member.counted >> operation & 1);
  if (verdict == Verdict::kTooNew) return "a part that may be sent is refused";
  if (counts != is_new)
    return std::string(is_new ? "a part is not counted: " : "a part is counted twice: ") +
           std::string(label(verdict));
  if (!counts) return {};
  member.counted |= 1u << operation;
  if ((verdict == Verdict::kCompleted) != (!was_over && is_complete(operation)))
    return "an operation is complete too early or too late";
  return {};
}

std::string GroupModel::probe(const GroupEvent& event) {
  answered_ = true;
  Member& member = members_[event.rank];
  const std::uint32_t bit = 1u << event.operation;
  const std::uint32_t first = chunk_of(event.operation);
  const Verdict verdict = shard_->probe(
      Rank{event.rank}, {.group = header(event.rank, false), .first = first, .want = 1});
  member.told = std::max(member.told, floor_of(member));
  if (verdict != Verdict::kProbe) return "a probe is not answered";
  const auto state = shard_->block_state(*group_, kSequence, first, Rank{event.rank});
  const bool below = event.operation < group_floor();
  if (((state.counted & 1) != 0) != (below || (member.counted & bit) != 0))
    return "an answer counts another part";
  if (((state.complete & 1) != 0) != (!below && is_complete(event.operation)))
    return "an answer completes another chunk";
  if (!wants(event.rank, event.operation)) {
    if (!event.lost && (state.counted & 1) != 0) member.over |= bit;
    return {};
  }
  if (!(state.complete & 1)) return {};
  agg::PartOut out;
  if (!shard_->read(*group_, kSequence, first, 0, Rank{event.rank}, out))
    return "a complete chunk cannot be had";
  return take(out, event.lost);
}

std::string GroupModel::take_results(bool lost) {
  answered_ = false;
  for (agg::PartOut out; shard_->poll_result(out);) {
    answered_ = true;
    if (std::string broken = take(out, lost); !broken.empty()) return broken;
  }
  return {};
}

std::string GroupModel::take(const agg::PartOut& out, bool lost) {
  const auto operation = static_cast<std::uint32_t>(out.chunk / kChunksPerBlock);
  if (!is_complete(operation)) return "a result comes before all are in";
  if (!wants(out.rank.value, operation)) return "a result goes to one who does not want it";
  float expected = 0;
  for (std::uint16_t rank = 0; rank < members_.size(); ++rank)
    if (contributes(rank, operation)) expected += value_of(rank, operation);
  if (config_.mutation == GroupConfig::Mutation::kCountTwice) expected += value_of(0, operation);
  std::array<float, kElems> values{};
  if (out.payload.size() != kBytes || out.hash != operation + 1) return "a result of another size";
  std::memcpy(values.data(), out.payload.data(), kBytes);
  for (const float value : values)
    if (value != expected) return "another sum";
  Member& member = members_[out.rank.value];
  if (!lost && operation < member.called) member.over |= 1u << operation;
  return {};
}

// What is below the group's floor is over for all, so no slot is used again too early.
std::string GroupModel::check() const {
  std::uint32_t least = count();
  std::uint32_t told = count();
  for (const Member& member : members_) {
    least = std::min(least, floor_of(member));
    told = std::min(told, member.told);
  }
  if (group_floor() > least) return "the group's floor passes what a member lacks";
  if (group_floor() < told) return "the group's floor is behind its members'";
  return {};
}

bool GroupModel::finished() const {
  return std::ranges::all_of(members_,
                             [&](const Member& member) { return floor_of(member) == count(); });
}

int GroupModel::progress() const {
  int total = static_cast<int>(group_floor());
  for (const Member& member : members_)
    total += static_cast<int>(member.called + member.known + member.told) +
             std::popcount(member.counted) + std::popcount(member.over);
  return total;
}

std::string GroupModel::key() const {
  std::vector<std::uint32_t> packed;
  for (const Member& member : members_)
    packed.push_back(member.called | member.known << 4 | member.told << 8 | member.counted << 12 |
                     member.over << 16);
  std::sort(packed.begin() + 1, packed.end());  // rank 0 may be a root
  packed.push_back(group_floor());
  return {reinterpret_cast<const char*>(packed.data()), packed.size() * sizeof(packed[0])};
}

}  // namespace sluice::exhaustive

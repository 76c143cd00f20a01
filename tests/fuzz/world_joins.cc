// How the members of the fuzz world's jobs join: honest ones once, hostile ones in job after job.
#include <algorithm>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/wire/auth.h"
#include "tests/fuzz/packets.h"
#include "tests/fuzz/world.h"

namespace sluice::fuzz {
namespace {

constexpr int kMostTries = 8;  // of a join that gets no answer
constexpr DurationNs kTryAgain = 100 * kMillisecond;

constexpr std::size_t kOperationsKind = 6;
// As a job with k < n, a store and one of operations, which go on from a lost appliance.
constexpr std::size_t kResumedKind = 7;
constexpr std::size_t kResumed[] = {0, 5, kOperationsKind};

bool is_resumed(std::size_t kind) noexcept { return kind >= kResumedKind; }
bool is_of_operations(std::size_t kind) noexcept {
  return (is_resumed(kind) ? kResumed[kind - kResumedKind] : kind) == kOperationsKind;
}

// The hostile members' jobs take turns: their ranks can do more where a step needs few of them, in
// stores, and where they say what a lost appliance has told them.
void aim_at(std::size_t kind, wire::Join& join) {
  if (is_resumed(kind)) {
    join.was_member = 1;
    join.resume_step = 2;  // of operations: one group
    if (kind == kResumedKind) join.resume_k = 1;
    return aim_at(kResumed[kind - kResumedKind], join);
  }
  join.has_policy = 1;
  switch (kind) {
    case 0: join.policy = {.kind = PolicyKind::kFixed, .late = LateMode::kRequeue, .k = 1}; break;
    case 1: join.policy = {.kind = PolicyKind::kSaina, .k = 1, .round_steps = 1}; break;
    case 2:
      join.policy = {.kind = PolicyKind::kGoodput, .late = LateMode::kRequeue, .max_staleness = 3};
      break;
    case 4:
    case 5:
      join.kind = JobKind::kStore;
      join.store.bound = kind == 4 ? 0 : 1;
      if (kind == 4) join.store.update.rule = UpdateRule::kAdam;
      join.layouts[0].chunk_count = 3 * kChunksPerBlock;
      break;
    case kOperationsKind:
      join.kind = JobKind::kOperations;
      std::ranges::copy(operations_body(0, 1, "").layouts, join.layouts);
      join.has_policy = 0;
      break;
    default: break;
  }
}

}  // namespace

Membership World::join(const char* name, std::uint16_t rank, std::uint16_t world_size,
                       std::uint32_t chunk_count, std::uint64_t run_id, std::string_view address,
                       const agg::PathKey& path, std::size_t kind) {
  wire::Join body = join_body(kHonestElems * 4, world_size, chunk_count, name);
  body.nonce = next_nonce_ += 0x9E3779B97F4A7C15;
  body.run_id = run_id;
  aim_at(kind, body);
  wire::Packet packet;
  Bytes bytes = packet_bytes({.rank = rank}, body);
  bytes.resize(std::max<std::size_t>(bytes.size(), body.datagram_bytes));
  auto result = control(bytes, address, path);
  REQUIRE_PROPERTY(ok(wire::parse({reply_.data(), result.reply_bytes}, packet)));
  if (packet.type() != wire::PacketType::kChallenge) return {};
  body.has_proof = 1;
  std::memcpy(body.server_nonce, packet.body<wire::Challenge>().server_nonce,
              sizeof(body.server_nonce));
  const wire::Digest proof = wire::join_proof(kSecret, rank, body);
  std::memcpy(body.proof, proof.data(), proof.size());
  const Bytes proven = packet_bytes({.rank = rank}, body);
  result = control(proven, address, path);
  // Its memory is made first; a job that runs admits a rank again when its shards know of it.
  const bool made = agg::carry_out_all(appliance_.jobs(), now_);
  if (made) result = control(proven, address, path);
  // Members of the job before are asked first, and are silent.
  for (int i = 0; i < kMostTries && result.reply_bytes == 0; ++i) {
    pass(kTryAgain);
    result = control(proven, address, path);
  }
  if (!result.bind || result.reply_bytes == 0) return {};
  REQUIRE_PROPERTY(ok(wire::parse({reply_.data(), result.reply_bytes}, packet)));
  return {.job = packet.common().job, .cookie = packet.common().cookie};
}

void World::join_hostile() {
  const std::string name = "hostile" + std::to_string(hostile_kind_);
  for (std::uint16_t rank = 0; rank < kHostileRanks; ++rank) {
    hostile_[rank] =
        join(name.c_str(), rank, kHostileRanks, kHostileChunks, 1 + hostile_runs_[hostile_kind_],
             kFuzzerAddress, hostile_path(0), hostile_kind_);
  }
  std::map<Cookie, Paths> paths;
  for (const Membership& member : hostile_) {
    if (member.cookie == 0) continue;
    paths[member.cookie] = paths_[member.cookie];
    paths[member.cookie][0].answered = true;
  }
  paths_.swap(paths);
  drain();
  if (is_of_operations(hostile_kind_)) return make_hostile_group();
  if (is_resumed(hostile_kind_)) return;  // nobody contributes before all has been given
  // The first steps need everyone; beyond them the policy has a say.
  for (Step step = 1; step <= kFullSteps; ++step)
    for (std::uint32_t chunk = 0; chunk < kHostileChunks; ++chunk)
      for (std::uint16_t rank = 0; rank < kHostileRanks; ++rank) {
        const Bytes bytes =
            packet_bytes({.job = hostile_[rank].job, .rank = rank, .cookie = hostile_[rank].cookie},
                         wire::Contribution{.flow = {.credit = 100, .flags = wire::kFlagNil},
                                            .step = step,
                                            .chunk = chunk,
                                            .base_step = step,
                                            .weight = 1},
                         {chunk_bit(chunk)});
        wire::Packet packet;
        REQUIRE_PROPERTY(ok(wire::parse(bytes, packet)));
        appliance_.handle_data(shard_of(chunk, kShards), packet, false, now_);
      }
  drain();
}

void World::make_hostile_group() {
  const wire::MakeGroup made{.mask_words = 1,
                             .name_bytes = 1,
                             .name = {'a'},
                             .resumes = std::uint8_t{is_resumed(hostile_kind_)}};
  for (std::uint16_t rank = 0; rank < kHostileRanks; ++rank) {
    const auto result = control(
        packet_bytes({.job = hostile_[rank].job, .rank = rank, .cookie = hostile_[rank].cookie},
                     made, {0b11}),
        kFuzzerAddress, hostile_path(0));
    wire::Packet packet;
    if (ok(wire::parse({reply_.data(), result.reply_bytes}, packet)) &&
        packet.type() == wire::PacketType::kGroupMade)
      hostile_group_ = packet.body<wire::GroupMade>();
  }
  drain();
}

Step World::hostile_step() const noexcept {
  const std::string name = "hostile" + std::to_string(hostile_kind_);
  for (const agg::JobView& view : appliance_.jobs().views())
    if (view.job != nullptr && view.name == name) return view.job->windows[0].open_step;
  return 1;
}

// Its members misbehave for a while in a job of each policy; then they take their ranks in the next
// one, where they were silent long enough to be replaced, or start it again when it has ended.
void World::keep_hostile_job() {
  bool runs = ++hostile_turns_ % kTurnsPerJob != 0;
  if (!runs) hostile_kind_ = (hostile_kind_ + 1) % kHostileKinds;
  const std::string name = "hostile" + std::to_string(hostile_kind_);
  if (runs) {
    runs = false;
    for (const agg::JobView& view : appliance_.jobs().views())
      runs |= view.job != nullptr && view.name == name && view.state == wire::JobState::kRunning;
    if (runs) return;
    ++hostile_runs_[hostile_kind_];
  }
  join_hostile();
  if (hostile_[0].cookie != 0) return;
  ++hostile_runs_[hostile_kind_];
  join_hostile();
  // Jobs that joiners have begun and left may have taken all ids: they end with their silence.
  for (int i = 0; i < 5 && hostile_[0].cookie == 0; ++i) {
    pass(kDefaultMemberTimeout / 4);
    join_hostile();
  }
}

}  // namespace sluice::fuzz

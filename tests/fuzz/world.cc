#include "tests/fuzz/world.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/wire/auth.h"
#include "tests/fuzz/packets.h"

namespace sluice::fuzz {
namespace {

constexpr std::size_t kPortDatagramBytes = 1472;

agg::JobsOptions options() {
  agg::JobsOptions result{.secret = kSecret,
                          .shard_count = kShards,
                          .max_jobs = 16,
                          .max_workers = 16,
                          .max_chunk_bytes = 1280,
                          .max_job_memory_bytes = std::size_t{1} << 20,
                          .max_total_memory_bytes = std::size_t{16} << 20};
  result.boot_key.fill(0x42);
  return result;
}

float honest_value(std::uint16_t rank, Step step, std::uint32_t chunk, std::uint16_t elem) {
  return static_cast<float>((rank + 1) * 100 + step % 50 + chunk + elem);
}

std::string honest_address(std::uint16_t rank) { return "10.0.0." + std::to_string(rank + 2); }

agg::PathKey honest_path(std::uint16_t rank) {
  return {1, static_cast<std::uint8_t>(rank)};  // none is all zero
}

// What takes a number of datagrams and then no more.
template <class Send>
struct SendSome : agg::SendTo<Send> {
  std::size_t left;

  std::span<agg::Transmit> tx_buffers() {
    const std::span<agg::Transmit> all = this->memory.all();
    return all.first(std::min(left, all.size()));
  }
  void send(const agg::Transmit& transmit) { agg::SendTo<Send>::send(transmit); }
  void send(std::span<const agg::Transmit> burst) {
    left -= burst.size();
    agg::SendTo<Send>::send(burst);
  }
};

}  // namespace

World::World() : appliance_({.jobs = options(), .makes_memory = false}), reply_(kMaxDatagramBytes) {
  for (std::uint16_t rank = 0; rank < kHonestRanks; ++rank)
    honest_[rank] = join("honest", rank, kHonestRanks, kHonestChunks, 1, honest_address(rank),
                         honest_path(rank), kHonestKind);
  drain();
  join_hostile();
}

std::uint64_t World::draw(std::uint64_t bound) noexcept {
  network_ = network_ * 6364136223846793005 + 1442695040888963407;
  return (network_ >> 32) % bound;
}

bool World::comes_again() {
  if (draw(4) != 0) return false;
  drain(draw(4));
  return true;
}

std::uint64_t World::counted() const noexcept {
  std::uint64_t total = 0;
  for (std::size_t verdict = 0; verdict < kVerdictCount; ++verdict)
    total += appliance_.verdicts(static_cast<Verdict>(verdict));
  return total;
}

agg::ControlResult World::control(std::span<const std::uint8_t> bytes, std::string_view address,
                                  const agg::PathKey& path) {
  wire::Packet packet;
  REQUIRE_PROPERTY(ok(wire::parse(bytes, packet)));
  const agg::Origin origin{
      .path = path, .address = address, .max_datagram_bytes = kPortDatagramBytes};
  return appliance_.handle_control(packet, origin, reply_, now_);
}

bool World::challenge_for(const wire::Join& join, std::uint16_t rank,
                          std::uint8_t (&server_nonce)[wire::kNonceBytes]) {
  wire::Join first = join;
  first.has_proof = 0;
  first.print_count = 0;
  first.datagram_bytes = 0;  // no size test
  const auto result = control(packet_bytes({.rank = rank}, first), kFuzzerAddress, hostile_path(0));
  wire::Packet packet;
  if (!ok(wire::parse({reply_.data(), result.reply_bytes}, packet)) ||
      packet.type() != wire::PacketType::kChallenge)
    return false;
  std::memcpy(server_nonce, packet.body<wire::Challenge>().server_nonce, sizeof(server_nonce));
  return true;
}

bool World::is_honest_cookie(Cookie cookie) const noexcept {
  for (const Membership& member : honest_)
    if (member.cookie == cookie) return true;
  return false;
}

std::uint64_t World::token_to_echo(Cookie cookie, std::size_t path,
                                   std::uint64_t draw) const noexcept {
  const auto found = paths_.find(cookie);
  if (found == paths_.end()) return 0;
  switch (draw % 4) {
    case 0: return found->second[path].token;
    case 1: return found->second[(path + 1 + draw / 4 % (kHostilePaths - 1)) % kHostilePaths].token;
    case 2: return found->second[path].token ^ 1;
    default: return 0;
  }
}

// Bound is only a path that the member joined by or that echoed its own token, and no other gets
// more than it sent.
void World::check_path(const wire::Packet& request, const agg::ControlResult& result,
                       std::size_t path) {
  const auto found = paths_.find(request.common().cookie);
  wire::Packet reply;
  const bool replies = result.reply_bytes != 0;
  if (replies) REQUIRE_PROPERTY(ok(wire::parse({reply_.data(), result.reply_bytes}, reply)));
  if (request.type() == wire::PacketType::kJoin || found == paths_.end()) return;
  Shown& shown = found->second[path];
  if (request.type() == wire::PacketType::kKeepalive) {
    const std::uint64_t token = request.body<wire::Keepalive>().token;
    shown.answered |= token != 0 && (token == shown.token || token == shown.token_before);
  }
  REQUIRE_PROPERTY(shown.answered || !result.bind);
  REQUIRE_PROPERTY(shown.answered || result.reply_bytes <= request.bytes().size());
  if (!replies || reply.type() != wire::PacketType::kPing) return;
  const std::uint64_t token = reply.body<wire::Ping>().token;
  REQUIRE_PROPERTY(token != 0 && reply.common().cookie == request.common().cookie);
  for (std::size_t other = 0; other < kHostilePaths; ++other)
    REQUIRE_PROPERTY(other == path || found->second[other].token != token);
  if (token != shown.token) shown.token_before = std::exchange(shown.token, token);
}

void World::receive(std::span<const std::uint8_t> bytes, Way way, bool marked, bool proven) {
  const std::uint64_t before = counted();
  wire::Packet packet;
  now_ += kMicrosecond;
  if (!ok(wire::parse(bytes, packet))) {
    REQUIRE_PROPERTY(counted() == before);  // the caller counts why
    return;
  }
  agg::ControlResult result;
  if (way.port == 0) {
    result = control(bytes, kFuzzerAddress, hostile_path(way.path));
    check_path(packet, result, way.path);
  } else {
    result.verdict =
        appliance_.handle_data(static_cast<std::uint16_t>(way.port - 1), packet, marked, now_);
  }
  REQUIRE_PROPERTY(static_cast<std::size_t>(result.verdict) < kVerdictCount);
  REQUIRE_PROPERTY(counted() == before + 1);
  REQUIRE_PROPERTY(proven || result.reply_bytes <= bytes.size());
  if (result.reply_bytes == 0) return;
  wire::Packet reply;
  REQUIRE_PROPERTY(ok(wire::parse({reply_.data(), result.reply_bytes}, reply)));
  const bool of_the_proven =
      reply.type() == wire::PacketType::kPreparing || reply.type() == wire::PacketType::kDiffers;
  REQUIRE_PROPERTY(!of_the_proven || (proven && packet.type() == wire::PacketType::kJoin));
}

void World::advance_honest() {
  const auto rank = static_cast<std::uint16_t>(next_contribution_ % kHonestRanks);
  const std::uint32_t chunk = next_contribution_ / kHonestRanks;
  const std::uint16_t shard = shard_of(chunk, kShards);
  std::array<float, kHonestElems> values;
  for (std::uint16_t elem = 0; elem < kHonestElems; ++elem)
    values[elem] = honest_value(rank, step_, chunk, elem);
  Bytes payload(sizeof(values));
  std::memcpy(payload.data(), values.data(), sizeof(values));
  const Bytes bytes = packet_bytes(
      {.job = honest_[rank].job, .rank = rank, .cookie = honest_[rank].cookie},
      wire::Contribution{.flow = {.number = ++numbers_[rank][shard], .credit = 0x7fffffffu},
                         .step = step_,
                         .chunk = chunk,
                         .base_step = step_,
                         .weight = 1,
                         .elem_count = kHonestElems},
      {}, payload);
  wire::Packet packet;
  REQUIRE_PROPERTY(ok(wire::parse(bytes, packet)));
  const Verdict verdict = appliance_.handle_data(shard, packet, false, now_);
  REQUIRE_PROPERTY(verdict == (rank + 1 == kHonestRanks ? Verdict::kCompleted : Verdict::kFolded));
  // A worker needs all of a step before it goes on. Until then the network takes little at a time,
  // so that packets meet what others before them have asked for.
  if (++next_contribution_ < kHonestRanks * kHonestChunks) return drain(draw(4));
  drain();
  for (std::uint32_t& count : results_) {
    REQUIRE_PROPERTY(count == kHonestChunks);
    count = 0;
  }
  next_contribution_ = 0;
  ++step_;
}

void World::check_result(const agg::Transmit& transmit, const wire::Packet& packet) {
  const auto& body = packet.body<wire::ResultHeader>();
  const std::uint32_t chunk = body.chunk;
  REQUIRE_PROPERTY(body.step == step_ && chunk < kHonestChunks);
  REQUIRE_PROPERTY(body.weight == kHonestRanks && packet.mask_word(0) == 0b111);
  REQUIRE_PROPERTY(packet.payload().size() == kHonestElems * sizeof(float));
  for (std::uint16_t elem = 0; elem < kHonestElems; ++elem) {
    float sum = 0, expected = 0;
    std::memcpy(&sum, packet.payload().data() + elem * sizeof(float), sizeof(sum));
    for (std::uint16_t rank = 0; rank < kHonestRanks; ++rank)
      expected += honest_value(rank, step_, chunk, elem);
    REQUIRE_PROPERTY(sum == expected);
  }
  ++results_[transmit.rank.value];
}

void World::drain(std::size_t most) {
  std::size_t sent = 0;
  const auto check = [&](const agg::Transmit& transmit, std::span<const std::uint8_t> bytes) {
    wire::Packet packet;
    REQUIRE_PROPERTY(++sent < kDrainLimit);
    REQUIRE_PROPERTY(ok(wire::parse(bytes, packet)));
    if (transmit.job.value != honest_[0].job || honest_[0].cookie == 0) return;
    REQUIRE_PROPERTY(packet.type() != wire::PacketType::kNotice);
    if (packet.type() == wire::PacketType::kResult) check_result(transmit, packet);
  };
  SendSome<decltype(check)> out{{check}, most};
  agg::repeat_until_idle([&] {
    std::size_t work = appliance_.serve_control(out, now_);
    for (std::uint16_t shard = 0; shard < kShards; ++shard)
      work += appliance_.serve_shard(shard, out, now_);
    return work;
  });
}

void World::keep_alive() {
  for (std::uint16_t rank = 0; rank < kHonestRanks; ++rank) {
    const Bytes bytes =
        packet_bytes({.job = honest_[rank].job, .rank = rank, .cookie = honest_[rank].cookie},
                     wire::Keepalive{});
    const auto result = control(bytes, honest_address(rank), honest_path(rank));
    REQUIRE_PROPERTY(result.verdict == Verdict::kKeepalive && result.bind);
  }
}

// In steps, as an appliance runs: what passes while it stands still is no member's silence.
void World::pass(DurationNs duration) {
  constexpr DurationNs kStep = 50 * kMillisecond;
  for (; duration > 0; duration -= kStep) {
    now_ += std::min(duration, kStep);
    keep_alive();
    // What the fuzzer's joins ordered is made this late.
    agg::carry_out_all(appliance_.jobs(), now_);
    drain();
  }
}

}  // namespace sluice::fuzz

// The shards of a job of kind operations, and members reduced to what they put on the wire. The
// test plays the control side.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/operations/reservations.h"

namespace sluice::agg {

constexpr std::uint16_t kChunk = 64;  // bytes; 16 floats
constexpr std::uint16_t kGroupId = 7;

struct BenchOptions {
  std::uint16_t world_size = 3;
  std::uint16_t shard_count = 1;
  std::uint32_t page_count = 64;
  std::uint64_t first_chunk = 0;
  bool reproducible = false;
};

struct SentPacket {
  Rank rank;
  std::vector<std::uint8_t> bytes;
  wire::Packet packet;
};

inline wire::Description all_reduce(std::uint64_t bytes, std::uint32_t number = 0,
                                    std::uint32_t first = 0) {
  return {.bytes = bytes,
          .number = number,
          .first = first,
          .kind = wire::OperationKind::kAllReduce,
          .dtype = Dtype::kFloat32,
          .wire = Dtype::kFloat32};
}
inline wire::Description broadcast(std::uint64_t bytes, std::uint16_t root,
                                   std::uint32_t number = 0, std::uint32_t first = 0) {
  return {.bytes = bytes,
          .number = number,
          .first = first,
          .root = root,
          .kind = wire::OperationKind::kBroadcast};
}

class Bench {
 public:
  explicit Bench(BenchOptions options = {})
      : shards(options.shard_count),
        spec{.world_size = options.world_size,
             .chunk_bytes = kChunk,
             .shard_count = options.shard_count,
             .page_count = options.page_count,
             .reproducible = options.reproducible},
        reservations(spec) {
    JobSpec job_spec{.id = JobId{5},
                     .name = "test",
                     .world_size = options.world_size,
                     .chunk_bytes = kChunk,
                     .shard_count = options.shard_count,
                     .operations = spec};
    job_spec.chunk_counts = {0, kCollectiveChunks, 0};
    job_spec.windows = {0, kMaxWindow, 0};
    job = std::make_unique<Job>(job_spec);
    for (std::uint16_t rank = 0; rank < options.world_size; ++rank) {
      job->members[rank].cookie = cookie(rank);
      job->members[rank].reachable = true;
      floors_.emplace_back();
      known_.emplace_back();
    }
    numbers_.resize(options.world_size);
    post({.kind = ShardCommand::Kind::kAddJob, .job = job.get()});
    job->start(now);
    add_group(kGroupId, 1, options.first_chunk);
  }

  Group& add_group(std::uint16_t id, std::uint32_t of_generation = 1, std::uint64_t first_chunk = 0,
                   std::vector<Rank> ranks = {}) {
    if (ranks.empty())
      for (std::uint16_t rank = 0; rank < spec.world_size; ++rank) ranks.push_back(Rank{rank});
    groups.push_back(std::make_unique<Group>(id, of_generation, ranks, spec.world_size,
                                             spec.shard_count, first_chunk));
    post({.kind = ShardCommand::Kind::kAddGroup,
          .job = job.get(),
          .groups = {.group = groups.back().get()}});
    return *groups.back();
  }
  Group& group() { return *groups.front(); }

  static Cookie cookie(std::uint16_t rank) { return 0xC0FFEE00u + rank; }

  template <class Body>
  Verdict send(std::uint16_t rank, Body body, std::uint16_t shard,
               const std::vector<std::uint8_t>& payload = {}) {
    body.flow.number = ++numbers_[rank];
    body.flow.credit = 1u << 30;
    std::uint8_t out[512];
    const std::size_t size =
        wire::encode(out, {.job = 5, .rank = rank, .cookie = cookie(rank)}, body, {}, payload);
    wire::Packet packet;
    const Verdict parsed = wire::parse({out, size}, packet);
    EXPECT_EQ(parsed, Verdict::kAccepted);
    return ok(parsed) ? shards.shard(shard).handle(packet, false, now) : parsed;
  }

  // What a member says of a sequence: its floor and the group's that it knows.
  void set_floor(std::uint16_t rank, wire::Sequence sequence, std::uint64_t floor,
                 std::uint64_t group_floor = 0) {
    floors_[rank][static_cast<std::size_t>(sequence)] = static_cast<std::uint32_t>(floor);
    known_[rank][static_cast<std::size_t>(sequence)] = static_cast<std::uint32_t>(group_floor);
  }
  wire::GroupHeader header(std::uint16_t rank, wire::Sequence sequence) const {
    return {.generation = generation,
            .floor = floors_[rank][static_cast<std::size_t>(sequence)],
            .group_floor = known_[rank][static_cast<std::size_t>(sequence)],
            .group = group_id,
            .sequence = sequence};
  }
  wire::Sequence sequence_of(const wire::Description& what) const {
    return wire::sequence_of(what, spec.world_size);
  }

  Verdict call(std::uint16_t rank, const wire::Description& what,
               wire::CallRequest request = wire::CallRequest::kTell) {
    return send(
        rank,
        wire::Call{.group = header(rank, sequence_of(what)), .what = what, .request = request}, 0);
  }
  // All of them, and the sequence has slots.
  void call_all(const wire::Description& what) {
    for (std::uint16_t rank = 0; rank < spec.world_size; ++rank) call(rank, what);
    drain();
  }
  Verdict floors(std::uint16_t rank, wire::Sequence sequence, bool stopped = false,
                 std::uint32_t wanted = 0) {
    return send(
        rank,
        wire::Floors{.group = header(rank, sequence), .stopped = stopped, .wanted_slots = wanted},
        0);
  }
  // The rank's data for chunk `index` of the operation, whose owner is `owner`. Elements of a sum
  // are the rank + 1, or the rank's of `values`.
  Verdict part(std::uint16_t rank, const wire::Description& what, std::uint64_t index,
               std::uint16_t owner = wire::kNoRank, std::uint8_t fill = 0) {
    const wire::Cut cut(what, spec.world_size, kChunk);
    const std::uint32_t chunk = what.first + static_cast<std::uint32_t>(index);
    std::vector<std::uint8_t> payload(cut.bytes_of(index), fill);
    if (what.wire == Dtype::kFloat32) {
      const float value = values.empty() ? static_cast<float>(rank + 1) : values[rank];
      for (std::size_t at = 0; at < payload.size(); at += sizeof value)
        std::memcpy(&payload[at], &value, sizeof value);
    }
    const std::uint64_t whole = wire::unwrap(chunk, near(sequence_of(what)));
    return send(rank,
                wire::Part{.group = header(rank, sequence_of(what)),
                           .chunk = chunk,
                           .hash = wire::hash_of(what, group_id, generation),
                           .owner = owner,
                           .payload_bytes = static_cast<std::uint16_t>(payload.size()),
                           .kind = what.kind,
                           .wire = what.wire,
                           .reduction = what.reduction},
                static_cast<std::uint16_t>(whole / kChunksPerBlock % spec.shard_count), payload);
  }
  std::uint64_t near(wire::Sequence sequence, std::uint16_t shard = 0) {
    return group().slices[shard].sequences[static_cast<std::size_t>(sequence)].floor;
  }
  std::uint32_t slots(wire::Sequence sequence) {
    return group().slots[static_cast<std::size_t>(sequence)].load();
  }

  // A command to every shard, which nobody has carried out before the next drain().
  void post(const ShardCommand& command) {
    for (std::uint16_t index = 0; index < shards.count(); ++index)
      shards.shard(index).handle_command(command, now);
  }
  void kill(std::uint16_t rank) {
    for (auto& left : job->members[rank].left_from) left = 0;
    job->members[rank].reachable = false;
    post({.kind = ShardCommand::Kind::kMemberGone, .job = job.get(), .rank = Rank{rank}});
  }

  // It leaves after so many operations.
  void leave(std::uint16_t rank, std::uint64_t called) {
    OperationsRequest left{
        .kind = OperationsRequest::Kind::kLeave, .group = &group(), .first = called};
    left.rank = Rank{rank};
    carry_out(left);
  }

  // The next thing that a shard asks of the control side.
  std::optional<OperationsRequest> take_request() {
    ShardEvent event;
    while (shards.take_event(event) || poll_shards(event))
      if (event.kind == ShardEvent::Kind::kGroupsRequest) return event.groups;
    return {};
  }
  // As the control side does it.
  void carry_out(OperationsRequest request) {
    if (request.kind == OperationsRequest::Kind::kReserve)
      request.slots = reservations.grant(*request.group, request.sequence, request.slots);
    post({.kind = ShardCommand::Kind::kGroups, .job = job.get(), .groups = request});
  }

  // Everything that the shards send, and the control side does, until nothing is left.
  std::vector<SentPacket> drain() {
    std::vector<SentPacket> all;
    do {
      shards.drain(now, [&](const Transmit& transmit, std::span<const std::uint8_t> bytes) {
        all.push_back({.rank = transmit.rank, .bytes = {bytes.begin(), bytes.end()}, .packet = {}});
      });
    } while (serve_requests());
    for (SentPacket& sent : all) {
      EXPECT_EQ(wire::parse(sent.bytes, sent.packet), Verdict::kAccepted);
    }
    return all;
  }
  // Those of one type.
  template <class Body>
  std::vector<SentPacket> drain_all() {
    std::vector<SentPacket> matching;
    for (SentPacket& sent : drain())
      if (sent.packet.type() == Body::kType) matching.push_back(std::move(sent));
    return matching;
  }
  // What became of the operation, as the rank is told when it asks.
  wire::Outcome outcome(std::uint16_t rank, const wire::Description& what,
                        wire::CallRequest request = wire::CallRequest::kAsk) {
    drain();
    call(rank, what, request);
    for (const SentPacket& sent : drain_all<wire::Outcome>())
      if (sent.rank == Rank{rank} && sent.packet.body<wire::Outcome>().number == what.number)
        return sent.packet.body<wire::Outcome>();
    ADD_FAILURE() << "no outcome";
    return {};
  }
  // What a probe of the block that begins with `first` is answered; `pulled`: the results.
  std::optional<wire::PartAnswer> probe(std::uint16_t rank, wire::Sequence sequence,
                                        std::uint32_t first, std::uint64_t want = 0,
                                        std::vector<SentPacket>* pulled = nullptr) {
    drain();
    const auto shard = static_cast<std::uint16_t>(wire::unwrap(first, near(sequence)) /
                                                  kChunksPerBlock % spec.shard_count);
    send(rank, wire::PartProbe{.group = header(rank, sequence), .first = first, .want = want},
         shard);
    std::optional<wire::PartAnswer> answer;
    for (SentPacket& sent : drain()) {
      if (sent.packet.type() == wire::PacketType::kPartAnswer)
        answer = sent.packet.body<wire::PartAnswer>();
      if (pulled != nullptr && sent.packet.type() == wire::PacketType::kPartResult)
        pulled->push_back(std::move(sent));
    }
    return answer;
  }

  std::uint16_t group_id = kGroupId;  // of the packets that are sent
  std::uint32_t generation = 1;
  std::vector<float> values;  // of each rank
  std::vector<std::unique_ptr<Group>> groups;
  std::unique_ptr<Job> job;
  Shards shards;
  OperationsSpec spec;
  Reservations reservations;
  TimeNs now = kSecond;

 private:
  bool poll_shards(ShardEvent& event) {
    for (std::uint16_t index = 0; index < shards.count(); ++index)
      if (shards.shard(index).poll_event(event)) return true;
    return false;
  }
  bool serve_requests() {
    bool some = false;
    while (const auto request = take_request()) {
      carry_out(*request);
      some = true;
    }
    return some;
  }

  using PerSequence = std::array<std::uint32_t, wire::kSequenceCount>;
  std::vector<PerSequence> floors_;  // by rank
  std::vector<PerSequence> known_;
  std::vector<std::uint32_t> numbers_;
};

inline std::vector<float> floats_of(const SentPacket& sent) {
  std::vector<float> values(sent.packet.payload().size() / sizeof(float));
  std::memcpy(values.data(), sent.packet.payload().data(), sent.packet.payload().size());
  return values;
}

}  // namespace sluice::agg

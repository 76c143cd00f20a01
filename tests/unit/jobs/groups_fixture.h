// A job of kind operations of three ranks, with real shards: joins, and what its members ask.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {

using wire::PacketType;

inline constexpr std::size_t kJobBytes = std::size_t{256} << 20;  // which is made for each test

class GroupsOfJob : public ControlTest {
 protected:
  GroupsOfJob() {
    JobsOptions small = options();
    small.max_job_memory_bytes = kJobBytes;
    restart(small);
  }
  static Worker worker(std::uint16_t rank) {
    Worker one{.rank = rank, .name = "ops", .world_size = 3};
    one.join.layouts[kTensorStream] = {.hash = 5};
    one.join.layouts[index_of(StreamId::kCollectives)] = {.chunk_count = kCollectiveChunks};
    one.join.kind = JobKind::kOperations;
    return one;
  }
  void start() {
    shards.emplace(kTestShards);
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      workers.push_back(worker(rank));
      ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
    }
    sent();
  }
  // `position`: where the member was in the group at an appliance that is lost.
  Answered ask(const Worker& from, const std::string& name, std::uint64_t ranks,
               wire::GroupRequest request = wire::GroupRequest::kMake,
               const wire::GroupPosition* position = nullptr) {
    wire::MakeGroup body{.number = 7,
                         .request = request,
                         .mask_words = 1,
                         .name_bytes = static_cast<std::uint8_t>(name.size())};
    std::memcpy(body.name, name.data(), name.size());
    body.resumes = position != nullptr;
    if (position != nullptr) body.position = *position;
    std::array<std::uint8_t, 768> out;
    const std::size_t bytes =
        wire::encode(out, {from.job, from.rank, from.cookie}, body, {&ranks, 1});
    return send({out.data(), bytes}, from.address);
  }
  // Its id and generation.
  std::pair<unsigned, unsigned> made(const Answered& answered) {
    EXPECT_TRUE(answered.is(PacketType::kGroupMade));
    if (!answered.is(PacketType::kGroupMade)) return {};
    const auto& body = answered.body<wire::GroupMade>();
    EXPECT_EQ(answered.text(), "");
    EXPECT_EQ(body.number, 7u);
    return {unsigned{body.group}, unsigned{body.generation}};
  }
  std::string refused(const Answered& answered) {
    EXPECT_TRUE(answered.is(PacketType::kGroupMade));
    EXPECT_NE(answered.text(), "");
    return answered.text();
  }
  Verdict call(const Worker& from, std::pair<unsigned, unsigned> group) {
    wire::Call body{.flow = {.number = ++packet_number, .credit = 1000},
                    .group = {.generation = group.second,
                              .group = static_cast<std::uint16_t>(group.first),
                              .sequence = wire::Sequence::kSmall},
                    .what = {.kind = wire::OperationKind::kBarrier}};
    std::array<std::uint8_t, 256> out;
    const std::size_t bytes = wire::encode(out, {from.job, from.rank, from.cookie}, body);
    wire::Packet packet;
    EXPECT_EQ(wire::parse({out.data(), bytes}, packet), Verdict::kAccepted);
    const Verdict verdict = shards->shard(0).handle(packet, false, now);
    pump();
    return verdict;
  }

  std::vector<Worker> workers;
  std::uint32_t packet_number = 0;
};

}  // namespace sluice::agg

// Schedules of hostile and broken packets: each is counted under its reason, none changes a sum.
#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

constexpr std::uint16_t kStrangerPort = 9;

class Hostile : public Schedule {
 protected:
  // Two workers whose step takes a while, so that there is a live job to attack; remembers what
  // someone on the path of rank 0 would see.
  RunIndex start_victim(Step steps = 3) {
    JobPlan plan = make_plan(2, steps, {64 * 20});
    plan.ranks[1].step_delay_ns = 100 * kMillisecond;
    const RunIndex run = world().add_run(plan);
    world().set_filter([this](Passing& passing) {
      if (!is_contribution(passing) || rank_of(passing) != 0) return;
      const auto bytes = passing.packet.bytes();
      contribution.assign(bytes.begin(), bytes.end());
    });
    world().run_until(50 * kMillisecond);  // rank 0 has sent step 1, rank 1 has not
    EXPECT_FALSE(contribution.empty());
    return run;
  }
  wire::UdpPath path_of(RunIndex run, std::uint16_t rank, std::uint16_t port_offset = 1) {
    return world().path_to_appliance(world().worker(run, rank), port_offset);
  }
  wire::UdpPath stranger_path(RunIndex run, std::uint16_t port_offset = 1) {
    wire::UdpPath path = path_of(run, 0, port_offset);
    path.src = wire::ipv4_address(10, 66, 0, 1);
    path.src_port = kStrangerPort;
    return path;
  }
  std::vector<std::uint8_t> frame_of(const wire::UdpPath& path,
                                     std::span<const std::uint8_t> datagram) {
    std::vector<std::uint8_t> frame(wire::kMaxUdpHeaderBytes + datagram.size());
    frame.resize(wire::encode_udp_frame(frame, path, datagram));
    return frame;
  }
  wire::Contribution& body() {
    return *reinterpret_cast<wire::Contribution*>(contribution.data() + sizeof(wire::CommonHeader));
  }
  wire::CommonHeader& common() {
    return *reinterpret_cast<wire::CommonHeader*>(contribution.data());
  }
  std::uint64_t count(Verdict verdict) { return world().appliance().count(verdict); }
  void drain() { world().run_until(world().now() + kMillisecond); }

  std::vector<std::uint8_t> contribution;
};

TEST_F(Hostile, a_packet_for_step_2_to_the_31_is_too_new) {
  const RunIndex run = start_victim();
  for (const Step step : {Step{1} << 31, UINT32_MAX, UINT32_MAX - 1, Step{3}}) {
    const std::uint64_t before = count(Verdict::kTooNew);
    body().step = step;
    world().inject(path_of(run, 0), contribution);
    drain();
    EXPECT_EQ(count(Verdict::kTooNew), before + 1) << step;
  }
  body().step = 0;
  world().inject(path_of(run, 0), contribution);
  drain();
  EXPECT_EQ(count(Verdict::kTooOld), 1u);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, a_result_for_a_future_step_changes_nothing_at_the_worker) {
  const RunIndex run = start_victim();
  Worker& worker = world().worker(run, 0);
  wire::ResultHeader result{.k = 2,
                            .step = Step{1} << 31,
                            .chunk = 0,
                            .weight = 2,
                            .may_count = 2,
                            .elem_count = 64,
                            .mask_words = 1};
  const std::vector<std::uint8_t> payload(256, 0x41);
  std::vector<std::uint8_t> bytes(1000);
  const std::uint64_t mask = 3;
  bytes.resize(
      wire::encode(bytes, {common().job, 0, common().cookie}, result, {&mask, 1}, payload));
  world().inject_to_worker(worker, bytes);
  drain();
  EXPECT_EQ(worker.session().verdicts()[static_cast<std::size_t>(Verdict::kTooNew)], 1u);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, a_forged_probe_gets_no_answer) {
  const RunIndex run = start_victim();
  const wire::Probe probe{.flow = {.number = 1000}, .step = 1, .want = ~std::uint64_t{0}};
  std::vector<std::uint8_t> bytes(200);
  bytes.resize(wire::encode(bytes, {common().job, 0, common().cookie ^ 1}, probe));
  world().inject(stranger_path(run), bytes);
  drain();
  EXPECT_EQ(count(Verdict::kBadCookie), 1u);
  // The worker asks about the rank that computes.
  EXPECT_EQ(count(Verdict::kProbe), world().worker(run, 0).session().counters().probes);
  EXPECT_EQ(world().stranger_bytes(), 0u);
  // No cookie, no job: the same silence.
  bytes.resize(200);
  bytes.resize(wire::encode(bytes, {common().job, 0, 0}, probe));
  world().inject(stranger_path(run), bytes);
  bytes.resize(200);
  bytes.resize(wire::encode(bytes, {200, 0, 1}, probe));
  world().inject(stranger_path(run), bytes);
  drain();
  EXPECT_EQ(count(Verdict::kBadCookie), 2u);
  EXPECT_EQ(count(Verdict::kUnknownJob), 1u);
  EXPECT_EQ(world().stranger_bytes(), 0u);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, a_stolen_cookie_from_another_address_gets_no_data_there) {
  const RunIndex run = start_victim(1);
  const wire::Probe probe{.flow = {.number = 5}, .step = 1, .want = ~std::uint64_t{0}};
  std::vector<std::uint8_t> bytes(200);
  bytes.resize(wire::encode(bytes, {common().job, 0, common().cookie}, probe));
  const std::uint64_t before = count(Verdict::kProbe);
  world().inject(stranger_path(run), bytes);
  drain();
  EXPECT_GT(count(Verdict::kProbe),
            before);  // a copy of the member's own packet would look the same
  EXPECT_EQ(world().stranger_bytes(), 0u) << "answers go to the path that was proven";
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, keepalives_from_forged_addresses_move_no_results) {
  const RunIndex run = start_victim(1);
  std::size_t forged_bytes = 0;
  for (std::uint16_t forger = 0; forger < 8; ++forger) {
    wire::UdpPath path = stranger_path(run, 0);
    path.src_port = static_cast<std::uint16_t>(kStrangerPort + forger);
    std::vector<std::uint8_t> bytes(100);
    bytes.resize(wire::encode(bytes, {common().job, 0, common().cookie},
                              wire::Keepalive{.timestamp_us = 1, .token = 1u + forger}));
    forged_bytes += bytes.size();
    world().inject(path, bytes);
    drain();
  }
  EXPECT_EQ(count(Verdict::kBadCookie), 0u) << "the cookie is the member's own";
  expect_completed(run, 2 * kSecond);
  EXPECT_LE(world().stranger_bytes(), forged_bytes) << "a forger has the appliance flood a host";
}

TEST_F(Hostile, a_member_whose_address_changes_is_followed_within_a_round_trip) {
  const RunIndex run = start_victim(6);
  Worker& worker = world().worker(run, 0);
  world().rebind(worker);
  const TimeNs moved_ns = world().now();
  TimeNs status_ns = 0;
  world().set_filter([&](Passing& passing) {
    const bool status = passing.direction == Direction::kToWorker && passing.worker == &worker &&
                        passing.packet.type() == PacketType::kStatus;
    if (status && status_ns == 0) status_ns = passing.now;
  });
  expect_completed(run, 5 * kSecond);
  EXPECT_GT(status_ns, moved_ns);
  EXPECT_LE(status_ns - moved_ns, 250 * kMillisecond + 2 * kMillisecond);
}

// Each part of a thousand of all datagrams is lost, both ways.
class HostileHints : public Hostile, public testing::WithParamInterface<std::uint32_t> {};

TEST_P(HostileHints, forged_beside_heavy_loss_kill_nobody) {
  options.uplink.loss_ppm = options.downlink.loss_ppm = GetParam() * 1000;
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  JobPlan plan = make_plan(4, 2, {64});
  plan.session.silence_timeout_ns = 60 * kSecond;
  plan.session.connect_timeout_ns = 60 * kSecond;
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 150 * kSecond;
  const RunIndex run = world().add_run(plan);
  ASSERT_TRUE(world().run_until([&] { return all_started(run); }, 60 * kSecond));
  // A stranger off the path may know everything of a member but its cookie.
  for (TimeNs at = world().now(); at < 290 * kSecond; at += 50 * kMillisecond)
    world().at(at, [&] {
      for (std::uint16_t rank = 0; rank < 4; ++rank)
        world().appliance().quoted_unreachable({.job = 0, .rank = rank, .cookie = 0x5EED},
                                               world().now());
    });
  expect_completed(run, 400 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Loss, HostileHints, testing::Values(200, 500));

TEST_F(Hostile, a_stranger_gets_no_longer_answer_than_it_sent) {
  const RunIndex run = start_victim();
  for (const bool padded : {false, true}) {
    wire::Join join{.nonce = 1,
                    .run_id = 1,
                    .world_size = 2,
                    .chunk_bytes = 256,
                    .datagram_bytes = 600,
                    .name_bytes = 3};
    std::memcpy(join.name, "job", 3);
    std::vector<std::uint8_t> bytes(1000);
    bytes.resize(wire::encode(bytes, {}, join));
    if (padded) bytes.resize(600);
    const std::uint64_t before = world().stranger_bytes();
    world().inject(stranger_path(run, 0), bytes);
    drain();
    EXPECT_GT(world().stranger_bytes(), before);
    EXPECT_LE(world().stranger_bytes() - before, bytes.size());
  }
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, truncated_packets_are_counted_at_every_length) {
  const RunIndex run = start_victim();
  const std::uint64_t folded = count(Verdict::kFolded);
  const std::uint64_t before = count(Verdict::kTruncated);
  for (std::size_t bytes = 0; bytes < contribution.size(); ++bytes)
    world().inject(path_of(run, 0), {contribution.data(), bytes});
  drain();
  EXPECT_EQ(count(Verdict::kTruncated) - before, contribution.size());
  EXPECT_EQ(count(Verdict::kFolded), folded);
  // And frames whose IP header promises more than there is.
  const std::vector<std::uint8_t> frame = frame_of(path_of(run, 0), contribution);
  for (std::size_t bytes = 1; bytes < frame.size(); ++bytes)
    world().inject_frame({frame.data(), bytes});
  drain();
  EXPECT_EQ(count(Verdict::kFolded), folded);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, fragments_are_counted_and_dropped) {
  const RunIndex run = start_victim();
  const std::uint64_t folded = count(Verdict::kFolded);
  for (const std::uint16_t fragment : {0x2000, 0x0010, 0x2010}) {
    std::vector<std::uint8_t> frame = frame_of(path_of(run, 0), contribution);
    std::uint8_t* ip = frame.data() + wire::kEthernetBytes;
    wire::store_be16(ip + 6, fragment);  // more fragments, or an offset
    wire::store_be16(ip + 10, 0);
    const std::uint16_t checksum = wire::finish_checksum(wire::sum_bytes({ip, wire::kIpv4Bytes}));
    std::memcpy(ip + 10, &checksum, 2);
    world().inject_frame(frame);
  }
  drain();
  EXPECT_EQ(count(Verdict::kFragment), 3u);
  EXPECT_EQ(count(Verdict::kFolded), folded);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, oversized_packets_are_refused) {
  const RunIndex run = start_victim();
  const std::uint64_t folded = count(Verdict::kFolded);
  // One byte more than the header says.
  std::vector<std::uint8_t> longer = contribution;
  longer.push_back(0);
  world().inject(path_of(run, 0), longer);
  drain();
  EXPECT_EQ(count(Verdict::kBadLength), 1u);
  // A well-formed packet of twice the job's chunk size, from the rank that has not sent yet.
  wire::Contribution body{
      .flow = {.number = 1, .credit = 1}, .step = 1, .weight = 1, .elem_count = 128};
  const std::vector<std::uint8_t> payload(512, 0);
  std::vector<std::uint8_t> bytes(1000);
  bytes.resize(wire::encode(bytes, {common().job, 0, common().cookie}, body, {}, payload));
  auto& header = *reinterpret_cast<wire::Contribution*>(bytes.data() + sizeof(wire::CommonHeader));
  header.chunk = 21;  // outside the layout, too
  world().inject(path_of(run, 0), bytes);
  drain();
  EXPECT_EQ(count(Verdict::kBadChunk), 1u);
  EXPECT_EQ(count(Verdict::kFolded), folded);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, a_contribution_bigger_than_a_chunk_is_a_shape_mismatch) {
  // Rank 0 itself sends nothing yet, so that the slot is open for its rank.
  JobPlan plan = make_plan(2, 1, {64 * 20});
  plan.ranks[0].step_delay_ns = plan.ranks[1].step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  wire::Sender sender;
  world().set_filter([&](Passing& passing) {
    if (passing.direction == Direction::kToAppliance && rank_of(passing) == 0 &&
        passing.packet.common().cookie != 0)
      sender = {passing.packet.common().job, 0, passing.packet.common().cookie};
  });
  start_all(run);
  ASSERT_TRUE(world().run_until([&] { return sender.cookie != 0; }, kSecond));
  wire::Contribution body{
      .flow = {.number = 1, .credit = 1}, .step = 1, .weight = 1, .elem_count = 128};
  const std::vector<std::uint8_t> payload(512, 0);
  std::vector<std::uint8_t> bytes(1000);
  bytes.resize(wire::encode(bytes, sender, body, {}, payload));
  EXPECT_EQ(count(Verdict::kFolded), 0u) << "the slot must still be open for rank 0";
  world().inject(path_of(run, 0), bytes);
  drain();
  EXPECT_EQ(count(Verdict::kShapeMismatch), 1u);
}

TEST_F(Hostile, a_wrong_checksum_is_counted_and_dropped) {
  const RunIndex run = start_victim();
  const std::uint64_t folded = count(Verdict::kFolded);
  const std::vector<std::uint8_t> sound = frame_of(path_of(run, 0), contribution);
  std::uint64_t injected = 0;
  for (std::size_t at = wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes;
       at < sound.size(); at += 7, ++injected) {
    std::vector<std::uint8_t> frame = sound;
    frame[at] ^= 0x10;
    world().inject_frame(frame);
  }
  drain();
  EXPECT_EQ(count(Verdict::kBadChecksum), injected);
  EXPECT_EQ(count(Verdict::kFolded), folded);
  expect_completed(run, 2 * kSecond);
}

TEST_F(Hostile, random_datagrams_never_change_a_live_job) {
  const RunIndex run = start_victim();
  Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::uint8_t> bytes = contribution;
    bytes.resize(random.below(bytes.size() + 20));
    for (std::uint64_t flips = random.below(6); flips > 0 && !bytes.empty(); --flips)
      bytes[random.below(bytes.size())] ^= static_cast<std::uint8_t>(1 + random.below(255));
    // The cookie is what a stranger cannot know.
    if (bytes.size() >= 16) bytes[8 + random.below(8)] ^= static_cast<std::uint8_t>(i % 255 + 1);
    world().inject(stranger_path(run, static_cast<std::uint16_t>(random.below(2))), bytes);
    if (i % 16 == 0) world().run_until(world().now() + 10 * kMicrosecond);
  }
  drain();
  expect_completed(run, 3 * kSecond);
  EXPECT_EQ(world().stranger_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::sim

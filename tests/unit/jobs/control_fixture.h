// A control side without a network: workers that build packets, a clock that tests move, and single
// steps, so that a test can play the shards. Real shards run their rounds where a test wants them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/wire/auth.h"

namespace sluice::agg {

inline constexpr std::uint16_t kTestShards = 2;

// A worker's join, with defaults that every test job shares.
struct Worker {
  std::uint16_t rank = 0;
  std::string address = "10.0.0." + std::to_string(rank + 2) + ":40000";
  std::string secret = "sesame";
  std::string name = "digits";
  std::uint64_t nonce = 1000u + rank;
  std::uint16_t world_size = 2;
  wire::Join join{.run_id = 7,
                  .layouts = {{.hash = 0xABCD, .chunk_count = 130, .max_elems = 256}, {}, {}},
                  .chunk_bytes = 1024};
  // The appliance's answer.
  std::uint16_t job = 0;
  Cookie cookie = 0;

  wire::Join request() const {
    wire::Join body = join;
    body.nonce = nonce;
    body.world_size = world_size;
    if (body.datagram_bytes == 0)
      body.datagram_bytes =
          static_cast<std::uint16_t>(wire::datagram_bytes(body.chunk_bytes, world_size));
    body.name_bytes = static_cast<std::uint8_t>(name.size());
    std::memcpy(body.name, name.data(), name.size());
    return body;
  }
};

// A parsed answer; empty when there was none. It is moved, never copied: `packet` views `bytes`.
struct Answered {
  Answered() = default;
  Answered(Answered&&) = default;
  Answered& operator=(Answered&&) = default;

  ControlResult result;
  std::size_t request_bytes = 0;
  std::vector<std::uint8_t> bytes;
  wire::Packet packet;

  bool is(wire::PacketType type) const { return !bytes.empty() && packet.type() == type; }
  template <class Body>
  const Body& body() const {
    return packet.body<Body>();
  }
  std::string text() const { return std::string(packet.text()); }
};

struct Sent {
  Transmit to;
  std::vector<std::uint8_t> bytes;
  wire::Packet packet;
};

class ControlTest : public testing::Test {
 protected:
  static JobsOptions options() {
    JobsOptions result{.secret = "sesame", .shard_count = kTestShards};
    result.boot_key.fill(0x5A);
    return result;
  }

  std::optional<Jobs> storage{std::in_place, options()};
  Jobs& jobs = *storage;
  TimeNs now = 1000 * kSecond;
  std::size_t port_datagram_bytes = 1472;
  PathKey path{};                      // path of its packets; all zero: no proof needed
  std::vector<ShardCommand> commands;  // all commands to shards so far
  bool shards_answer = true;
  bool memory_at_once = true;    // false: the test carries out the orders of poll_memory()
  std::optional<Shards> shards;  // real shards, where a test wants them
  std::vector<Sent> outbox;
  TimeNs next_tick_ns = kNever;  // ticks come from pass() alone
  Step transfer_step = 1;        // that shard 0 opened last on the state's stream

  void restart(JobsOptions changed) { storage.emplace(std::move(changed)); }

  Answered send(std::span<const std::uint8_t> bytes, std::string_view address) {
    Answered answered;
    answered.request_bytes = bytes.size();
    wire::Packet packet;
    EXPECT_EQ(wire::parse(bytes, packet), Verdict::kAccepted);
    std::vector<std::uint8_t> reply(kMaxDatagramBytes);
    const Origin origin{
        .path = path, .address = address, .max_datagram_bytes = port_datagram_bytes};
    answered.result = jobs.handle(packet, origin, reply, now);
    if (memory_at_once && carry_out_all(jobs, now))
      answered.result = jobs.handle(packet, origin, reply, now);  // the worker asked once more
    reply.resize(answered.result.reply_bytes);
    answered.bytes = std::move(reply);
    if (!answered.bytes.empty()) {
      EXPECT_EQ(wire::parse(answered.bytes, answered.packet), Verdict::kAccepted);
    }
    pump();
    return answered;
  }

  template <class Body>
  Answered send(const Worker& worker, const Body& body, std::size_t padded_bytes = 0) {
    std::vector<std::uint8_t> bytes(kMaxDatagramBytes);
    bytes.resize(wire::encode(bytes, {worker.job, worker.rank, worker.cookie}, body));
    bytes.resize(std::max(bytes.size(), padded_bytes));
    return send(bytes, worker.address);
  }

  // The first half of a join: no proof, padded.
  Answered ask(const Worker& worker) {
    const wire::Join body = worker.request();
    return send(worker, body, body.datagram_bytes);
  }

  Answered prove(const Worker& worker, const wire::Challenge& challenge) {
    wire::Join body = worker.request();
    body.has_proof = 1;
    std::memcpy(body.server_nonce, challenge.server_nonce, sizeof(body.server_nonce));
    const wire::Digest proof = wire::join_proof(worker.secret, worker.rank, body);
    std::memcpy(body.proof, proof.data(), proof.size());
    return send(worker, body, body.datagram_bytes);
  }

  // Both halves of a join. The worker keeps the cookie when it was accepted.
  Answered join(Worker& worker) {
    worker.job = 0;
    worker.cookie = 0;
    Answered challenged = ask(worker);
    if (!challenged.is(wire::PacketType::kChallenge)) return challenged;
    Answered answered = prove(worker, challenged.body<wire::Challenge>());
    if (answered.is(wire::PacketType::kAccept)) {
      worker.job = answered.packet.common().job;
      worker.cookie = answered.packet.common().cookie;
    }
    return answered;
  }

  std::string refusal_of(Worker& worker, wire::RefuseCode code) {
    const Answered answered = join(worker);
    EXPECT_TRUE(answered.is(wire::PacketType::kRefuse));
    if (!answered.is(wire::PacketType::kRefuse)) return {};
    EXPECT_EQ(answered.body<wire::Refuse>().code, code) << answered.text();
    EXPECT_EQ(answered.body<wire::Refuse>().nonce, worker.nonce);
    EXPECT_EQ(answered.result.verdict, Verdict::kJoinRefused);
    EXPECT_FALSE(answered.result.bind);
    return answered.text();
  }

  Answered keepalive(const Worker& worker) {
    return send(worker, wire::Keepalive{.timestamp_us = 77});
  }
  Answered leave(const Worker& worker, wire::LeaveReason reason = wire::LeaveReason::kFinished) {
    return send(worker, wire::Leave{.first_steps = {5, 2, 1}, .reason = reason});
  }

  // A job of `count` ranks in which all have joined. The statuses that came unasked are dropped.
  std::vector<Worker> running_job(std::uint16_t count, std::string name = "digits",
                                  PolicyOptions policy = {}) {
    std::vector<Worker> workers;
    for (std::uint16_t rank = 0; rank < count; ++rank) {
      workers.push_back({.rank = rank, .name = name, .world_size = count});
      workers.back().join.policy = policy;
      workers.back().join.has_policy = 1;
      EXPECT_TRUE(join(workers.back()).is(wire::PacketType::kAccept));
    }
    sent();
    return workers;
  }

  // A job that goes on without stragglers and dead ranks: k is one less than the world size.
  std::vector<Worker> patient_job(std::uint16_t count, std::string name = "digits") {
    const auto k = static_cast<std::uint16_t>(count - 1);
    return running_job(count, std::move(name), {.kind = PolicyKind::kFixed, .k = k});
  }
  static Worker successor_of(const Worker& worker) {
    Worker successor = worker;
    successor.nonce = worker.nonce + 1000;
    successor.address = "10.0.9." + std::to_string(worker.rank + 2) + ":50000";
    return successor;
  }
  // A join whose answer waits until shard 0 has let the process in.
  Answered rejoin(Worker& worker) {
    EXPECT_TRUE(join(worker).bytes.empty());
    return join(worker);
  }
  void kill(const Worker& worker, const std::vector<const Worker*>& speakers) {
    jobs.suspect(JobId{worker.job}, Rank{worker.rank}, now);
    pump();
    pass(700 * kMillisecond, speakers);
  }

  // The ends of serve_control(): the shards, real or played, and the outbox.
  struct Driver {
    ControlTest& test;
    std::array<std::uint8_t, kMaxDatagramBytes> memory{};

    bool take_event(ShardEvent& event) { return test.shards && test.shards->take_event(event); }
    std::size_t pass_memory(Jobs& jobs, TimeNs now) {
      return test.memory_at_once && carry_out_all(jobs, now);
    }
    std::span<std::uint8_t> tx_buffer() { return memory; }
    void send(const Transmit& to) {
      test.outbox.push_back(
          {.to = to, .bytes = {memory.begin(), memory.begin() + to.bytes}, .packet = {}});
    }
    void give_command(const ShardCommand& command) {
      test.commands.push_back(command);
      if (test.shards)
        test.shards->post(command);
      else if (test.shards_answer)
        test.answer(command);
    }
  };
  // Rounds of the control thread, and of real shards.
  void pump() {
    Driver driver{*this};
    repeat_until_idle([&] {
      const std::size_t work = serve_control(jobs, next_tick_ns, driver, now);
      next_tick_ns = kNever;
      if (shards) shards->drain(now, [](const Transmit&, std::span<const std::uint8_t>) {});
      return work;
    });
  }
  void answer(const ShardCommand& command) {
    switch (command.kind) {
      case ShardCommand::Kind::kRemoveJob:
        for (std::uint16_t shard = 0; shard < kTestShards; ++shard)
          jobs.handle_event({.kind = ShardEvent::Kind::kJobReleased, .job = command.job}, now);
        break;
      case ShardCommand::Kind::kMemberJoined:
        for (const std::size_t stream : {0, 1})
          if (auto& from = command.job->members[command.rank.value].joined_from[stream];
              from.load() == kNoStep)
            from = command.job->windows[stream].open_step + (stream == 0 ? 2 : 0);
        jobs.handle_event(
            {.kind = ShardEvent::Kind::kMemberAdmitted, .job = command.job, .rank = command.rank},
            now);
        break;
      case ShardCommand::Kind::kOpenTransfer:
        jobs.handle_event({.kind = ShardEvent::Kind::kTransferOpened,
                           .job = command.job,
                           .stream = StreamId::kState,
                           .step = ++transfer_step},
                          now);
        break;
      default: break;
    }
  }
  std::vector<ShardCommand::Kind> kinds() const {
    std::vector<ShardCommand::Kind> result;
    for (const ShardCommand& command : commands) result.push_back(command.kind);
    return result;
  }

  // The datagrams sent since the last call.
  std::vector<Sent> sent() {
    pump();
    std::vector<Sent> all = std::exchange(outbox, {});
    for (Sent& one : all) EXPECT_EQ(wire::parse(one.bytes, one.packet), Verdict::kAccepted);
    return all;
  }

  std::vector<Sent> sent_of(wire::PacketType type) {
    std::vector<Sent> all = sent();
    std::erase_if(all, [&](const Sent& one) { return one.packet.type() != type; });
    for (Sent& one : all) EXPECT_EQ(wire::parse(one.bytes, one.packet), Verdict::kAccepted);
    return all;
  }

  // Lets time pass in ticks of 50 ms. `speakers` send keepalives every 250 ms.
  void pass(DurationNs duration, const std::vector<const Worker*>& speakers = {}) {
    for (const TimeNs end = now + duration; now < end;) {
      now += 50 * kMillisecond;
      if (now / (50 * kMillisecond) % 5 == 0)
        for (const Worker* worker : speakers) keepalive(*worker);
      next_tick_ns = now;
      pump();
    }
  }

  const Job* only_job() {
    const auto all = jobs.jobs();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? nullptr : all[0];
  }
};

}  // namespace sluice::agg

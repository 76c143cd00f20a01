// A session on a bench: the test plays the appliance, packet by packet, at times it chooses.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/base/block.h"
#include "aggregator/wire/auth.h"
#include "aggregator/wire/packet.h"
#include "client/core/session.h"

namespace sluice::client {

// A datagram that the session sent.
struct Sent {
  std::vector<std::uint8_t> bytes;
  std::uint16_t port_offset = 0;
  Priority priority = 0;

  wire::Packet packet() const {
    wire::Packet view;
    EXPECT_EQ(wire::parse(bytes, view), Verdict::kAccepted);
    return view;
  }
  wire::PacketType type() const { return packet().type(); }
  template <class Body>
  Body body() const {
    return packet().body<Body>();
  }
};

class Scripted {
 public:
  static constexpr std::uint16_t kJob = 3;
  static constexpr Cookie kCookie = 0xC00C1E;
  static constexpr std::size_t kChunkBytes = 64;  // 16 float32

  static SessionOptions default_options() {
    return {.job_name = "job",
            .run_id = 7,
            .rank = Rank{1},
            .world_size = 2,
            .secret = "secret",
            .appliance_address = "10.0.0.1:7700",
            .nonce = 99,
            .path_datagram_bytes = 9000};
  }

  explicit Scripted(SessionOptions session_options = default_options(),
                    std::vector<TensorSpec> tensors = {{"w", 40, Dtype::kFloat32}},
                    std::size_t chunk_bytes = kChunkBytes, Dtype wire = Dtype::kFloat32)
      : options(session_options),
        session(options, Layout::create(std::move(tensors), chunk_bytes, wire).value(), now) {}

  // ---- the session's packets and events ----
  std::vector<Sent> sent() {
    transmit();
    return std::exchange(sent_, {});
  }
  // Lets the session send. Its packets wait for sent().
  void transmit() {
    Transmit transmit;
    std::vector<std::uint8_t> buffer(kMaxDatagramBytes);
    while (session.poll_transmit(transmit, buffer, now)) {
      const std::span<const std::uint8_t> bytes = gather(transmit, buffer);
      sent_.push_back({.bytes = {bytes.begin(), bytes.end()},
                       .port_offset = transmit.port_offset,
                       .priority = transmit.priority});
      EXPECT_LE(sent_.size(), 100'000u);
    }
  }
  std::vector<Sent> sent(wire::PacketType type) {
    std::vector<Sent> some;
    for (Sent& packet : sent())
      if (packet.type() == type) some.push_back(std::move(packet));
    return some;
  }
  std::vector<Event> events() {
    transmit();
    std::vector<Event> all;
    Event event;
    while (session.poll_event(event)) all.push_back(event);
    return all;
  }
  // The status of the one kFailed event among the events that wait.
  Status failure() {
    Status status;
    for (const Event& event : events())
      if (event.kind == Event::Kind::kFailed) status = event.status;
    return status;
  }
  bool saw(Event::Kind kind) {
    for (const Event& event : events())
      if (event.kind == kind) return true;
    return false;
  }
  // Lets time pass, timeout by timeout, and keeps in `passed` what the session sends meanwhile, but
  // for bare requests for feedback.
  void pass(DurationNs duration_ns) {
    const TimeNs end_ns = now + duration_ns;
    while (session.next_timeout() <= end_ns) {
      now = std::max(now, session.next_timeout());
      session.handle_timeout(now);
      EXPECT_GT(session.next_timeout(), now) << "a timeout that is due again at once";
      for (Sent& packet : sent())
        if (packet.packet().type() != wire::PacketType::kCredit)
          passed.push_back(std::move(packet));
      if (session.next_timeout() <= now) break;
    }
    now = end_ns;
  }

  // ---- the appliance's packets ----
  template <class Body>
  Verdict answer(const Body& body, std::span<const std::uint64_t> mask = {},
                 std::span<const std::uint8_t> payload = {}) {
    std::vector<std::uint8_t> buffer(kMaxDatagramBytes);
    const std::size_t bytes = wire::encode(buffer, sender, body, mask, payload);
    return session.handle_datagram({buffer.data(), bytes}, now);
  }
  template <class Body>
  Verdict answer_text(Body body, std::string_view text) {
    body.text_bytes = static_cast<std::uint16_t>(text.size());
    return answer(body, {}, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }
  void challenge(std::uint8_t fill = 5) {
    wire::Challenge body{.nonce = options.nonce};
    std::memset(body.server_nonce, fill, sizeof(body.server_nonce));
    sender = {.rank = options.rank.value};
    answer(body);
  }
  void accept(std::uint32_t at_step = 1, std::uint16_t shards = 1) {
    sender = {.job = kJob, .rank = options.rank.value, .cookie = cookie};
    answer(wire::Accept{.nonce = options.nonce,
                        .open_steps = {at_step, 1, 1},
                        .first_steps = {first_step, first_step, 1},
                        .policy = policy,
                        .resync_hold_ms = 30'000,
                        .shards = shards,
                        .window = 4,
                        .world_size = options.world_size,
                        .joined_count = 1,
                        .rejoined = rejoined});
  }
  Verdict status(wire::JobState state, std::uint16_t joined, std::uint64_t missing,
                 bool left = false) {
    return answer(wire::Status{.joined_count = joined,
                               .world_size = options.world_size,
                               .state = state,
                               .mask_words = 1,
                               .left = left},
                  {&missing, 1});
  }
  // Plays the whole handshake, to a running job.
  void start(std::uint16_t shards = 1) {
    sent();
    challenge();
    sent();
    accept(1, shards);
    status(wire::JobState::kRunning, options.world_size, 0);
    for (const Sent& packet : sent()) note(packet);
    events();
  }
  // Counts a worker packet as arrived.
  void note(const Sent& packet) {
    if (packet.port_offset == 0) return;
    const auto flow = packet.packet().flow();
    ++received;
    if (flow.number > highest) {
      highest = flow.number;
      echo_us = flow.timestamp_us;
    }
    credit = flow.credit;
  }
  wire::FeedbackHeader feedback() {
    return {.number = ++number,
            .received_count = received,
            .highest_number = highest,
            .arrived_before = arrived_before,
            .echo_timestamp_us = echo_us,
            .deferred_count = deferred,
            .open_step = open_step};
  }
  Verdict result(Step step, ChunkIndex chunk, std::vector<float> sums, std::uint64_t weight,
                 std::uint8_t flags = 0, std::uint64_t mask = 3, std::uint16_t may_count = 2) {
    wire::FeedbackHeader header = feedback();
    header.flags = flags;
    const std::uint64_t list = chunk_bit(chunk);
    std::span<const std::uint8_t> data{reinterpret_cast<const std::uint8_t*>(sums.data()),
                                       4 * sums.size()};
    if (flags & wire::kFlagNil) data = {reinterpret_cast<const std::uint8_t*>(&list), sizeof list};
    return answer(
        wire::ResultHeader{
            .feedback = header,
            .k = static_cast<std::uint16_t>(std::popcount(mask)),
            .step = step,
            .chunk = chunk,
            .weight = weight,
            .may_count = std::max(may_count, static_cast<std::uint16_t>(std::popcount(mask))),
            .elem_count = static_cast<std::uint16_t>(sums.size()),
            .dtype = Dtype::kFloat32,
            .mask_words = 1},
        {&mask, 1}, data);
  }

  SessionOptions options;
  TimeNs now = 100 * kSecond;
  Session session;
  std::vector<Sent> sent_;  // and not asked for yet
  wire::Sender sender;
  Cookie cookie = kCookie;
  std::vector<Sent> passed;   // what the session sent during pass()
  PolicyOptions policy;       // that the appliance says the job runs
  std::uint8_t rejoined = 0;  // the job runs already
  Step first_step = 0;        // in a running job: that this worker contributes to
  Step open_step = 0;         // of the gradients, as feedback tells it
  std::uint32_t arrived_before =
      UINT32_MAX;  // of the numbers below `highest`, as feedback tells it
  std::uint32_t number = 0, received = 0, highest = 0, credit = 0, echo_us = 0, deferred = 0;
};

// 40 floats in chunks of 16, 16 and 8.
struct Tensor {
  explicit Tensor(float first = 1, std::size_t count = 40) : values(count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  }
  std::vector<float> values;
};

inline Submission of(Tensor& tensor, std::uint32_t index = 0, Priority priority = 0) {
  return {.tensor = index,
          .input = tensor.values.data(),
          .output = tensor.values.data(),
          .priority = priority};
}

inline std::vector<ChunkIndex> chunks(const std::vector<Sent>& packets) {
  std::vector<ChunkIndex> list;
  for (const Sent& packet : packets) {
    const ChunkIndex first = packet.body<wire::Contribution>().chunk;
    for (std::uint64_t bits = packet.packet().chunks(); bits != 0; bits &= bits - 1)
      list.push_back(first - first % kChunksPerBlock +
                     static_cast<ChunkIndex>(std::countr_zero(bits)));
  }
  return list;
}

}  // namespace sluice::client

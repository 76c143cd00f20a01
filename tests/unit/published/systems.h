// The published switch and our aggregator behind one small interface, for tests that ask the same
// of both: jobs of one chunk, in rounds from 0.
//
// A test makes packets, delivers them in any order, and looks at the results. A round of our
// aggregator is a step. The first two steps, which wait for all workers under every policy, are
// over when a test begins.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "tests/unit/published/saina_switch.h"

namespace sluice::published {

using Values = std::vector<float>;

struct Seen {  // one copy of a result, as its worker takes it
  std::size_t job = 0;
  std::uint32_t round = 0;
  std::uint16_t worker = 0;
  std::uint16_t k = 0;
  std::optional<std::uint64_t> members;  // if the result names them
  Values sum;
};

class Published {
 public:
  using Packet = published::Packet;

  // One SainaSwitch for all jobs; each sets k as it begins.
  Published(std::uint16_t worker_count, const std::vector<PolicyOptions>& jobs)
      : worker_count_(worker_count),
        switch_(jobs.size(), worker_count, rule_of(jobs.back())),
        rounds_(jobs.size()) {}

  Packet packet(std::size_t job, std::uint16_t worker, std::uint32_t round, Values values) const {
    return {.slot = job, .set = round % 2, .worker = worker, .values = std::move(values)};
  }
  void deliver(const Packet& packet) { switch_.receive(packet); }
  // The act of a worker that has waited too long: it sends its packet once more.
  void ask(std::size_t job, std::uint16_t worker, std::uint32_t round, Values values) {
    deliver(packet(job, worker, round, std::move(values)));
  }
  // The switch takes no reports.
  void report(std::size_t, std::uint16_t, std::uint32_t) {}
  void set_time(TimeNs) {}

  // The receiver knows the slot and the set, and takes the result as that of the round that it
  // waits for.
  std::vector<Seen> leave() {
    std::vector<Seen> all;
    for (const Result& result : switch_.leave()) {
      std::uint32_t& round = rounds_[result.slot];
      if (round % 2 == result.set) ++round;
      for (std::uint16_t worker = 0; worker < worker_count_; ++worker)
        all.push_back({.job = result.slot,
                       .round = round - 1,
                       .worker = worker,
                       .k = result.k,
                       .members = std::nullopt,
                       .sum = result.sum});
    }
    return all;
  }
  std::uint16_t k(std::size_t) const { return switch_.k(); }

 private:
  static Rule rule_of(const PolicyOptions& options) {
    // A fixed k is a rule that never counts signs.
    const bool fixed = options.kind != PolicyKind::kSaina && options.kind != PolicyKind::kGoodput;
    return {.k0 = options.k,
            .sign_threshold_permille = fixed ? 1001u : options.sign_threshold_permille,
            .count_threshold = options.count_threshold};
  }

  std::uint16_t worker_count_;
  SainaSwitch switch_;
  std::vector<std::uint32_t> rounds_;  // rounds whose result has left, one a job
};

class Ours {
 public:
  using Packet = std::vector<std::uint8_t>;

  Ours(std::uint16_t worker_count, const std::vector<PolicyOptions>& jobs) {
    for (const PolicyOptions& policy : jobs) {
      agg::JobSpec spec{.id = JobId{static_cast<std::uint16_t>(jobs_.size())},
                        .name = "published",
                        .world_size = worker_count,
                        .chunk_bytes = kMinChunkBytes,
                        .policy = policy};
      spec.chunk_counts[0] = 1;
      spec.max_elems[0] = kMinChunkBytes / sizeof(float);
      spec.windows[0] = kAsyncWindow;
      agg::Job& job = *jobs_.emplace_back(std::make_unique<agg::Job>(spec));
      for (agg::Member& member : job.members) {
        member.cookie = kCookie;
        member.reachable = true;
      }
      shards_.shard(0).handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = &job},
                                      now_);
      job.start(now_);
      for (Step step = 1; step <= kFullSteps; ++step)
        for (std::uint16_t worker = 0; worker < worker_count; ++worker)
          deliver(encode(job.spec.id.value, worker, step, Values(1, 1)));
    }
    leave();
  }

  Packet packet(std::size_t job, std::uint16_t worker, std::uint32_t round, Values values) const {
    return encode(job, worker, step_of(round), values);
  }
  void deliver(const Packet& packet) {
    wire::Packet parsed;
    ASSERT_EQ(wire::parse(packet, parsed), Verdict::kAccepted);
    shards_.shard(0).handle(parsed, false, now_);
  }
  // The act of a worker that has waited too long: it asks for its chunk's state and the result.
  void ask(std::size_t job, std::uint16_t worker, std::uint32_t round, const Values&) {
    deliver(encode(job, worker, wire::Probe{.step = step_of(round), .want = 1}));
  }
  // The worker's gradient of the round is finished.
  void report(std::size_t job, std::uint16_t worker, std::uint32_t round) {
    deliver(encode(job, worker, wire::Finished{.step = step_of(round)}));
  }
  void set_time(TimeNs now) { now_ = kSecond + now; }

  std::vector<Seen> leave() {
    std::vector<Seen> all;
    shards_.drain(now_, [&](const agg::Transmit& transmit, std::span<const std::uint8_t> bytes) {
      wire::Packet packet;
      EXPECT_EQ(wire::parse(bytes, packet), Verdict::kAccepted);
      if (packet.type() != wire::PacketType::kResult) return;
      const auto& body = packet.body<wire::ResultHeader>();
      if (body.step <= kFullSteps) return;
      Seen& seen = all.emplace_back();
      seen = {.job = transmit.job.value,
              .round = body.step - step_of(0),
              .worker = transmit.rank.value,
              .k = body.k,
              .members = packet.mask_word(0),
              .sum = Values(body.elem_count)};
      std::memcpy(seen.sum.data(), packet.payload().data(), packet.payload().size());
    });
    return all;
  }
  std::uint16_t k(std::size_t job) const {
    return static_cast<std::uint16_t>(jobs_[job]->gauges.k.load());
  }

 private:
  static constexpr Cookie kCookie = 0xC0FFEE;
  static constexpr std::uint32_t kCredit = 1'000'000;

  static Step step_of(std::uint32_t round) { return kFullSteps + 1 + round; }

  Packet encode(std::size_t job, std::uint16_t worker, Step step, const Values& values) const {
    const auto bytes = static_cast<std::uint16_t>(values.size() * sizeof(float));
    return encode(job, worker,
                  wire::Contribution{.step = step,
                                     .base_step = step,
                                     .weight = 1,
                                     .elem_count = static_cast<std::uint16_t>(values.size())},
                  {reinterpret_cast<const std::uint8_t*>(values.data()), bytes});
  }
  template <class Body>
  Packet encode(std::size_t job, std::uint16_t worker, Body body,
                std::span<const std::uint8_t> payload = {}) const {
    body.flow.credit = kCredit;
    Packet out(256);
    const wire::Sender sender{
        .job = static_cast<std::uint16_t>(job), .rank = worker, .cookie = kCookie};
    out.resize(wire::encode(out, sender, body, {}, payload));
    return out;
  }

  agg::Shards shards_{1};
  std::vector<std::unique_ptr<agg::Job>> jobs_;
  TimeNs now_ = kSecond;
};

}  // namespace sluice::published

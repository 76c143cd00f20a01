// A job's datagrams do not depend on the place of its gradients: every datagram of every rank and
// of the appliance is the same to the last byte, whether gradients are pruned and rounded on the
// (fake) device or on the host. In virtual time, with losses.
#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "client/device/copy_stage.h"
#include "client/device/device.h"
#include "client/device/far_work.h"
#include "tests/unit/client_core/small_world.h"

namespace sluice::client {
namespace {

constexpr std::uint16_t kWorkers = 3;
constexpr std::uint32_t kSteps = 6;
constexpr std::uint32_t kTensors = 3;
constexpr std::uint64_t kCounts[kTensors] = {9'000, 1'300, 40};  // the last is never pruned

using Datagrams = std::vector<std::vector<std::uint8_t>>;
using Floats = std::vector<float>;

struct Outcome {
  Datagrams datagrams;
  std::vector<Floats> averages;
  std::size_t sparse_packets = 0, dense_packets = 0, repeated_packets = 0;
};

struct Case {
  std::string name;
  Dtype wire{};
  PruneOptions prune;
};

std::vector<Case> all_cases() {
  const std::pair<const char*, Dtype> wires[] = {{"float32", Dtype::kFloat32},
                                                 {"float16", Dtype::kFloat16},
                                                 {"bfloat16", Dtype::kBfloat16},
                                                 {"int8", Dtype::kInt8}};
  const std::pair<const char*, PruneOptions> rules[] = {
      {"dense", {}},
      {"static 1 %", {.rule = PruneRule::kStatic, .fraction = 0.01, .warmup_steps = 1}},
      {"static 60 %", {.rule = PruneRule::kStatic, .fraction = 0.6}},
      {"sigma", {.rule = PruneRule::kSigma, .sigmas = 1}},
      {"dynamic", {.rule = PruneRule::kDynamic}}};
  std::vector<Case> cases;
  for (const auto& [wire_name, wire] : wires)
    for (const auto& [rule_name, prune] : rules)
      if (wire != Dtype::kFloat32 || prune.rule != PruneRule::kOff)  // else nothing is far
        cases.push_back({std::string(wire_name) + ", " + rule_name, wire, prune});
  return cases;
}

// With a spread, so that rounding and pruning leave something behind; once with an infinity.
Floats gradient(std::uint16_t rank, std::uint32_t tensor, std::uint32_t step) {
  Floats values(kCounts[tensor]);
  std::uint32_t state = (100u * rank + 10u * tensor + step) * 2654435761u + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
    value = unit * unit * unit;
  }
  if (rank == 1 && tensor == 0 && step == 3) values[777] = std::numeric_limits<float>::infinity();
  return values;
}

// One rank's device, and what the copier does with it, at once.
class Side {
 public:
  Side(const WorldOptions& options, Session& session)
      : session_(session),
        layout_(Layout::create(options.tensors, options.chunk_bytes, options.wire).value()),
        device_(Device::open(Memory::kDevice, 0, Log()).value()),
        buffers_(layout_, options.prune) {
    EXPECT_TRUE(device_->allocate(CopyStage::staging_bytes(layout_, &buffers_)).ok());
    far_ = FarWork::create(*device_, buffers_, options.prune).value();
    stage_ = std::make_unique<CopyStage>(layout_, device_->staging(),
                                         CopyStage::Limits{1 << 14, 1 << 15}, &buffers_);
  }
  void flush() { stage_->flush(); }
  void submit(const Submission& submission, TimeNs now) {
    stage_->accept(submission, nullptr, true);
    work();
    Submission ready;
    ASSERT_TRUE(stage_->poll_ready(ready));
    EXPECT_EQ(ready.far != nullptr, stage_->is_far(submission.tensor));
    ASSERT_TRUE(session_.submit(ready, now).ok());
  }
  void over(std::uint32_t tensor, bool absent) {
    ASSERT_TRUE(stage_->summed(tensor, StatusCode::kOk, absent));
    work();
    CopyStage::Done done;
    ASSERT_TRUE(stage_->poll_done(done));
  }

 private:
  void work() {
    for (CopyStage::Copy copy; stage_->poll_copy(copy);) {
      const bool copies = CopyStage::is_copy(copy.direction);
      sluice_device_mark* mark = nullptr;
      if (copies)
        mark = device_->copy(copy);
      else if (!far_->start(copy, mark))
        ADD_FAILURE() << device_->why();
      while (mark != nullptr && device_->passed(mark) == 0) continue;
      if (mark != nullptr) device_->drop(mark);
      if (!copies) far_->passed(copy);
      stage_->copied(copy);
    }
  }

  Session& session_;
  const Layout layout_;
  std::unique_ptr<Device> device_;
  DeviceBuffers buffers_;
  std::unique_ptr<FarWork> far_;
  std::unique_ptr<CopyStage> stage_;
};

WorldOptions world_options(const Case& one, bool far) {
  WorldOptions options{.workers = kWorkers,
                       .shards = 2,
                       .chunk_bytes = 256,
                       .tensors = {{"w", kCounts[0]}, {"v", kCounts[1]}, {"few", kCounts[2]}},
                       .wire = one.wire,
                       .prune = one.prune,
                       .loss = 0.02,
                       .seed = 5};
  if (!far) return options;
  const FarChoice choice = choose_far(options.tensors, one.wire, one.prune, "");
  EXPECT_GE(choice.far_count, 2u);
  return options;
}

Outcome run(const Case& one, bool far) {
  const WorldOptions options = world_options(one, far);
  SmallWorld world(options);
  Outcome outcome;
  world.drop = [&](bool, std::uint16_t, const wire::Packet& packet) {
    outcome.datagrams.emplace_back(packet.bytes().begin(), packet.bytes().end());
    if (packet.type() != wire::Contribution::kType) return false;
    const auto flags = packet.body<wire::Contribution>().flow.flags;
    ++(flags & wire::kFlagSparse ? outcome.sparse_packets : outcome.dense_packets);
    return false;
  };
  std::vector<std::unique_ptr<Side>> sides;
  for (std::uint16_t rank = 0; far && rank < kWorkers; ++rank)
    sides.push_back(std::make_unique<Side>(options, world.session(rank)));
  EXPECT_TRUE(world.run_until(Event::Kind::kStarted, 1, 10 * kSecond)) << world.first_failure();
  std::vector<Floats> memory(kWorkers * kTensors);
  for (std::uint32_t step = 1; step <= kSteps; ++step) {
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {
      Session& session = world.session(rank);
      world.events(rank).clear();
      const bool last = step == kSteps;
      EXPECT_TRUE(!last || session.flush_residuals().ok());
      if (last && far) sides[rank]->flush();
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        Floats& values = memory[rank * kTensors + tensor] = gradient(rank, tensor, step);
        // Once one rank has none, and once nobody has.
        const bool absent = tensor == 1 && (step == 4 || (step == 2 && rank == 2));
        const Submission submission{.tensor = tensor,
                                    .input = absent ? nullptr : values.data(),
                                    .output = values.data(),
                                    .weight = rank + 1u,
                                    .priority = static_cast<Priority>(tensor)};
        if (far)
          sides[rank]->submit(submission, world.now());
        else
          EXPECT_TRUE(session.submit(submission, world.now()).ok());
      }
      EXPECT_TRUE(session.end_step().ok());
    }
    EXPECT_TRUE(world.run_until(Event::Kind::kStepDone, 1, 10 * kSecond)) << world.first_failure();
    for (std::uint16_t rank = 0; far && rank < kWorkers; ++rank)
      for (const Event& event : world.events(rank))
        if (event.kind == Event::Kind::kTensorDone) sides[rank]->over(event.tensor, event.absent);
    outcome.averages.insert(outcome.averages.end(), memory.begin(), memory.end());
  }
  outcome.repeated_packets = world.session(0).counters().retransmissions;
  return outcome;
}

class DeviceWire : public testing::TestWithParam<Case> {};

TEST_P(DeviceWire, CarriesTheSameBytesWhereverIsPrunedAndRounded) {
  ::setenv("SLUICE_PLUGIN_DIR", FAKE_DEVICE_DIR, 1);
  ::unsetenv("SLUICE_FAKE_DEVICE");
  const Outcome near = run(GetParam(), false), far = run(GetParam(), true);
  EXPECT_EQ(near.sparse_packets != 0, GetParam().prune.rule != PruneRule::kOff);
  EXPECT_GT(near.dense_packets, 0u);
  EXPECT_GT(near.repeated_packets, 0u);
  ASSERT_EQ(far.datagrams.size(), near.datagrams.size());
  for (std::size_t i = 0; i < near.datagrams.size(); ++i)
    ASSERT_EQ(far.datagrams[i], near.datagrams[i]) << "datagram " << i;
  ASSERT_EQ(far.averages.size(), near.averages.size());
  for (std::size_t i = 0; i < near.averages.size(); ++i)
    for (std::size_t at = 0; at < near.averages[i].size(); ++at)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(far.averages[i][at]),
                std::bit_cast<std::uint32_t>(near.averages[i][at]))
          << i << " " << at;
}

INSTANTIATE_TEST_SUITE_P(EveryFormat, DeviceWire, testing::ValuesIn(all_cases()),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace sluice::client

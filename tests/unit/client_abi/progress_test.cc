// When the progress thread reads the memory of a gradient, and when no more.
#include "client/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "client/clock.h"

namespace sluice::client {
namespace {

using namespace std::chrono_literals;

// A transport with its own appliance, which takes gradients as the test says.
class TestTransport : public Transport {
 public:
  enum class Mode { kTake, kHold, kRefuse };

  TransportFacts facts() const override { return {.receive_credit_packets = 64}; }
  std::span<const Incoming> receive(TimeNs now) noexcept override {
    arrived_.clear();
    appliance_.pump(now, [this](const agg::Transmit&, std::span<const std::uint8_t> bytes) {
      arrived_.emplace_back(bytes.begin(), bytes.end());
    });
    std::move(replies_.begin(), replies_.end(), std::back_inserter(arrived_));
    replies_.clear();
    incoming_.clear();
    for (const auto& bytes : arrived_) incoming_.push_back({bytes});
    return incoming_;
  }
  std::size_t send(std::span<const Outgoing> datagrams, TimeNs now) noexcept override {
    const bool gradient = datagrams[0].port_offset != 0;
    if (gradient && mode == Mode::kRefuse) {
      ++refusals;
      return 0;
    }
    const Mode before = mode;
    if (gradient && before == Mode::kHold) {
      held = true;
      while (mode == Mode::kHold) std::this_thread::sleep_for(1ms);
    }
    for (const Outgoing& datagram : datagrams) handle(datagram, now);
    held = false;
    return datagrams.size();
  }
  bool poll_path_event(PathEvent&) noexcept override { return false; }
  void wait(int, DurationNs) noexcept override { std::this_thread::sleep_for(1ms); }
  TransportCounters counters() const noexcept override { return {}; }

  std::atomic<Mode> mode{Mode::kTake};
  std::atomic<bool> held{false};
  std::atomic<int> refusals{0};

 private:
  void handle(const Outgoing& datagram, TimeNs now) {
    wire::Packet packet;
    ASSERT_EQ(wire::parse(whole(datagram), packet), Verdict::kAccepted);
    if (datagram.port_offset != 0) {
      appliance_.handle_data(0, packet, false, now);
      return;
    }
    std::vector<std::uint8_t> reply(kMaxDatagramBytes);
    const agg::Origin origin{
        .path = {}, .address = "test", .max_datagram_bytes = kMaxDatagramBytes};
    reply.resize(appliance_.handle_control(packet, origin, reply, now).reply_bytes);
    if (!reply.empty()) replies_.push_back(std::move(reply));
  }

  agg::Appliance appliance_{agg::ApplianceOptions{}};
  std::vector<std::vector<std::uint8_t>> replies_, arrived_;
  std::vector<Incoming> incoming_;
};

bool eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 5000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest()
      : ProgressTest(std::make_unique<Session>(
            SessionOptions{
                .job_name = "p", .world_size = 1, .nonce = 1, .path_datagram_bytes = 1472},
            Layout::create({{"w", kElems, Dtype::kFloat32}}, 1024).value(), monotonic_now())) {}
  explicit ProgressTest(std::unique_ptr<Session> session)
      : session_(*session), shared_(std::move(session), session_) {
    auto transport = std::make_unique<TestTransport>();
    transport_ = transport.get();
    std::vector<Progress::Line> lines;
    lines.push_back({session_, std::move(transport)});
    progress_ = std::make_unique<Progress>(shared_, std::move(lines), ProgressCallbacks{}, Log(),
                                           "p", nullptr);
    progress_->start();
  }
  void SetUp() override {
    ASSERT_TRUE(eventually([this] {
      const auto lock = shared_.mutex.lock();
      return shared_.session.state() == SessionState::kRunning;
    }));
  }
  void submit() {
    const auto lock = shared_.mutex.lock();
    ASSERT_TRUE(
        shared_.session.submit({.input = input_.data(), .output = output_.data()}, monotonic_now())
            .ok());
    shared_.wake();
  }
  bool tensor_is_done() {
    const auto lock = shared_.mutex.lock();
    return !shared_.session.tensors().in_flight(0);
  }

  static constexpr std::size_t kElems = 1000;
  std::vector<float> input_ = std::vector<float>(kElems, 1);
  std::vector<float> output_ = std::vector<float>(kElems, 0);
  Session& session_;
  SharedSession shared_;
  TestTransport* transport_ = nullptr;
  std::unique_ptr<Progress> progress_;
};

TEST_F(ProgressTest, WhoeverGivesMemoryBackWaitsForTheBurstThatReadsIt) {
  transport_->mode = TestTransport::Mode::kHold;
  submit();
  ASSERT_TRUE(eventually([this] { return transport_->held.load(); }));
  std::atomic<bool> waiting{false}, given_back{false};
  std::thread caller([&] {
    auto lock = shared_.mutex.lock();
    waiting = true;
    shared_.await_burst(lock);
    given_back = true;
  });
  ASSERT_TRUE(eventually([&] { return waiting.load(); }));
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(given_back);
  {
    const auto lock = shared_.mutex.lock();  // a call that gives nothing back does not wait
    EXPECT_EQ(shared_.session.state(), SessionState::kRunning);
  }
  transport_->mode = TestTransport::Mode::kTake;
  caller.join();
  EXPECT_TRUE(given_back);
  EXPECT_TRUE(eventually([this] { return tensor_is_done(); }));
  EXPECT_EQ(output_, std::vector<float>(kElems, 1));
}

TEST_F(ProgressTest, WhatTheTransportRefusesIsNotReadFromTheCallersMemoryLater) {
  transport_->mode = TestTransport::Mode::kRefuse;
  submit();
  ASSERT_TRUE(eventually([this] { return transport_->refusals > 1; }));
  EXPECT_FALSE(shared_.reading);
  std::fill(input_.begin(), input_.end(), 7.0f);  // as if its owner had it back
  transport_->mode = TestTransport::Mode::kTake;
  EXPECT_TRUE(eventually([this] { return tensor_is_done(); }));
  EXPECT_EQ(output_, std::vector<float>(kElems, 1));
}

}  // namespace
}  // namespace sluice::client

// The progress thread: when it may read the memory of a gradient, where it holds the lock, and how
// much a line sends in its turn.
#include "client/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "client/clock.h"

namespace sluice::client {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTurn = 4;  // datagrams: those of a tensor

// Whether others get a lock at certain places of one thread. Names those where they did not.
class FreeAt {
 public:
  void watch(SessionMutex& mutex) { mutex_ = &mutex; }
  void operator()(const char* place) {
    SessionMutex* const mutex = mutex_;
    if (mutex == nullptr) return;
    const std::lock_guard guard(places_mutex_);
    places_.insert(place);
    others_.push_back(std::async(std::launch::async, [mutex] { const auto lock = mutex->lock(); }));
    if (others_.back().wait_for(5s) == std::future_status::ready)
      others_.pop_back();
    else
      held_.insert(place);
  }
  std::set<std::string> places() const {
    const std::lock_guard guard(places_mutex_);
    return places_;
  }
  std::set<std::string> held() const {
    const std::lock_guard guard(places_mutex_);
    return held_;
  }

 private:
  std::atomic<SessionMutex*> mutex_{nullptr};
  mutable std::mutex places_mutex_;
  std::set<std::string> places_, held_;
  std::vector<std::future<void>>
      others_;  // that still wait; they end with the thread that holds it
};

// A transport with its own appliance, which takes gradients as the test says.
class TestTransport : public Transport {
 public:
  enum class Mode { kTake, kHold, kRefuse };

  explicit TestTransport(FreeAt& free_at) : free_at_(free_at) {}

  TransportFacts facts() const override { return {.receive_credit_packets = 64}; }
  std::span<const Incoming> receive(TimeNs now) noexcept override {
    free_at_("receive");
    sent_in_turn_ = 0;
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
  std::size_t send_limit_bytes() const noexcept override {
    free_at_("send_limit_bytes");
    return Transport::send_limit_bytes();
  }
  std::size_t send(std::span<const Outgoing> datagrams, TimeNs now) noexcept override {
    free_at_("send");
    EXPECT_LE(datagrams.size(), kBurst);
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
    sent_in_turn_ += datagrams.size();
    most_in_turn = std::max(most_in_turn.load(), sent_in_turn_);
    held = false;
    return datagrams.size();
  }
  bool poll_path_event(PathEvent&) noexcept override {
    free_at_("poll_path_event");
    return false;
  }
  void wait(int, DurationNs) noexcept override {
    free_at_("wait");
    std::this_thread::sleep_for(1ms);
  }
  TransportCounters counters() const noexcept override {
    free_at_("counters");
    return {};
  }

  std::atomic<Mode> mode{Mode::kTake};
  std::atomic<bool> held{false};
  std::atomic<int> refusals{0};
  std::atomic<std::size_t> most_in_turn{0};

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

  FreeAt& free_at_;
  agg::Appliance appliance_{agg::ApplianceOptions{}};
  std::vector<std::vector<std::uint8_t>> replies_, arrived_;
  std::vector<Incoming> incoming_;
  std::size_t sent_in_turn_ = 0;
};

bool eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 20'000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest()
      : ProgressTest(std::make_unique<Session>(
            SessionOptions{.job_name = "p",
                           .world_size = 1,
                           .nonce = 1,
                           .path_datagram_bytes = 1472,
                           .stall_report_ns = 200 * kMillisecond},
            Layout::create({{"w", kElems, Dtype::kFloat32}, {"v", kElems, Dtype::kFloat32}}, 1024)
                .value(),
            monotonic_now())) {}
  explicit ProgressTest(std::unique_ptr<Session> session)
      : session_(*session), shared_(std::move(session), session_, session_) {
    auto transport = std::make_unique<TestTransport>(free_at_);
    transport_ = transport.get();
    std::vector<Progress::Line> lines;
    lines.push_back({session_, std::move(transport), kTurn});
    ProgressCallbacks callbacks{.tensor_done = [this](auto...) { free_at_("tensor_done"); },
                                .stalled = [this](auto...) { free_at_("stalled"); }};
    progress_ = std::make_unique<Progress>(shared_, std::move(lines), std::move(callbacks), Log(),
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
  FreeAt free_at_;
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

// Another line has its turn then.
TEST_F(ProgressTest, ALineSendsNoMoreThanItsTurn) {
  {
    const auto lock = shared_.mutex.lock();
    for (std::uint32_t tensor = 0; tensor < 2; ++tensor)
      ASSERT_TRUE(session_
                      .submit({.tensor = tensor, .input = input_.data(), .output = output_.data()},
                              monotonic_now())
                      .ok());
    shared_.wake();
  }
  EXPECT_TRUE(eventually([this] { return tensor_is_done(); }));
  EXPECT_EQ(transport_->most_in_turn, kTurn);
}

TEST_F(ProgressTest, TheLockIsFreeInEveryCallOfTheTransportEverySleepAndEveryCallback) {
  free_at_.watch(shared_.mutex);
  transport_->mode = TestTransport::Mode::kRefuse;  // nothing comes back: it stalls
  submit();
  const std::set<std::string> all{"receive", "send_limit_bytes", "send",    "poll_path_event",
                                  "wait",    "counters",         "stalled", "tensor_done"};
  EXPECT_TRUE(eventually([&] { return free_at_.places().contains("stalled"); }));
  transport_->mode = TestTransport::Mode::kTake;
  EXPECT_TRUE(eventually([&] { return free_at_.places() == all; }));
  EXPECT_EQ(free_at_.held(), std::set<std::string>());
}

// A call would last as long as a burst if the progress thread held the lock for all of it. So the
// thread lets waiting callers in after each datagram.
TEST(SessionMutex, ACallWaitsForOneDatagramAndNotForTheBurst) {
  SessionMutex mutex;
  std::atomic<bool> holds{false}, called{false};
  std::thread progress([&] {
    auto lock = mutex.lock_for_progress();
    holds = true;
    for (int i = 0; i < 5000 && !called; ++i) {  // a burst without end
      std::this_thread::sleep_for(1ms);
      mutex.give_way(lock);
    }
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_TRUE(called);
  });
  while (!holds) std::this_thread::yield();
  {
    const auto lock = mutex.lock();
    called = true;
  }
  progress.join();
}

}  // namespace
}  // namespace sluice::client

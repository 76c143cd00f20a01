// Appliances inside a worker: one that it serves by UDP, on the loopback interface, and one for
// itself.
#include "client/transport/inproc/served.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "aggregator/wire/data.h"
#include "aggregator/wire/packet.h"
#include "client/clock.h"
#include "client/fork.h"
#include "client/job.h"
#include "client/transport/inproc/hub.h"

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kHost = "127.0.2.20";
constexpr std::uint16_t kPort = 17'700;
constexpr std::int32_t kLongMs = 20'000;

std::shared_ptr<Served> serve(DurationNs linger_ns = 4 * kSecond, const Log& log = Log()) {
  auto served =
      Served::open({.host = kHost, .port = kPort, .secret = "s", .linger_ns = linger_ns}, log);
  EXPECT_TRUE(served.ok()) << served.status().message();
  return served.ok() ? std::move(served).value() : nullptr;
}

Status submit(Job& job, std::vector<float>& values) {
  const Submission submission{.input = values.data(), .output = values.data()};
  return job.submit({&submission, 1});
}

Status join(std::uint16_t rank, std::unique_ptr<Job>& job, const std::string& secret = "s") {
  JoinRequest request;
  request.address = std::string("udp://") + kHost + ":" + std::to_string(kPort);
  request.tensors.push_back({.name = "t", .elem_count = 50'000});
  request.session.job_name = "served";
  request.session.run_id = 1;
  request.session.rank = Rank{rank};
  request.session.world_size = 2;
  request.session.secret = secret;
  return Job::join(std::move(request), job);
}

// From `host`, or from where the kernel likes.
void send(std::uint16_t port, std::vector<std::uint8_t> bytes, const char* host = nullptr) {
  const OwnedFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (host != nullptr) {
    sockaddr_in from{.sin_family = AF_INET};
    ::inet_pton(AF_INET, host, &from.sin_addr);
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
  }
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(port)};
  ::inet_pton(AF_INET, kHost, &to.sin_addr);
  ASSERT_EQ(::sendto(fd.get(), bytes.data(), bytes.size(), 0,
                     reinterpret_cast<const sockaddr*>(&to), sizeof to),
            static_cast<ssize_t>(bytes.size()));
}

template <class Condition>
bool holds_soon(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return condition();
}

TEST(Served, SumsForItsMembersAndCountsWhatStrangersSend) {
  const std::shared_ptr<Served> served = serve();
  ASSERT_NE(served, nullptr);
  std::vector<std::thread> workers;
  for (std::uint16_t rank = 0; rank < 2; ++rank)
    workers.emplace_back([rank] {
      std::unique_ptr<Job> job;
      const Status joined = join(rank, job);
      ASSERT_TRUE(joined.ok()) << joined.message();
      std::vector<float> values(50'000);
      for (std::uint32_t step = 1; step <= 20; ++step) {
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(i % 1000 + step + rank);
        ASSERT_TRUE(submit(*job, values).ok());
        Step done = 0;
        ASSERT_TRUE(job->wait_step(kLongMs, done).ok());
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], static_cast<float>(i % 1000 + step) + 0.5f);
      }
    });
  for (const std::uint16_t port : {kPort, static_cast<std::uint16_t>(kPort + 1)}) {
    send(port, {});
    send(port, std::vector<std::uint8_t>(100, 0xa5));
    send(port, std::vector<std::uint8_t>(60'000, 0x5a));
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_TRUE(holds_soon([&] {
    std::uint64_t malformed = 0;
    for (std::size_t index = 0; index < kVerdictCount; ++index)
      if (use_of(static_cast<Verdict>(index)) == PacketUse::kMalformed)
        malformed += served->verdicts(static_cast<Verdict>(index));
    return malformed == 6;
  }));
  EXPECT_GE(served->verdicts(Verdict::kBadMagic), 2u);
  EXPECT_EQ(served->verdicts(Verdict::kLeave), 2u);
}

TEST(Served, HearsOneSenderAsOftenAsItsShareAllowsAndOthersMeanwhile) {
  const std::shared_ptr<Served> served = serve();
  ASSERT_NE(served, nullptr);
  const auto flood = [&] {
    const std::uint64_t before = served->flooded();
    return holds_soon([&] {
      for (int i = 0; i < 200; ++i) send(kPort, std::vector<std::uint8_t>(100, 0xa5), "127.0.2.99");
      return served->flooded() > before;
    });
  };
  ASSERT_TRUE(flood());
  std::unique_ptr<Job> first, second;
  Status joined;
  std::thread other([&] { joined = join(0, first); });
  EXPECT_TRUE(join(1, second).ok());
  other.join();
  EXPECT_TRUE(joined.ok()) << joined.message();
  ASSERT_TRUE(flood());
  std::vector<float> values[2] = {std::vector<float>(50'000, 1), std::vector<float>(50'000, 3)};
  Job* const jobs[] = {first.get(), second.get()};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(submit(*jobs[i], values[i]).ok());
  for (int i = 0; i < 2; ++i) {
    Step done = 0;
    ASSERT_TRUE(jobs[i]->wait_step(kLongMs, done).ok());
    EXPECT_EQ(values[i], std::vector<float>(50'000, 2));
  }
}

// What a member sent to the data port may be read after its leave, which came to the other one.
TEST(Served, CallsNoMemberOfAJobThatIsOverAStranger) {
  std::string told;
  const auto write = [](void* user, sluice_log_level, const char* text) {
    *static_cast<std::string*>(user) += text;
  };
  std::shared_ptr<Served> served = serve(kSecond, Log({.write = write, .user = &told}));
  ASSERT_NE(served, nullptr);
  std::unique_ptr<Job> jobs[2];
  auto other = std::async(std::launch::async, [&] { return join(1, jobs[1]); });
  ASSERT_TRUE(join(0, jobs[0]).ok());
  ASSERT_TRUE(other.get().ok());
  for (auto& job : jobs) job.reset();
  ASSERT_TRUE(holds_soon([&] { return served->verdicts(Verdict::kLeave) == 2; }));
  const auto send_credit = [](std::uint16_t job) {
    std::vector<std::uint8_t> packet(kMaxDatagramBytes);
    packet.resize(
        wire::encode(std::span(packet), {.job = job, .rank = 1, .cookie = 5}, wire::Credit{}));
    send(kPort + 1, packet);
  };
  // Until its memory is freed the first job of an appliance, 1, knows the cookie to be wrong.
  const auto answered = [&] {
    return served->verdicts(Verdict::kBadCookie) + served->verdicts(Verdict::kUnknownJob);
  };
  std::uint64_t sent = 0;
  while (sent < 500 && served->verdicts(Verdict::kUnknownJob) == 0) {
    send_credit(1);
    ++sent;
    ASSERT_TRUE(holds_soon([&] { return answered() == sent; }));
  }
  for (int i = 0; i < 3; ++i) send_credit(9);
  ASSERT_TRUE(holds_soon([&] { return answered() == sent + 3; }));
  served.reset();
  EXPECT_THAT(told, HasSubstr(" 3 unknown_job"));
}

TEST(Served, IsOneForAllJobsOfAProcess) {
  const std::shared_ptr<Served> served = serve();
  EXPECT_EQ(serve(), served);
}

TEST(Served, AdmitsWhoKnowsTheSecretAlone) {
  const std::shared_ptr<Served> served = serve();
  ASSERT_NE(served, nullptr);
  std::unique_ptr<Job> job;
  EXPECT_EQ(join(0, job, "another").code(), StatusCode::kRefused);
  EXPECT_GE(served->verdicts(Verdict::kJoinRefused), 1u);
}

TEST(Served, SaysWhyItCannotListen) {
  const std::shared_ptr<Served> served = serve();
  const auto half = Served::open({.host = kHost, .port = kPort - 1}, Log());
  ASSERT_FALSE(half.ok());
  EXPECT_THAT(half.status().message(), AllOf(HasSubstr("127.0.2.20:17700"), HasSubstr("in use"),
                                             HasSubstr("of this rank?"), HasSubstr("file")));
  const auto foreign = Served::open({.host = "192.0.2.1", .port = kPort}, Log());
  ASSERT_FALSE(foreign.ok());
  EXPECT_THAT(foreign.status().message(),
              AllOf(HasSubstr("192.0.2.1:17700"), HasSubstr("address of this machine")));
}

constexpr DurationNs kLinger = 20 * kSecond;

class Lingering : public ::testing::Test {
 protected:
  void open() {
    served_ = serve(kLinger);
    ASSERT_NE(served_, nullptr);
    auto other = std::async(std::launch::async, [&] { return join(1, jobs_[1]); });
    ASSERT_TRUE(join(0, jobs_[0]).ok());
    ASSERT_TRUE(other.get().ok());
  }
  DurationNs close() {
    const TimeNs start = monotonic_now();
    served_.reset();
    return monotonic_now() - start;
  }

  std::shared_ptr<Served> served_;
  std::unique_ptr<Job> jobs_[2];
};

TEST_F(Lingering, EndsWhenItsMembersAreIdle) {
  open();
  const DurationNs took_ns = close();
  EXPECT_GE(took_ns, 400 * kMillisecond);
  EXPECT_LT(took_ns, kLinger);
}

// Rank 0 has gone on a step alone and asks for it; when it has left nobody is waited for. A machine
// that stalls asks for nothing either.
TEST_F(Lingering, GoesOnForMembersThatAskAndForNobodyElse) {
  std::vector<float> values[2] = {std::vector<float>(50'000, 1), std::vector<float>(50'000, 1)};
  bool did = false;
  for (int attempt = 0; attempt < 3 && !did; ++attempt) {
    open();
    const auto contribute = [&](int rank) { return submit(*jobs_[rank], values[rank]); };
    EXPECT_TRUE(contribute(0).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    served_->end();
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    EXPECT_TRUE(contribute(1).ok());
    bool summed = true;
    for (const auto& job : jobs_) {
      Step done = 0;
      summed &= job->wait_step(kLongMs, done).ok();
    }
    for (auto& job : jobs_) job.reset();
    did = close() <= 400 * kMillisecond && summed;
  }
  EXPECT_TRUE(did);
}

// Its parent's threads may hold the mutex of the parent's, and are not there to let go of it.
TEST(Inproc, TheChildOfAForkHasAnApplianceOfItsOwn) {
  const std::shared_ptr<Hub> parents = Hub::find("forked", "");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(Hub::find("forked", "") != parents ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Hub::find("forked", ""), parents);
}

}  // namespace
}  // namespace sluice::client

#include "dataplane/ops/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "dataplane/ops/log.h"
#include "dataplane/ops/pulse.h"
#include "dataplane/ops/service_manager.h"

namespace sluice::dataplane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Readiness, APortThatIsDownIsNamed) {
  PortCounters up, down;
  up.link_up.set(1);
  const CounterBlocks blocks{.ports = {{"rack1", {&up}}, {"rack2", {&down}}}};
  EXPECT_THAT(why_not_ready(blocks, false), ElementsAre("port \"rack2\" is down"));
  down.link_up.set(1);
  EXPECT_THAT(why_not_ready(blocks, false), IsEmpty());
}

TEST(Readiness, APortThatWaitsForAPeerIsReadyForOne) {
  PortCounters down;
  const CounterBlocks blocks{.ports = {{"guest", {&down}, true}}};
  EXPECT_THAT(why_not_ready(blocks, false), IsEmpty());
}

TEST(Readiness, ADrainedBoxSaysSoBesideItsPorts) {
  PortCounters down;
  const CounterBlocks blocks{.ports = {{"rack2", {&down}}}};
  EXPECT_EQ(join_reasons(why_not_ready(blocks, true)),
            "the box is drained: it takes no new job; port \"rack2\" is down");
}

TEST(Readiness, TheProcessStartedBeforeNowAndAfterTheMachine) {
  timespec now{}, up{};
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &up);
  EXPECT_LE(process_start_time_s(), static_cast<double>(now.tv_sec + 1));
  EXPECT_GE(process_start_time_s(), static_cast<double>(now.tv_sec - up.tv_sec - 2));
}

TEST(PulseTest, BeatsWhileEveryLcoreMakesRoundsAndTheControlThreadAnswers) {
  LcoreCounters first, second;
  bool answers = true;
  Pulse pulse({.lcores = {{&first, nullptr}, {&second, nullptr}}}, [&] { return answers; });
  EXPECT_FALSE(pulse.beats());
  first.loops.add(1);
  second.loops.add(7);
  EXPECT_TRUE(pulse.beats());
  first.loops.add(1);
  EXPECT_FALSE(pulse.beats()) << "the second stands";
  first.loops.add(1);
  second.loops.add(1);
  answers = false;
  EXPECT_FALSE(pulse.beats());
}

// A socket as the service manager's, and what came to it.
class Manager : public testing::Test {
 protected:
  void SetUp() override {
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    name.copy(address.sun_path, name.size());
    address.sun_path[0] = '\0';
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
              0);
  }
  void TearDown() override { close(fd); }
  std::string next() {
    char text[512];
    const ssize_t bytes = recv(fd, text, sizeof text, 0);
    return bytes < 0 ? "" : std::string(text, static_cast<std::size_t>(bytes));
  }
  const std::string name = "@sluice-notify-" + std::to_string(getpid());
  int fd = -1;
};

TEST_F(Manager, HearsEachStateAsOneDatagram) {
  const ServiceManager manager(name, "30000000");
  manager.ready("ready: 2 ports");
  EXPECT_EQ(next(), "READY=1\nSTATUS=ready: 2 ports");
  manager.status("not ready: port \"a\" is down");
  EXPECT_EQ(next(), "STATUS=not ready: port \"a\" is down");
  manager.alive();
  EXPECT_EQ(next(), "WATCHDOG=1");
  manager.reloading();
  EXPECT_THAT(next(), testing::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  manager.stopping();
  EXPECT_THAT(next(), HasSubstr("STOPPING=1"));
  EXPECT_EQ(manager.alive_every(), std::chrono::seconds(15));
}

TEST_F(Manager, IsNotNeeded) {
  const ServiceManager nobody("", "30000000");
  nobody.ready("ready");
  EXPECT_FALSE(nobody.listens());
  EXPECT_EQ(nobody.alive_every(), std::chrono::seconds(0));
  ServiceManager("/no/such/socket", "").ready("ready");
  EXPECT_EQ(next(), "");
}

TEST(Log, TheJournalIsTheStreamThatItsVariableNames) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct stat info;
  ASSERT_EQ(fstat(ends[1], &info), 0);
  const std::string own = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  const std::string other = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino + 1);
  EXPECT_TRUE(is_journal(ends[1], own.c_str()));
  EXPECT_FALSE(is_journal(ends[1], other.c_str()));
  EXPECT_FALSE(is_journal(ends[1], "journal"));
  EXPECT_FALSE(is_journal(ends[1], nullptr));
  close(ends[0]);
  close(ends[1]);
}

TEST(Log, ALevelHasTheNameOfTheSetting) {
  EXPECT_TRUE(set_log_level("debug"));
  EXPECT_EQ(log_level(), "debug");
  EXPECT_FALSE(set_log_level("loud"));
  EXPECT_EQ(log_level(), "debug");
  EXPECT_TRUE(set_log_level("warning"));
  EXPECT_EQ(log_level(), "warning");
}

}  // namespace
}  // namespace sluice::dataplane

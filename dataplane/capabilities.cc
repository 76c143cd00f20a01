#include "dataplane/capabilities.h"

#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace sluice::dataplane {
namespace {

constexpr auto kRound = std::chrono::milliseconds(1);
constexpr int kRounds = 10'000;
CapabilitySet kept;  // written before the first signal

// In each thread: libcap and libcap-ng change the calling thread alone, and are not for handlers.
void give_up(int) {
  const int error = errno;
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (syscall(SYS_capget, &header, data) == 0) {
    for (int half = 0; half < _LINUX_CAPABILITY_U32S_3; ++half) {
      const auto keep = static_cast<std::uint32_t>(kept >> (32 * half));
      data[half].permitted &= keep;
      data[half].effective &= keep;
      data[half].inheritable = 0;  // ambient ones go with them
    }
    syscall(SYS_capset, &header, data);
  }
  errno = error;
}

// The threads that still have a capability too many, or may gain one.
std::vector<pid_t> threads_to_tell() {
  std::vector<pid_t> found;
  std::error_code gone;  // a thread may end meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream status(task.path() / "status");
    bool more = false;
    for (std::string line; std::getline(status, line);) {
      for (const char* set : {"CapInh:", "CapPrm:", "CapAmb:"})
        more |=
            line.starts_with(set) && (std::strtoull(line.c_str() + 7, nullptr, 16) & ~kept) != 0;
      more |= line == "NoNewPrivs:\t0";
    }
    if (more) found.push_back(std::atoi(task.path().filename().c_str()));
  }
  return found;
}

}  // namespace

Status keep_capabilities(CapabilitySet keep) {
  kept = keep;
  struct sigaction action {};
  action.sa_handler = give_up;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  std::vector<pid_t> threads = threads_to_tell();
  for (int round = 0; !threads.empty() && round < kRounds; ++round) {
    for (const pid_t thread : threads) syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
    std::this_thread::sleep_for(kRound);
    threads = threads_to_tell();
  }
  action.sa_handler = SIG_IGN;
  sigaction(SIGUSR2, &action, nullptr);
  if (threads.empty()) return Status();
  return Status(StatusCode::kIoError,
                std::to_string(threads.size()) +
                    " threads keep capabilities that are no longer needed; does a seccomp filter "
                    "forbid capset()? Allow it: giving up is all that it is used for");
}

}  // namespace sluice::dataplane

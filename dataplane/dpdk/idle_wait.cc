#include "dataplane/dpdk/idle_wait.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "dataplane/dpdk/port.h"

namespace sluice::dataplane {
namespace {

constexpr unsigned long kTimerSlackNs = 1000;  // a sleep of 10 us should not take 60
constexpr std::uint64_t kSliceNs = 100'000;

// A packet socket without a protocol, as DPDK uses for questions, receives nothing.
bool receives_packets(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return false;
  if (domain == AF_XDP) return true;
  if (domain != AF_PACKET) return false;
  sockaddr_ll name{};
  length = sizeof name;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
         name.sll_protocol != 0;
}

// tap's driver reads a queue only after a signal has told of a packet. The kernel delivers the
// signal to any thread unless one is named.
void take_signals_of(int fd) {
  const f_owner_ex owner{F_OWNER_TID, gettid()};
  fcntl(fd, F_SETOWN_EX, &owner);
}

void leave_interrupts(const Lane& lane, int interrupts) {
  rte_eth_dev_rx_intr_ctl_q(lane.port().device(), lane.queue(), interrupts, RTE_INTR_EVENT_DEL,
                            nullptr);
}

}  // namespace

std::vector<int> packet_sockets() {
  std::vector<int> found;
  DIR* open_files = opendir("/proc/self/fd");
  if (open_files == nullptr) return found;
  while (const dirent* entry = readdir(open_files)) {
    const int fd = std::atoi(entry->d_name);  // "." becomes 0, which is no socket of ours
    if (receives_packets(fd)) found.push_back(fd);
  }
  closedir(open_files);
  return found;
}

IdleWait::IdleWait() {
  sockets_.push_back({eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), POLLIN, 0});
  sockets_.push_back({epoll_create1(EPOLL_CLOEXEC), POLLIN, 0});
}

IdleWait::~IdleWait() {
  for (const Queue& queue : queues_) leave_interrupts(*queue.lane, interrupts());
  close(interrupts());
  close(bell().fd);
}

void IdleWait::watch(Lane& lane) {
  const Port& port = lane.port();
  switch (port.plan().woken_by) {
    case WokenBy::kDescriptor:
      sockets_.push_back({port.wake_descriptor(lane.queue()), POLLIN, 0});
      take_signals_of(sockets_.back().fd);
      return;
    case WokenBy::kInterrupt:
      if (rte_eth_dev_rx_intr_ctl_q(port.device(), lane.queue(), interrupts(), RTE_INTR_EVENT_ADD,
                                    &lane) != 0) {
        ++silent_;
        return;
      }
      ++on_trial_;
      queues_.push_back({&lane, 0, {}});
      return;
    default: ++silent_;
  }
}

// Takes the interrupts that the queues have raised, so that they do not end the next wait.
void IdleWait::take_interrupts() noexcept {
  std::array<rte_epoll_event, config::kMaxPorts> events;
  const int count = rte_epoll_wait(interrupts(), events.data(), static_cast<int>(events.size()), 0);
  for (int at = 0; at < count; ++at) {
    const auto queue = std::ranges::find(queues_, events[at].epdata.data, &Queue::lane);
    if (queue == queues_.end() || queue->trial.state() == InterruptTrial::State::kCome) continue;
    queue->trial.note_interrupt();
    --on_trial_;
  }
}

void IdleWait::arm() noexcept {
  take_interrupts();  // interrupts since the last wait
  rested_ = false;
  for (Queue& queue : queues_) {
    queue.packets = queue.lane->counters().rx_packets.read();
    queue.lane->port().arm(queue.lane->queue(), true);
  }
  // A guest writes its frame and then reads the arming; this thread arms and then reads the ring.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  armed_ = true;
}

void IdleWait::disarm() noexcept {
  if (!std::exchange(armed_, false)) return;
  for (const Queue& queue : queues_) queue.lane->port().arm(queue.lane->queue(), false);
}

void IdleWait::note_work() noexcept {
  disarm();
  if (!std::exchange(rested_, false)) return;
  std::erase_if(queues_, [this](Queue& queue) {
    if (queue.lane->counters().rx_packets.read() == queue.packets) return false;
    queue.trial.note_missed();
    if (queue.trial.state() != InterruptTrial::State::kMissing) return false;
    const Lane& lane = *queue.lane;
    leave_interrupts(lane, interrupts());
    --on_trial_;
    ++silent_;
    spdlog::warn(
        "port \"{}\", queue {}: no receive interrupt came with {} packets; its worker looks by the "
        "clock",
        lane.port().config().name, lane.queue(), InterruptTrial::kMostMissed);
    return true;
  });
}

void IdleWait::wake() noexcept {
  if (!waiting_.exchange(false)) return;
  const std::uint64_t one = 1;
  (void)!write(bell().fd, &one, sizeof one);
}

bool IdleWait::rest(const IdlePolicy::Decision& decision, TimeNs now) noexcept {
  if (decision.action == IdlePolicy::Action::kNap) {
    const timespec end{decision.until / kSecond, decision.until % kSecond};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr);
    return false;
  }
  const timespec most{0, std::max<DurationNs>(decision.until - now, 0)};
  waiting_.store(true, std::memory_order_seq_cst);
  const int ready = ppoll(sockets_.data(), sockets_.size(), &most, nullptr);
  waiting_.store(false, std::memory_order_relaxed);
  rested_ = ready == 0 && armed_;
  disarm();
  if (ready <= 0) return false;
  if (on_trial_ != 0 && sockets_[1].revents != 0) take_interrupts();
  for (pollfd& socket : sockets_) {
    // An interface that went down leaves an error that would end every wait until it is read. The
    // error of a removed tap interface can't be read away.
    int error = 0;
    socklen_t length = sizeof error;
    if ((socket.revents & POLLERR) != 0 &&
        getsockopt(socket.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
      socket.fd = -1;
  }
  if ((bell().revents & POLLIN) == 0) return true;
  std::uint64_t calls;
  (void)!read(bell().fd, &calls, sizeof calls);
  return ready > 1;
}

void ask_for_short_slices() noexcept {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  // The kernel's struct sched_attr, which the C library does not declare. Kernels before 6.12 take
  // no slice here and change nothing.
  struct {
    std::uint32_t size = sizeof(*this);
    std::uint32_t policy = 0;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
  } attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = kSliceNs;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace sluice::dataplane

// The DPDK side of the client: one virtio-user device a port, frames in and frames out.
//
// The only file of the client that includes rte_*. Built as libsluice_dpdk.so, which carries its
// own copy of the few DPDK libraries that it needs: the importing process needs none.
#include "client/transport/dpdk/plugin.h"

#include <pthread.h>
#include <rte_alarm.h>
#include <rte_bus_vdev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

// Deep, because a worker that shares its core may not run for milliseconds while results arrive;
// with 1,024 entries and eight threads a core, a third of the results had to be asked for again.
constexpr std::uint16_t kReceiveEntries = 4096;
constexpr std::uint16_t kTransmitEntries = 1024;
constexpr std::uint16_t kBurst = 64;
constexpr std::uint32_t kVirtioHeaderBytes = 12;
constexpr std::uint32_t kBuffers = kReceiveEntries + kTransmitEntries + 4 * kBurst;
// For all jobs of the process. A page is taken when it is first used. A job needs 13 MB, with jumbo
// frames 50 MB.
constexpr const char* kMemoryMegabytes = "256";

using LogFunction = void (*)(std::uint32_t level, const char* text);

// A process can have only one DPDK.
struct Environment {
  std::mutex mutex;
  bool tried = false;
  std::string failure;  // empty: it runs
  std::atomic<LogFunction> log{nullptr};
  std::atomic<std::uint32_t> next_device{0};
};

Environment& environment() {
  static Environment instance;
  return instance;
}

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

// DPDK's first error message since an open began, which is the most useful part of an error.
struct Complaint {
  std::mutex mutex;
  std::string text;
};
Complaint& complaint() {
  static Complaint instance;
  return instance;
}

void forget_complaint() {
  const std::lock_guard lock(complaint().mutex);
  complaint().text.clear();
}

// DPDK writes to a socket whose other end may be gone, on the caller's thread: the signal that this
// raises must not end the process.
class SigpipeGuard {
 public:
  SigpipeGuard() noexcept {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeGuard() {
    const timespec no_wait{};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &no_wait);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

ssize_t write_log(void*, const char* bytes, size_t count) {
  std::string text(bytes, count);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const int level = rte_log_cur_msg_loglevel();
  if (level >= 1 && level <= static_cast<int>(RTE_LOG_ERR)) {
    const std::lock_guard lock(complaint().mutex);
    if (complaint().text.empty()) complaint().text = text;
  }
  if (const LogFunction log = environment().log.load()) {
    log(level < 1 ? RTE_LOG_INFO : static_cast<std::uint32_t>(level), text.c_str());
  }
  return static_cast<ssize_t>(count);
}

std::string with_complaint(std::string text) {
  const std::lock_guard lock(complaint().mutex);
  if (!complaint().text.empty()) text += " (DPDK says: " + complaint().text + ")";
  return text;
}

// Every processor that this process may use, as EAL writes it: its one lcore floats over them.
std::string lcores_argument() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  std::string list = "0@(";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) list.append(std::to_string(cpu)).append(",");
  }
  list.back() = ')';
  return list;
}

int initialise() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // DPDK's own threads inherit this
  cookie_io_functions_t functions{};
  functions.write = write_log;
  std::FILE* const stream = ::fopencookie(nullptr, "w", functions);
  if (stream != nullptr) {
    std::setvbuf(stream, nullptr, _IOLBF, 512);
    rte_openlog_stream(stream);
  }
  std::string lcores = lcores_argument();
  std::vector<std::string> words{"sluice",         "--no-huge",      "--no-shconf",
                                 "--no-pci",       "--no-telemetry", "-m",
                                 kMemoryMegabytes, "--lcores",       lcores};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return rte_eal_init(static_cast<int>(arguments.size()), arguments.data());
}

// Starts DPDK once. False: thread_error() says why.
bool ensure_environment() {
  Environment& env = environment();
  if (!env.tried) {
    env.tried = true;
    int rc = -1;
    int error = 0;
    std::thread thread([&] {
      rc = initialise();
      error = rte_errno;
    });
    thread.join();
    if (rc < 0) {
      env.failure = with_complaint(std::string("DPDK cannot start: ") + rte_strerror(error));
    }
  }
  if (env.failure.empty()) return true;
  thread_error() = env.failure;
  return false;
}

// Does `work` on DPDK's interrupt thread, and returns when it is done. A port that stops takes the
// driver's callback off its socket. DPDK 22.11 refuses that while the interrupt thread is in the
// callback; the driver closes the socket all the same, and DPDK ends the process when it waits for
// the closed socket next. On that thread no callback is under way.
void on_interrupt_thread(const std::function<void()>& work) {
  using Task = std::packaged_task<void()>;
  auto task = std::make_unique<Task>(work);
  std::future<void> done = task->get_future();
  const auto run = [](void* held) { (*std::unique_ptr<Task>(static_cast<Task*>(held)))(); };
  if (rte_eal_alarm_set(1, run, task.get()) == 0)
    (void)task.release();
  else
    (*task)();
  done.wait();
}

}  // namespace

struct sluice_dpdk_port {
  std::string device;
  std::uint16_t id = 0;
  bool probed = false;
  bool started = false;
  rte_mempool* pool = nullptr;
  int rx_fd = -1;

  ~sluice_dpdk_port() {
    if (probed)
      on_interrupt_thread([this] {
        if (started) rte_eth_dev_stop(id);
        rte_eth_dev_close(id);
        rte_vdev_uninit(device.c_str());
      });
    rte_mempool_free(pool);
  }
};

namespace {

bool fail(const std::string& text, const char* hint = "; has the appliance ended?") {
  thread_error() = with_complaint(text) + hint;
  return false;
}

bool probe(sluice_dpdk_port& port, const sluice_dpdk_options& options) {
  const std::uint32_t number = environment().next_device.fetch_add(1);
  port.device = "net_virtio_user" + std::to_string(number);
  std::array<char, 18> mac{};
  std::snprintf(mac.data(), mac.size(), "%02x:%02x:%02x:%02x:%02x:%02x", options.mac[0],
                options.mac[1], options.mac[2], options.mac[3], options.mac[4], options.mac[5]);
  const std::string arguments = std::string("path=") + options.socket_path + ",mac=" + mac.data() +
                                ",queue_size=" + std::to_string(kReceiveEntries) +
                                ",packed_vq=1,mrg_rxbuf=0,in_order=1";
  if (rte_vdev_init(port.device.c_str(), arguments.c_str()) != 0) {
    return fail("cannot connect to the vhost-user socket");
  }
  port.probed = true;
  return rte_eth_dev_get_port_by_name(port.device.c_str(), &port.id) == 0 ||
         fail("the device has no port");
}

bool configure(sluice_dpdk_port& port, const sluice_dpdk_options& options) {
  // The driver wants room for a VLAN tag and its own header too, or the queue is refused.
  const std::uint32_t room = RTE_PKTMBUF_HEADROOM + RTE_ETHER_HDR_LEN + RTE_VLAN_HLEN +
                             kVirtioHeaderBytes + options.mtu_bytes;
  const auto buffer_bytes =
      static_cast<std::uint16_t>(std::max<std::uint32_t>(room, RTE_MBUF_DEFAULT_BUF_SIZE));
  port.pool = rte_pktmbuf_pool_create((port.device + "_pool").c_str(), kBuffers, 0, 0, buffer_bytes,
                                      SOCKET_ID_ANY);
  if (port.pool == nullptr)
    return fail("no memory for packet buffers: all vhost-user sockets of a process share " +
                    std::string(kMemoryMegabytes) + " MB, and one with mtu " +
                    std::to_string(options.mtu_bytes) + " needs " +
                    std::to_string(kBuffers * (buffer_bytes + sizeof(rte_mbuf)) >> 20),
                "; use a smaller mtu, one socket for several jobs, or more processes");
  rte_eth_conf conf{};
  conf.rxmode.mtu = options.mtu_bytes;
  conf.intr_conf.rxq = 1;
  int rc = rte_eth_dev_configure(port.id, 1, 1, &conf);
  if (rc != 0) {  // without receive interrupts the port is polled
    conf.intr_conf.rxq = 0;
    rc = rte_eth_dev_configure(port.id, 1, 1, &conf);
  }
  if (rc != 0) return fail(std::string("configure: ") + rte_strerror(-rc));
  rc = rte_eth_rx_queue_setup(port.id, 0, kReceiveEntries, SOCKET_ID_ANY, nullptr, port.pool);
  if (rc != 0) return fail(std::string("receive queue: ") + rte_strerror(-rc));
  rc = rte_eth_tx_queue_setup(port.id, 0, kTransmitEntries, SOCKET_ID_ANY, nullptr);
  if (rc != 0) return fail(std::string("transmit queue: ") + rte_strerror(-rc));
  rc = rte_eth_dev_start(port.id);
  if (rc != 0) return fail(std::string("start: ") + rte_strerror(-rc));
  port.started = true;
  if (conf.intr_conf.rxq != 0) port.rx_fd = rte_eth_dev_rx_intr_ctl_q_get_fd(port.id, 0);
  return true;
}

sluice_dpdk_port* open_port(const sluice_dpdk_options* options) {
  try {
    const std::lock_guard lock(environment().mutex);
    const SigpipeGuard guard;
    forget_complaint();
    if (environment().log.load() == nullptr) environment().log = options->log;
    if (!ensure_environment()) return nullptr;
    auto port = std::make_unique<sluice_dpdk_port>();
    if (!probe(*port, *options) || !configure(*port, *options)) return nullptr;
    return port.release();
  } catch (const std::exception& error) {
    thread_error() = error.what();
    return nullptr;
  }
}

void close_port(sluice_dpdk_port* port) {
  const std::lock_guard lock(environment().mutex);
  const SigpipeGuard guard;
  delete port;
}

const char* error_text() { return thread_error().c_str(); }

std::uint32_t receive_capacity(const sluice_dpdk_port*) { return kReceiveEntries; }

std::uint32_t rx_burst(sluice_dpdk_port* port, sluice_dpdk_frame* frames, std::uint32_t count) {
  std::array<rte_mbuf*, kBurst> mbufs;
  const auto wanted = static_cast<std::uint16_t>(std::min<std::uint32_t>(count, kBurst));
  const std::uint16_t received = rte_eth_rx_burst(port->id, 0, mbufs.data(), wanted);
  for (std::uint16_t i = 0; i < received; ++i) {
    frames[i] = {rte_pktmbuf_mtod(mbufs[i], std::uint8_t*), rte_pktmbuf_data_len(mbufs[i]), 0,
                 nullptr, mbufs[i]};
  }
  return received;
}

void give_back(sluice_dpdk_port*, const sluice_dpdk_frame* frames, std::uint32_t count) {
  std::array<rte_mbuf*, kBurst> mbufs;
  for (std::uint32_t first = 0; first < count; first += kBurst) {
    const std::uint32_t part = std::min<std::uint32_t>(count - first, kBurst);
    for (std::uint32_t i = 0; i < part; ++i)
      mbufs[i] = static_cast<rte_mbuf*>(frames[first + i].buffer);
    rte_pktmbuf_free_bulk(mbufs.data(), part);
  }
}

std::uint32_t tx_burst(sluice_dpdk_port* port, const sluice_dpdk_frame* frames,
                       std::uint32_t count) {
  std::array<rte_mbuf*, kBurst> mbufs;
  const auto wanted = static_cast<std::uint16_t>(std::min<std::uint32_t>(count, kBurst));
  if (wanted == 0 || rte_pktmbuf_alloc_bulk(port->pool, mbufs.data(), wanted) != 0) {
    return 0;
  }
  for (std::uint16_t i = 0; i < wanted; ++i) {
    // Never null: a frame fits the MTU for which the buffers were sized.
    const sluice_dpdk_frame& frame = frames[i];
    char* const room =
        rte_pktmbuf_append(mbufs[i], static_cast<std::uint16_t>(frame.bytes + frame.tail_bytes));
    std::memcpy(room, frame.data, frame.bytes);
    if (frame.tail_bytes != 0) std::memcpy(room + frame.bytes, frame.tail, frame.tail_bytes);
  }
  const std::uint16_t sent = rte_eth_tx_burst(port->id, 0, mbufs.data(), wanted);
  if (sent < wanted) rte_pktmbuf_free_bulk(&mbufs[sent], wanted - sent);
  return sent;
}

int link_up(sluice_dpdk_port* port) {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(port->id, &link) != 0 || link.link_status == RTE_ETH_LINK_UP;
}

int rx_fd(sluice_dpdk_port* port) { return port->rx_fd; }

void arm(sluice_dpdk_port* port, int armed) {
  if (port->rx_fd < 0) return;
  if (armed != 0) {
    rte_eth_dev_rx_intr_enable(port->id, 0);
    return;
  }
  rte_eth_dev_rx_intr_disable(port->id, 0);
  std::uint64_t drained = 0;  // the descriptor is a non-blocking eventfd
  [[maybe_unused]] const ssize_t bytes = ::read(port->rx_fd, &drained, sizeof drained);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_dpdk_plugin sluice_dpdk_plugin = {
    .abi = SLUICE_DPDK_PLUGIN_ABI,
    .open = open_port,
    .close = close_port,
    .error = error_text,
    .receive_capacity = receive_capacity,
    .rx_burst = rx_burst,
    .give_back = give_back,
    .tx_burst = tx_burst,
    .link_up = link_up,
    .rx_fd = rx_fd,
    .arm = arm,
};

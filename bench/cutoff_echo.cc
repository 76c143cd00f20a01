// A bare echo on a vhost-user socket, for the cutoff bench: what comes in goes out, one core, busy.
// The same driver, ring sizes and burst as sluiced's vhost-user ports, and nothing else.
//
//   bench_cutoff_echo SOCKET CPU      (ends on SIGTERM)
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_pause.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::uint16_t kDescriptors = 1024;
constexpr std::uint16_t kBurst = 32;
constexpr unsigned kBuffers = 8192;

volatile sig_atomic_t ended = 0;

bool start_environment(const std::string& socket, const std::string& cpu) {
  std::vector<std::string> words{"echo",
                                 "--lcores=0@" + cpu,
                                 "--no-huge",
                                 "-m",
                                 "128",
                                 "--no-pci",
                                 "--no-shconf",
                                 "--no-telemetry",
                                 "--log-level=*:error",
                                 "--vdev=net_vhost0,iface=" + socket + ",queues=1"};
  std::vector<char*> arguments;
  arguments.reserve(words.size());
  for (std::string& word : words) arguments.push_back(word.data());
  return rte_eal_init(static_cast<int>(arguments.size()), arguments.data()) >= 0;
}

bool start_port(std::uint16_t port) {
  rte_mempool* pool =
      rte_pktmbuf_pool_create("echo", kBuffers, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
  const rte_eth_conf config{};
  const auto socket = static_cast<unsigned>(SOCKET_ID_ANY);
  return pool != nullptr && rte_eth_dev_configure(port, 1, 1, &config) == 0 &&
         rte_eth_rx_queue_setup(port, 0, kDescriptors, socket, nullptr, pool) == 0 &&
         rte_eth_tx_queue_setup(port, 0, kDescriptors, socket, nullptr) == 0 &&
         rte_eth_dev_start(port) == 0;
}

void echo(std::uint16_t port) {
  std::array<rte_mbuf*, kBurst> frames;
  while (ended == 0) {
    const std::uint16_t count = rte_eth_rx_burst(port, 0, frames.data(), kBurst);
    if (count == 0) {
      rte_pause();
      continue;
    }
    const std::uint16_t sent = rte_eth_tx_burst(port, 0, frames.data(), count);
    if (sent < count) rte_pktmbuf_free_bulk(frames.data() + sent, count - sent);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_cutoff_echo SOCKET CPU\n");
    return 2;
  }
  struct sigaction action {};
  action.sa_handler = [](int) { ended = 1; };
  sigaction(SIGTERM, &action, nullptr);
  if (!start_environment(argv[1], argv[2]) || !start_port(0)) {
    std::fprintf(stderr, "bench_cutoff_echo: no port on %s: %s\n", argv[1],
                 rte_strerror(rte_errno));
    return 1;
  }
  std::printf("ready\n");
  std::fflush(stdout);
  echo(0);
  rte_eth_dev_stop(0);
  rte_eth_dev_close(0);
  unlink(argv[1]);
  return 0;
}

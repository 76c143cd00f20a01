// A bare echo on a vhost-user socket, for the benches cutoff and local: every frame goes back, from
// one busy core. It has the driver, ring sizes and burst of sluiced's vhost-user ports, and nothing
// else; or, with a number of ranks, the least code that could sum their frames.
//
//     bench_cutoff_echo SOCKET CPU [RANKS]      (ends on SIGTERM)
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_pause.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "aggregator/core/fold.h"
#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace {

using namespace sluice;

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

// Contributions become their chunk's sum: no checks, and the frames of a chunk come in a row.
class Sums {
 public:
  static constexpr std::size_t kMostRanks = 32;
  static constexpr std::size_t kMostFrames = kBurst + kMostRanks;

  explicit Sums(std::size_t ranks) : lines_(kChunks * kLinesOfChunk), held_(ranks) {}

  // Replaces the frames by those that are ready to go: all of a chunk with its last one.
  std::uint16_t take(std::array<rte_mbuf*, kMostFrames>& frames, std::uint16_t count) {
    std::array<rte_mbuf*, kBurst> in;
    std::copy_n(frames.begin(), count, in.begin());
    std::uint16_t ready = 0;
    for (std::uint16_t at = 0; at < count; ++at) {
      auto* const bytes = rte_pktmbuf_mtod(in[at], std::uint8_t*);
      const std::size_t payload_bytes = rte_pktmbuf_data_len(in[at]) - kHeadBytes;
      const auto& body = *reinterpret_cast<const wire::Contribution*>(bytes + kHeadBytes -
                                                                      sizeof(wire::Contribution));
      float* const acc = lines_[body.chunk % kChunks * kLinesOfChunk].lanes;
      (held_count_ == 0 ? agg::fold_store : agg::fold_add)(
          acc, bytes + kHeadBytes, payload_bytes / sizeof(float), Dtype::kFloat32);
      held_[held_count_++] = in[at];
      if (held_count_ != held_.size()) continue;
      held_count_ = 0;
      for (rte_mbuf* frame : held_) {
        std::memcpy(rte_pktmbuf_mtod(frame, std::uint8_t*) + kHeadBytes, acc, payload_bytes);
        frames[ready++] = frame;
      }
    }
    return ready;
  }

 private:
  static constexpr std::size_t kHeadBytes = wire::kEthernetBytes + wire::kIpv4Bytes +
                                            wire::kUdpBytes + sizeof(wire::CommonHeader) +
                                            sizeof(wire::Contribution);
  static constexpr std::size_t kChunks = 8192;
  struct alignas(64) Line {
    float lanes[16];
  };
  static constexpr std::size_t kLinesOfChunk = 1344 / sizeof(Line);

  std::vector<Line> lines_;
  std::vector<rte_mbuf*> held_;
  std::size_t held_count_ = 0;
};

void echo(std::uint16_t port, Sums* sums) {
  std::array<rte_mbuf*, Sums::kMostFrames> frames;
  while (ended == 0) {
    std::uint16_t count = rte_eth_rx_burst(port, 0, frames.data(), kBurst);
    if (count == 0) {
      rte_pause();
      continue;
    }
    if (sums != nullptr) count = sums->take(frames, count);
    const std::uint16_t sent = rte_eth_tx_burst(port, 0, frames.data(), count);
    if (sent < count) rte_pktmbuf_free_bulk(frames.data() + sent, count - sent);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t ranks = argc == 4 ? std::strtoul(argv[3], nullptr, 10) : 0;
  if ((argc != 3 && argc != 4) || (argc == 4 && ranks - 1 >= Sums::kMostRanks)) {
    std::fprintf(stderr, "usage: bench_cutoff_echo SOCKET CPU [RANKS]\n");
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
  Sums sums(ranks);
  echo(0, ranks == 0 ? nullptr : &sums);
  rte_eth_dev_stop(0);
  rte_eth_dev_close(0);
  unlink(argv[1]);
  return 0;
}

// The load generator of the bench `local` (local.py runs it and explains it): how many frames a
// second come back through one vhost-user port, from the appliance as results and from an echo as
// they were, in turns.
//
//   bench_local --appliance=SOCKET --appliance_pid=N --echo=SOCKET --echo_pid=N
//               [--blocks=N] [--frames=N] [--cpu=N]
//
// One line a block: `appliance` or `echo`, million frames a second, and the share of the time in
// which the generator had sent all it may and found nothing to receive. Both sides get the same
// frames by the same loop. Every result is counted, and one in 256 is compared.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include "bench/cutoff_workers.h"
#include "bench/generator.h"
#include "client/transport/dpdk/loader.h"

namespace sluice::bench {
namespace {

constexpr DurationNs kLostNs = 30 * kSecond;
constexpr std::size_t kBurstFrames = 32;
constexpr std::uint64_t kWindow = 512;  // frames under way: less than any ring between holds
constexpr std::size_t kHeaders = wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes;
constexpr std::size_t kHeadBytes =
    kHeaders + sizeof(wire::CommonHeader) + sizeof(wire::Contribution);
constexpr std::uint64_t kLookEvery = 256;

// The frames of all ranks, whose heads differ in a few numbers.
class Contributions {
 public:
  Contributions(CutoffWorkers& workers, const CutoffJob& job) : job_(job), frames_(job.workers) {
    for (std::uint16_t rank = 0; rank < job.workers; ++rank)
      workers.write_contribution(frames_[rank], rank, 0, 0);
    numbers_.assign(job.workers, 1);
  }
  const wire::CommonHeader& identity(std::uint16_t rank) const {
    return *reinterpret_cast<const wire::CommonHeader*>(&frames_[rank].bytes[kHeaders]);
  }
  const std::uint8_t* payload() const { return &frames_[0].bytes[kHeadBytes]; }
  std::uint32_t frame_bytes() const { return frames_[0].size; }

  // The next frames of a step, chunk by chunk, each of all ranks. UDP checksums are those of other
  // frames: nobody reads them on shared memory.
  void write(std::span<sluice_dpdk_frame> burst, Step step, std::uint64_t first) {
    for (std::size_t i = 0; i < burst.size(); ++i) {
      const auto rank = static_cast<std::uint16_t>((first + i) % job_.workers);
      FrameBuffer& frame = frames_[rank];
      std::uint8_t* head = heads_[i].data();
      std::memcpy(head, frame.bytes.data(), kHeadBytes);
      auto& body =
          *reinterpret_cast<wire::Contribution*>(&head[kHeaders + sizeof(wire::CommonHeader)]);
      body.flow.number = ++numbers_[rank];
      body.step = body.base_step = step;
      body.chunk = static_cast<ChunkIndex>((first + i) / job_.workers);
      burst[i] = {head, kHeadBytes, static_cast<std::uint32_t>(frame.size - kHeadBytes),
                  &frame.bytes[kHeadBytes]};
    }
  }

 private:
  const CutoffJob job_;
  std::vector<FrameBuffer> frames_;
  std::vector<std::uint32_t> numbers_;
  std::array<std::array<std::uint8_t, kHeadBytes + 16>, kBurstFrames> heads_{};
};

class Bench {
 public:
  Bench(const sluice_dpdk_plugin& plugin, sluice_dpdk_port* appliance, sluice_dpdk_port* echo,
        const CutoffJob& job)
      : plugin_(plugin),
        appliance_(appliance),
        echo_(echo),
        job_(job),
        workers_(plugin, appliance, job) {
    workers_.join_all();
    contributions_.emplace_back(workers_, job);
  }

  void appliance_block(std::uint64_t frames) {
    const std::uint64_t a_step = std::uint64_t{job_.chunks} * job_.workers;
    Run run{appliance_, "appliance", true};
    for (std::uint64_t left = std::max(frames, a_step); left >= a_step; left -= a_step) {
      run_frames(run, ++step_, a_step);
      workers_.keep_alive();
    }
    print(run);
  }
  void echo_block(std::uint64_t frames) {
    Run run{echo_, "echo", false};
    run_frames(run, 0, frames);
    print(run);
  }

 private:
  struct Run {
    sluice_dpdk_port* port;
    const char* name;
    bool sums;
    std::uint64_t frames = 0;
    DurationNs spent = 0;
    std::uint64_t rounds = 0;
    std::uint64_t waits = 0;
  };

  void run_frames(Run& run, Step step, std::uint64_t total) {
    const TimeNs start = clock_ns();
    TimeNs moved = start;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (std::array<sluice_dpdk_frame, kBurstFrames> burst; received < total;) {
      const std::uint64_t room = std::min(kWindow - (sent - received), total - sent);
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, burst.size()));
      if (count != 0) {
        contributions_[0].write(std::span(burst).first(count), step, sent);
        for (std::uint32_t taken = 0; taken < count;)
          taken += plugin_.tx_burst(run.port, &burst[taken], count - taken);
        sent += count;
      }
      const std::uint64_t before = received;
      received += receive(run, step);
      ++run.rounds;
      if (received != before) {
        moved = 0;
      } else if (count == 0) {
        ++run.waits;
        if (moved == 0) moved = clock_ns();
        if ((run.waits & 0xfff) == 0 && clock_ns() - moved > kLostNs)
          give_up(std::to_string(sent - received) + " frames did not come back from the " +
                  run.name + " within 30 s");
      }
    }
    run.spent += clock_ns() - start;
    run.frames += total;
  }

  // Results, or frames of ours that came back.
  std::uint64_t receive(const Run& run, Step step) {
    std::array<sluice_dpdk_frame, 64> frames;
    const std::uint32_t count = plugin_.rx_burst(run.port, frames.data(), frames.size());
    std::uint64_t ours = 0;
    for (const sluice_dpdk_frame& frame : std::span(frames).first(count)) {
      if (frame.bytes < kHeaders + sizeof(wire::CommonHeader)) continue;
      const auto& common = *reinterpret_cast<const wire::CommonHeader*>(&frame.data[kHeaders]);
      if (common.magic != wire::kMagic) continue;
      const auto wanted = run.sums ? wire::PacketType::kResult : wire::PacketType::kContribution;
      if (common.type != wanted) continue;
      if (run.sums && seen_++ % kLookEvery == 0) look(frame, step);
      ++ours;
    }
    plugin_.give_back(run.port, frames.data(), count);
    return ours;
  }

  // All ranks send the same small integers.
  void look(const sluice_dpdk_frame& frame, Step step) const {
    wire::Packet packet;
    const wire::Bytes datagram{frame.data + kHeaders, frame.bytes - kHeaders};
    if (!ok(wire::parse(datagram, packet))) give_up("a result that does not parse");
    const auto& body = packet.body<wire::ResultHeader>();
    bool right =
        body.step == step && body.k == job_.workers && packet.payload().size() == job_.chunk_bytes;
    for (std::size_t at = 0; right && at < job_.chunk_bytes; at += sizeof(float)) {
      float one;
      float sum;
      std::memcpy(&one, contributions_[0].payload() + at, sizeof one);
      std::memcpy(&sum, packet.payload().data() + at, sizeof sum);
      right = sum == one * static_cast<float>(job_.workers);
    }
    if (!right) give_up("a wrong sum in step " + std::to_string(body.step));
  }

  static void print(const Run& run) {
    std::printf("%s %.4f %.4f\n", run.name,
                static_cast<double>(run.frames) / static_cast<double>(run.spent) * 1e3,
                static_cast<double>(run.waits) / static_cast<double>(run.rounds));
    std::fflush(stdout);
  }

  const sluice_dpdk_plugin& plugin_;
  sluice_dpdk_port* const appliance_;
  sluice_dpdk_port* const echo_;
  const CutoffJob job_;
  CutoffWorkers workers_;
  std::vector<Contributions> contributions_;  // one, made when all have joined
  std::uint64_t seen_ = 0;
  Step step_ = 0;
};

int run(int argc, char** argv) {
  const GeneratorOptions options(argc, argv);
  const auto plugin = client::load_dpdk_plugin();
  if (!plugin.ok()) give_up(plugin.status().message());
  const Sides sides(options);
  sluice_dpdk_port* appliance = open_port(*plugin.value(), options.text("appliance"), 1);
  sluice_dpdk_port* echo = open_port(*plugin.value(), options.text("echo"), 2);
  pin(options.number("cpu", 1));
  // Many chunks a step: between two steps the pipe runs empty.
  const CutoffJob job{.workers = 4, .k = 4, .chunks = 8192};
  sides.run(sides.appliance());
  Bench bench(*plugin.value(), appliance, echo, job);
  const auto frames = static_cast<std::uint64_t>(options.number("frames", 1'000'000));
  for (long block = 0; block < options.number("blocks", 7); ++block) {
    sides.run(sides.appliance());
    bench.appliance_block(frames);
    sides.run(sides.echo());
    bench.echo_block(frames);
  }
  sides.run_all();
  plugin.value()->close(echo);
  plugin.value()->close(appliance);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::run(argc, argv); }

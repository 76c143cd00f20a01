// The generator of the cutoff bench (cutoff.py runs it and explains it): times from the last
// contribution that a slot needs to its first result, and of a bare echo, in turns.
//
//   bench_cutoff --appliance=SOCKET --appliance_pid=N --echo=SOCKET --echo_pid=N
//                [--blocks=N] [--steps=N] [--k=N] [--cpu=N]
//
// One line a block and kind: KIND followed by microseconds, a number a sample. Kinds: `kth` the
// k-th alone, the others were there before; `all` k contributions in one burst, from before the
// burst; `echo`. While a block runs on one side, the other side's process is stopped, so that both
// have the same core to themselves.
#include <bit>
#include <cstdio>
#include <random>
#include <string>

#include "bench/cutoff_workers.h"
#include "bench/generator.h"
#include "client/transport/dpdk/loader.h"

namespace sluice::bench {
namespace {

constexpr DurationNs kLostNs = 30 * kSecond;                // a frame not seen for so long is lost
constexpr DurationNs kShortestPauseNs = 20 * kMicrosecond;  // before a sample; random up to twice
constexpr Step kFullSteps = 2;                              // that a job begins with: k = n

class Bench {
 public:
  Bench(const sluice_dpdk_plugin& plugin, sluice_dpdk_port* appliance, sluice_dpdk_port* echo,
        const CutoffJob& job)
      : plugin_(plugin),
        echo_(echo),
        job_(job),
        workers_(plugin, appliance, job),
        frames_(job.workers) {}

  void start() {
    workers_.join_all();
    for (Step step = 1; step <= kFullSteps; ++step) run_step(job_.workers, false, nullptr);
  }

  // `steps` steps of the job, a sample a chunk. `alone`: the k-th comes when the others are in.
  void cutoff_block(bool alone, long steps) {
    std::vector<double> samples_us;
    for (long i = 0; i < steps; ++i) run_step(job_.k, alone, &samples_us);
    print(alone ? "kth" : "all", samples_us);
    workers_.keep_alive();
  }

  void echo_block(long samples) {
    std::vector<double> samples_us;
    FrameBuffer frame;
    workers_.write_contribution(frame, 0, 0, 0);  // of the same size; no appliance will see it
    for (long i = 0; i < samples; ++i) {
      pause([this] { poll_echo(); });
      const sluice_dpdk_frame view = frame.view();
      const TimeNs sent = clock_ns();
      if (plugin_.tx_burst(echo_, &view, 1) != 1) give_up("the echo's port takes no frame");
      TimeNs seen = 0;
      while ((seen = poll_echo()) == 0)
        if (clock_ns() - sent > kLostNs) give_up("a frame sent to the echo did not come back");
      samples_us.push_back(static_cast<double>(seen - sent) / 1e3);
    }
    print("echo", samples_us);
  }

 private:
  static void print(const char* kind, const std::vector<double>& samples_us) {
    std::printf("%s", kind);
    for (const double sample : samples_us) std::printf(" %.3f", sample);
    std::printf("\n");
    std::fflush(stdout);
  }

  template <class Poll>
  void pause(Poll poll) {
    spin_for(kShortestPauseNs + static_cast<DurationNs>(random_() % kShortestPauseNs), poll);
  }

  TimeNs poll_echo() {
    sluice_dpdk_frame frames[32];
    const std::uint32_t count = plugin_.rx_burst(echo_, frames, 32);
    if (count == 0) return 0;
    const TimeNs now = clock_ns();
    plugin_.give_back(echo_, frames, count);
    return now;
  }

  void run_step(std::uint16_t k, bool alone, std::vector<double>* samples_us) {
    ++step_;
    for (ChunkIndex chunk = 0; chunk < job_.chunks; ++chunk) {
      const double microseconds = run_chunk(k, alone, chunk);
      if (samples_us != nullptr) samples_us->push_back(microseconds);
    }
  }

  // Returns the time from the send that completes the chunk to its first result.
  double run_chunk(std::uint16_t k, bool alone, ChunkIndex chunk) {
    std::vector<sluice_dpdk_frame> views;
    for (std::uint16_t i = 0; i < k; ++i) {
      const auto rank = static_cast<std::uint16_t>((first_rank_ + i) % job_.workers);
      workers_.write_contribution(frames_[i], rank, step_, chunk);
      views.push_back(frames_[i].view());
    }
    ++first_rank_;
    std::span<const sluice_dpdk_frame> last(views);
    if (alone) {
      workers_.send(last.first(k - 1u));
      last = last.subspan(k - 1u);
    }
    pause([this] { poll_results(); });
    seen_.clear();
    const TimeNs sent = clock_ns();
    workers_.send(last);
    TimeNs first = 0;
    // All members get it; the next chunk begins when the port is quiet again.
    for (std::size_t count = 0; count < job_.workers; count = seen_.size()) {
      const TimeNs now = poll_results();
      if (first == 0 && !seen_.empty()) first = now;
      if (clock_ns() - sent > kLostNs)
        give_up(std::to_string(seen_.size()) + " of " + std::to_string(job_.workers) +
                " results of step " + std::to_string(step_) + ", chunk " + std::to_string(chunk) +
                " came within 30 s");
    }
    for (const SeenResult& result : seen_)
      if (result.step != step_ || result.chunk != chunk || std::popcount(result.mask) != k)
        give_up("an unexpected result of step " + std::to_string(result.step));
    return static_cast<double>(first - sent) / 1e3;
  }

  TimeNs poll_results() { return workers_.receive(seen_); }

  const sluice_dpdk_plugin& plugin_;
  sluice_dpdk_port* const echo_;
  const CutoffJob job_;
  CutoffWorkers workers_;
  std::vector<FrameBuffer> frames_;
  std::vector<SeenResult> seen_;
  std::mt19937_64 random_{1};
  Step step_ = 0;
  std::uint32_t first_rank_ = 0;
};

int run(int argc, char** argv) {
  const GeneratorOptions options(argc, argv);
  const auto plugin = client::load_dpdk_plugin();
  if (!plugin.ok()) give_up(plugin.status().message());
  const Sides sides(options);
  sluice_dpdk_port* appliance = open_port(*plugin.value(), options.text("appliance"), 1);
  sluice_dpdk_port* echo = open_port(*plugin.value(), options.text("echo"), 2);
  pin(options.number("cpu", 1));  // after DPDK's own threads have been made

  const CutoffJob job{.k = static_cast<std::uint16_t>(options.number("k", 6))};
  const long steps = options.number("steps", 4);
  Bench bench(*plugin.value(), appliance, echo, job);
  sides.run(sides.appliance());
  bench.start();
  for (long block = 0; block < options.number("blocks", 20); ++block) {
    sides.run(sides.appliance());
    bench.cutoff_block(true, steps);
    sides.run(sides.echo());
    bench.echo_block(steps * job.chunks);
    sides.run(sides.appliance());
    bench.cutoff_block(false, steps);
  }
  sides.run_all();
  plugin.value()->close(echo);
  plugin.value()->close(appliance);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::run(argc, argv); }

// One chunk of two workers, from submit to result, by the client library (latency.py runs it and
// explains it).
//
//     bench_latency URL URL SAMPLES BYTES QUIET_US
//
// Both ranks are jobs of this process, driven by one thread. Rank 1 submits. After QUIET_US, with
// its contribution long in the appliance, rank 0 submits and waits, and that call is timed. Prints
// the samples in microseconds, a number a line. A wrong sum ends it with a message.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWarmUp = 20;

std::unique_ptr<sluice::Job> join(const char* url, std::uint32_t rank, std::uint64_t elems) {
  sluice::Options options;
  options.address = url;
  options.job_name = "latency";
  options.rank = rank;
  options.world_size = 2;
  return std::make_unique<sluice::Job>(options, std::vector<sluice::Tensor>{{"gradient", elems}});
}

void must(sluice_status status, sluice_job* job, const char* call) {
  if (status == SLUICE_OK) return;
  std::fprintf(stderr, "bench_latency: %s: %s\n", call, sluice_last_error(job));
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: bench_latency URL URL SAMPLES BYTES QUIET_US\n");
    return 2;
  }
  const int samples = std::atoi(argv[3]);
  const auto elems = static_cast<std::uint64_t>(std::atoi(argv[4])) / sizeof(float);
  const std::chrono::microseconds quiet(std::atoi(argv[5]));
  auto other = std::async(std::launch::async, join, argv[2], 1u, elems);
  const auto first = join(argv[1], 0, elems);
  const auto second = other.get();
  std::vector<float> mine(elems);
  std::vector<float> theirs(elems);
  for (int sample = -kWarmUp; sample < samples; ++sample) {
    for (std::size_t i = 0; i < elems; ++i) {
      mine[i] = static_cast<float>(i % 61);
      theirs[i] = static_cast<float>(sample % 7);
    }
    must(sluice_submit(second->get(), 0, theirs.data(), theirs.data(), 1, 0), second->get(),
         "submit");
    must(sluice_end_step(second->get()), second->get(), "end_step");
    std::this_thread::sleep_for(quiet);
    const auto start = Clock::now();
    must(sluice_submit(first->get(), 0, mine.data(), mine.data(), 1, 0), first->get(), "submit");
    must(sluice_wait_tensor(first->get(), 0, 10'000, nullptr), first->get(), "wait_tensor");
    const auto end = Clock::now();
    must(sluice_end_step(first->get()), first->get(), "end_step");
    must(sluice_wait_tensor(second->get(), 0, 10'000, nullptr), second->get(), "wait_tensor");
    for (std::size_t i = 0; i < elems; ++i) {
      const float mean = (static_cast<float>(i % 61) + static_cast<float>(sample % 7)) / 2.0f;
      if (mine[i] != mean || theirs[i] != mean) {
        std::fprintf(stderr, "bench_latency: element %zu is %g, not %g\n", i, mine[i], mean);
        return 1;
      }
    }
    if (sample >= 0)
      std::printf("%.3f\n", std::chrono::duration<double, std::micro>(end - start).count());
  }
  // Both must have all results before either leaves.
  std::thread barrier([&] { second->barrier(); });
  first->barrier();
  barrier.join();
  return 0;
}

// The duration of an application's calls beside full traffic: submit(), wait() with timeout 0,
// end_step().
//
//     bench_calls RANKS TENSORS BYTES STEPS
//
// Ranks are threads of this process over an in-process appliance, which is the worst case for the
// session's lock: no system call of a transport keeps the progress thread away from it. Each step
// submits every tensor of BYTES bytes, ends the step and polls each tensor until it is done. The
// first step of ten is not counted. Prints one line of JSON: nanoseconds of rank 0's calls (p50,
// p99, count); the number of calls over 3 us in which the caller slept (for the lock), and of
// further ones in which it lost its core to another thread; and the wall time of all counted steps.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSlowNs = 3000;

rusage this_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage;
}

struct Times {
  std::vector<double> ns;
  std::size_t slow = 0, slept = 0, preempted = 0;
  template <class Call>
  auto measure(bool counted, Call call) {
    const rusage before = this_thread();
    const auto start = Clock::now();
    auto result = call();
    const auto end = Clock::now();
    if (!counted) return result;
    ns.push_back(std::chrono::duration<double, std::nano>(end - start).count());
    if (ns.back() <= kSlowNs) return result;
    const rusage after = this_thread();
    ++slow;
    if (after.ru_nvcsw != before.ru_nvcsw)
      ++slept;
    else if (after.ru_nivcsw != before.ru_nivcsw)
      ++preempted;
    return result;
  }
  void print(const char* name) {
    std::sort(ns.begin(), ns.end());
    const auto at = [&](double share) {
      return ns[static_cast<std::size_t>(share * (ns.size() - 1))];
    };
    std::printf(
        "\"%s\": {\"p50\": %.0f, \"p99\": %.0f, \"count\": %zu, \"slow\": %zu, \"slept\": %zu, "
        "\"preempted\": %zu}, ",
        name, at(0.5), at(0.99), ns.size(), slow, slept, preempted);
  }
};

struct Shape {
  std::uint32_t ranks, tensors, bytes, steps;
};

void fail(sluice_job* job, const char* call) {
  std::fprintf(stderr, "bench_calls: %s: %s\n", call, sluice_last_error(job));
  std::exit(1);
}

void run_rank(std::uint32_t rank, const Shape& shape) {
  sluice::Options options;
  options.address = "inproc://calls";
  options.job_name = "calls";
  options.rank = rank;
  options.world_size = shape.ranks;
  std::vector<sluice::Tensor> tensors;
  std::vector<std::vector<float>> values(shape.tensors, std::vector<float>(shape.bytes / 4, 1.0f));
  for (std::uint32_t i = 0; i < shape.tensors; ++i)
    tensors.push_back({"t" + std::to_string(i), shape.bytes / 4});
  sluice::Job joined(options, tensors);
  sluice_job* const job = joined.get();
  Times submits, waits, ends;
  Clock::time_point start{};
  for (std::uint32_t step = 0; step < shape.steps; ++step) {
    const bool counted = step >= shape.steps / 10;
    if (step == shape.steps / 10) start = Clock::now();
    for (std::uint32_t i = 0; i < shape.tensors; ++i) {
      float* const data = values[i].data();
      if (submits.measure(counted, [&] { return sluice_submit(job, i, data, data, 1, 0); }) !=
          SLUICE_OK)
        fail(job, "submit");
    }
    if (ends.measure(counted, [&] { return sluice_end_step(job); }) != SLUICE_OK)
      fail(job, "end_step");
    for (std::uint32_t i = 0; i < shape.tensors; ++i) {
      for (;;) {
        const sluice_status status =
            waits.measure(counted, [&] { return sluice_wait_tensor(job, i, 0, nullptr); });
        if (status == SLUICE_OK) break;
        if (status != SLUICE_TIMED_OUT) fail(job, "wait_tensor");
        // As a training loop that has other work between two looks.
        const auto until = Clock::now() + std::chrono::microseconds(20);
        while (Clock::now() < until) continue;
      }
    }
    for (const auto& tensor : values)
      if (tensor.front() != 1.0f || tensor.back() != 1.0f) {
        std::fprintf(stderr, "bench_calls: a wrong sum in step %u\n", step + 1);
        std::exit(1);
      }
  }
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  joined.barrier();
  if (rank != 0) return;
  std::printf("{");
  submits.print("submit");
  waits.print("wait_tensor");
  ends.print("end_step");
  std::printf("\"seconds\": %.4f}\n", wall);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: bench_calls RANKS TENSORS BYTES STEPS\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::atoi(argv[i])); };
  const Shape shape{number(1), number(2), number(3), number(4)};
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 1; rank < shape.ranks; ++rank)
    ranks.emplace_back(run_rank, rank, shape);
  run_rank(0, shape);
  for (std::thread& rank : ranks) rank.join();
  return 0;
}

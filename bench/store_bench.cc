// A parameter store against a synchronous sum of the same bytes.
//
//     bench_store RANKS LAYERS BYTES STEPS ROUNDS
//
// Ranks are threads of this process over an in-process appliance; each is in a job of sums and in a
// store of bound 0. In each round the sums have a turn of STEPS steps and the store has one (every
// layer pushed, and pulled as soon as it is pushed); the two alternate in going first. Then come
// STEPS steps with all pushes first and then all pulls. Checks the values. Prints a line a round:
// seconds of sums, of the store, of pushes, of pulls, and packets a direction, all ranks together.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  std::uint32_t ranks, layers, bytes, steps, rounds;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Rank {
 public:
  Rank(std::uint32_t rank, const Shape& shape)
      : rank_(rank),
        shape_(shape),
        sums_(options(false), tensors(false)),
        store_(options(true), tensors(true)),
        inputs_(shape.layers, std::vector<float>(shape.bytes / 4, 1.0f)),
        outputs_(shape.layers, std::vector<float>(shape.bytes / 4)) {
    const std::vector<float> zeros(shape.bytes / 4);
    for (std::uint32_t layer = 0; layer < shape.layers && rank == 0; ++layer)
      store_.initialise(layer, {zeros.data()});
    pull_all();
  }

  void run() {
    for (std::uint32_t round = 0; round < shape_.rounds; ++round) {
      double sums = 0, both = 0;
      for (const bool of_sums : {round % 2 == 0, round % 2 != 0}) {
        if (of_sums)
          sums = timed(sums_, [&] { sum_step(); });
        else
          both = timed(store_, [&] { store_step(); });
      }
      double pushes = 0, pulls = 0;
      for (std::uint32_t step = 0; step < shape_.steps; ++step) {
        store_.barrier();
        const auto start = Clock::now();
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
          store_.push(layer, {inputs_[layer].data()});
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) store_.wait_push(layer);
        store_.barrier();
        pushes += seconds_since(start);
        const auto pushed = Clock::now();
        pull_all();
        pulls += seconds_since(pushed);
        iterations_ += 1;
        check(static_cast<float>(iterations_));
      }
      const std::uint64_t chunk_bytes = store_.counters().chunk_bytes;
      const std::uint64_t packets = std::uint64_t{shape_.ranks} * shape_.steps * shape_.layers *
                                    ((shape_.bytes + chunk_bytes - 1) / chunk_bytes);
      if (rank_ == 0)
        std::printf("%.6f %.6f %.6f %.6f %llu\n", sums, both, pushes, pulls,
                    static_cast<unsigned long long>(packets));
    }
    store_.barrier();
  }

 private:
  sluice::Options options(bool store) const {
    sluice::Options options;
    options.address = "inproc://store";
    options.job_name = store ? "store" : "sums";
    options.rank = rank_;
    options.world_size = shape_.ranks;
    options.store.enabled = store;
    return options;
  }
  std::vector<sluice::Tensor> tensors(bool store) const {
    std::vector<sluice::Tensor> all;
    for (std::uint32_t i = 0; i < shape_.layers; ++i) {
      all.push_back({"t" + std::to_string(i), shape_.bytes / 4});
      all.back().begins_layer = store;
    }
    return all;
  }
  template <class Step>
  double timed(sluice::Job& job, Step step) {
    job.barrier();
    const auto start = Clock::now();
    for (std::uint32_t i = 0; i < shape_.steps; ++i) step();
    return seconds_since(start);
  }
  void sum_step() {
    for (std::uint32_t i = 0; i < shape_.layers; ++i)
      sums_.submit({i, inputs_[i].data(), outputs_[i].data(), 1, static_cast<std::uint8_t>(i)});
    sums_.wait_step();
    check(1);
  }
  void store_step() {
    for (std::uint32_t layer = shape_.layers; layer-- > 0;) {
      store_.push(layer, {inputs_[layer].data()});
      store_.pull(layer, {outputs_[layer].data()});
    }
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) store_.wait_pull(layer);
    iterations_ += 1;
    check(static_cast<float>(iterations_));
  }
  void pull_all() {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
      store_.pull(layer, {outputs_[layer].data()});
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) store_.wait_pull(layer);
  }
  void check(float expected) const {
    for (const auto& output : outputs_)
      if (output.front() != expected || output.back() != expected) {
        std::fprintf(stderr, "bench_store: %g instead of %g\n", static_cast<double>(output.front()),
                     static_cast<double>(expected));
        std::exit(1);
      }
  }

  const std::uint32_t rank_;
  const Shape shape_;
  sluice::Job sums_, store_;
  std::vector<std::vector<float>> inputs_, outputs_;
  std::uint32_t iterations_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: bench_store RANKS LAYERS BYTES STEPS ROUNDS\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::atoi(argv[i])); };
  const Shape shape{number(1), number(2), number(3), number(4), number(5)};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank)
    threads.emplace_back([rank, &shape] {
      try {
        Rank(rank, shape).run();
      } catch (const sluice::Error& error) {
        std::fprintf(stderr, "bench_store: %s\n", error.what());
        std::exit(1);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// All workers of a job as threads of one process, in C++.
//
// usage: average_cpp ADDRESS WORLD_SIZE     such as  average_cpp inproc://example 4
//
// With inproc:// the appliance is in this process too, so nothing else has to run.
#include <cstdlib>
#include <iostream>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kElemCount = 1000;

// Every rank contributes its own number; the average is the same on all.
float average_on(const std::string& address, std::uint32_t rank, std::uint32_t world_size) {
  sluice::Options options;
  options.address = address;
  options.job_name = "average";
  options.rank = rank;
  options.world_size = world_size;
  sluice::Job job(options, {{"values", kElemCount}});

  std::vector<float> values(kElemCount, static_cast<float>(rank));
  job.submit({0, values.data(), values.data()});
  job.wait(0, std::chrono::seconds(10));
  return values[kElemCount / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " ADDRESS WORLD_SIZE\n";
    return 2;
  }
  const auto world_size = static_cast<std::uint32_t>(std::atoi(argv[2]));
  std::vector<float> averages(world_size, -1);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        averages[rank] = average_on(argv[1], rank, world_size);
      } catch (const sluice::Error& error) {
        std::cerr << "rank " << rank << ": " << error.what() << "\n";
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();

  const float expected = static_cast<float>(world_size - 1) / 2;
  for (const float average : averages)
    if (average != expected) return 1;
  std::cout << "average over " << world_size << " ranks: " << expected << "\n";
  return 0;
}

// One rank of a job of operations: ADDRESS RANK WORLD [COUNT...]. Exits 0 when all checks hold.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/e2e/operations_checks.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  sluice_options options{};
  options.struct_size = sizeof options;
  sluice_options_init(&options);
  options.address = argv[1];
  options.job_name = "operations";
  options.secret = "lab";  // as the lab has it
  options.run_id = 1;
  options.rank = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  options.world_size = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  std::vector<std::size_t> counts;
  for (int i = 4; i < argc; ++i) counts.push_back(std::strtoul(argv[i], nullptr, 10));
  sluice_job* job = nullptr;
  if (sluice_join_operations(&options, &job) != SLUICE_OK) {
    std::fprintf(stderr, "join: %s\n", sluice_last_error(nullptr));
    return 1;
  }
  int status = 0;
  try {
    sluice::e2e::run_all_checks(job, options.rank, options.world_size, counts);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %u: %s\n", options.rank, error.what());
    status = 1;
  }
  sluice_close(job);
  return status;
}

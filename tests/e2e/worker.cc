// A worker for end-to-end tests and benches: sums known integers and checks every element.
//
// The gradient of (rank, step, tensor, element) is a small integer held in float32, so the sum is
// exact in any order and the expected value needs no second worker. With --inexact it is one over a
// power of three, so the sum is right in the order of ranks only; with --wire, sums are right
// within what the format loses. Prints one JSON line. Exit status: 0 all sums exact, 3 the library
// reported an error, 4 a sum was wrong.
#include <sluice/sluice.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

struct WorkerOptions {
  std::string address;
  std::string job = "e2e";
  std::string secret = "lab";
  std::uint64_t run_id = 1;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t steps = 3;
  std::uint32_t tensors = 4;
  std::uint64_t elem_count = 50'000;
  std::uint32_t mtu = 1500;
  std::uint32_t chunk_bytes = 0;
  std::uint32_t join_timeout_ms = 30'000;
  std::uint32_t pause_ms = 0;  // between steps
  std::string last_after;      // a file: the last step begins when it is there
  std::uint32_t stall_report_ms = 5'000;
  std::uint32_t restart_ms = 60'000;
  std::int64_t skip_tensor = -1;  // never submitted by this rank, and no end_step
  bool end_step = false;
  bool reproducible = false;  // as the environment has it, if not given
  bool inexact = false;
  std::uint32_t k = 0;  // policy fixed; 0: none of the worker's own
  sluice_wire wire = SLUICE_WIRE_FLOAT32;
};

float value_of(const WorkerOptions& options, std::uint32_t rank, std::uint32_t step,
               std::uint32_t tensor, std::uint64_t elem) {
  const std::uint64_t mixed = elem * 7 + tensor * 13 + step * 29 + rank * 31;
  const float whole = static_cast<float>(mixed % 61) - 30.0f;
  constexpr float kScales[] = {1, 1.0f / 3, 1.0f / 9, 1.0f / 27};
  return options.inexact ? whole * kScales[rank % 4] : whole;
}

int fail(const char* what, const sluice_job* job, sluice_status status) {
  std::string text = sluice_last_error(job);
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  std::printf("{\"ok\": false, \"call\": \"%s\", \"status\": \"%s\", \"error\": \"%s\"}\n", what,
              sluice_status_name(status), escaped.c_str());
  return 3;
}

void report_stall(void*, const char* text) {
  std::printf("STALL %s\n", text);
  std::fflush(stdout);
}

// The first wrong element of a sum over all ranks, or elem_count when it is exact. What a format
// loses: of int8 a 254th of the greatest value, at each rank, in what it kept and in the result.
std::uint64_t first_wrong(const WorkerOptions& options, std::uint32_t step, std::uint32_t tensor,
                          const std::vector<float>& sum) {
  for (std::uint64_t elem = 0; elem < sum.size(); ++elem) {
    float expected = 0;
    for (std::uint32_t rank = 0; rank < options.world_size; ++rank)
      expected += value_of(options, rank, step, tensor, elem);
    const float lost = options.wire == SLUICE_WIRE_FLOAT32
                           ? 0.0f
                           : 30.0f * static_cast<float>(options.world_size) / 64;
    if (!(std::fabs(sum[elem] - expected) <= lost)) return elem;
  }
  return sum.size();
}

int run_steps(const WorkerOptions& options, sluice_job* job) {
  std::vector<std::vector<float>> gradients(options.tensors);
  if (options.steps != 0)  // else it only joins, and needs no memory for a big model
    for (auto& gradient : gradients) gradient.resize(options.elem_count);
  double exchange_s = 0;
  std::uint64_t sums_hash = 0xcbf29ce484222325;  // FNV-1a over the words of all sums
  std::vector<double> step_ms;
  step_ms.reserve(options.steps);
  std::string steps_s;  // begin and end of each, by the clock that all processes share
  const auto seconds = [](std::chrono::steady_clock::time_point at) {
    return std::to_string(std::chrono::duration<double>(at.time_since_epoch()).count());
  };
  for (std::uint32_t step = 1; step <= options.steps; ++step) {
    const bool held = step == options.steps && !options.last_after.empty();
    while (held && !std::filesystem::exists(options.last_after))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (std::uint32_t tensor = 0; tensor < options.tensors; ++tensor)
      for (std::uint64_t elem = 0; elem < options.elem_count; ++elem)
        gradients[tensor][elem] = value_of(options, options.rank, step, tensor, elem);
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < options.tensors; ++i) {
      const std::uint32_t tensor = options.tensors - 1 - i;  // backward order, most urgent last
      if (tensor == options.skip_tensor) continue;
      float* data = gradients[tensor].data();
      const sluice_status status = sluice_submit(job, tensor, data, data, 1, tensor);
      if (status != SLUICE_OK) return fail("submit", job, status);
    }
    if (options.end_step) sluice_end_step(job);
    const sluice_status status = sluice_wait_step(job, SLUICE_FOREVER, nullptr);
    if (status != SLUICE_OK) return fail("wait_step", job, status);
    const auto end = std::chrono::steady_clock::now();
    const std::chrono::duration<double> taken = end - begin;
    exchange_s += taken.count();
    step_ms.push_back(1e3 * taken.count());
    steps_s += (step == 1 ? "[" : ", [") + seconds(begin) + ", " + seconds(end) + "]";
    const bool whole = options.skip_tensor < 0 && !options.end_step;
    for (std::uint32_t tensor = 0; whole && tensor < options.tensors; ++tensor) {
      for (const float value : gradients[tensor])
        sums_hash = (sums_hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3;
      const std::uint64_t wrong = first_wrong(options, step, tensor, gradients[tensor]);
      if (wrong == options.elem_count) continue;
      std::printf("{\"ok\": false, \"wrong\": \"step %u tensor %u element %llu\"}\n", step, tensor,
                  static_cast<unsigned long long>(wrong));
      return 4;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
  }
  std::sort(step_ms.begin(), step_ms.end());
  const auto quantile = [&](double share) {
    return step_ms.empty() ? 0.0 : step_ms[static_cast<std::size_t>(share * (step_ms.size() - 1))];
  };
  sluice_counters stats{.struct_size = sizeof(sluice_counters)};
  sluice_get_counters(job, &stats);
  std::printf(
      "{\"ok\": true, \"rank\": %u, \"steps\": %u, \"exchange_s\": %.6f, "
      "\"step_p50_ms\": %.3f, \"step_p99_ms\": %.3f, \"step_max_ms\": %.3f, \"packets_sent\": "
      "%llu, "
      "\"packets_received\": %llu, \"bytes_sent\": %llu, \"bytes_received\": %llu, "
      "\"retransmissions\": %llu, \"probes\": %llu, \"results_pulled\": %llu, \"invalid\": %llu, "
      "\"coalesced\": %llu, \"sums_hash\": \"%016llx\", \"steps_s\": [%s]}\n",
      options.rank, options.steps, exchange_s, quantile(0.5), quantile(0.99), quantile(1),
      static_cast<unsigned long long>(stats.packets_sent),
      static_cast<unsigned long long>(stats.packets_received),
      static_cast<unsigned long long>(stats.bytes_sent),
      static_cast<unsigned long long>(stats.bytes_received),
      static_cast<unsigned long long>(stats.retransmissions),
      static_cast<unsigned long long>(stats.probes),
      static_cast<unsigned long long>(stats.results_pulled),
      static_cast<unsigned long long>(stats.invalid_packets),
      static_cast<unsigned long long>(stats.coalesced_packets),
      static_cast<unsigned long long>(sums_hash), steps_s.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  WorkerOptions options;
  CLI::App app("Sums known integers through an appliance and checks every element.");
  app.add_option("--address", options.address)->required();
  app.add_option("--job", options.job);
  app.add_option("--secret", options.secret);
  app.add_option("--run-id", options.run_id);
  app.add_option("--rank", options.rank);
  app.add_option("--world", options.world_size);
  app.add_option("--steps", options.steps);
  app.add_option("--tensors", options.tensors);
  app.add_option("--elems", options.elem_count);
  app.add_option("--mtu", options.mtu);
  app.add_option("--chunk-bytes", options.chunk_bytes);
  app.add_option("--join-timeout-ms", options.join_timeout_ms);
  app.add_option("--pause-ms", options.pause_ms);
  app.add_option("--last-after", options.last_after);
  app.add_option("--stall-report-ms", options.stall_report_ms);
  app.add_option("--restart-ms", options.restart_ms);
  app.add_option("--skip-tensor", options.skip_tensor);
  app.add_flag("--end-step", options.end_step);
  app.add_flag("--reproducible", options.reproducible);
  app.add_flag("--inexact", options.inexact);
  app.add_option("--k", options.k);
  app.add_option("--wire", options.wire)
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, sluice_wire>{{"float32", SLUICE_WIRE_FLOAT32},
                                             {"float16", SLUICE_WIRE_FLOAT16},
                                             {"bfloat16", SLUICE_WIRE_BFLOAT16},
                                             {"int8", SLUICE_WIRE_INT8}}));
  CLI11_PARSE(app, argc, argv);

  sluice_options join{.struct_size = sizeof(sluice_options)};
  sluice_options_init(&join);
  join.address = options.address.c_str();
  join.job_name = options.job.c_str();
  join.secret = options.secret.c_str();
  join.run_id = options.run_id;
  join.rank = options.rank;
  join.world_size = options.world_size;
  join.mtu = options.mtu;
  join.chunk_bytes = options.chunk_bytes;
  join.timeouts.join_ms = options.join_timeout_ms;
  join.timeouts.stall_report_ms = options.stall_report_ms;
  join.timeouts.restart_ms = options.restart_ms;
  join.averaging = SLUICE_AVERAGE_SUM;
  join.wire = options.wire;
  if (options.reproducible) join.reproducible = 1;
  if (options.k != 0) {
    join.policy.kind = SLUICE_POLICY_FIXED;
    join.policy.k = options.k;
  }
  join.callbacks.on_stall = report_stall;
  std::vector<std::string> names;
  for (std::uint32_t tensor = 0; tensor < options.tensors; ++tensor)
    names.push_back("layer" + std::to_string(tensor) + ".weight");
  std::vector<sluice_tensor> tensors;
  for (const std::string& name : names)
    tensors.push_back({.struct_size = sizeof(sluice_tensor),
                       .name = name.c_str(),
                       .elem_count = options.elem_count,
                       .dtype = SLUICE_FLOAT32});

  sluice_job* job = nullptr;
  const sluice_status joined = sluice_join(&join, tensors.data(), tensors.size(), &job);
  if (joined != SLUICE_OK) return fail("join", nullptr, joined);
  std::printf("JOINED\n");
  std::fflush(stdout);
  const int status = run_steps(options, job);
  std::fflush(stdout);
  sluice_close(job);
  return status;
}

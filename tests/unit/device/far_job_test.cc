// Jobs over a fake device whose tensors are far: kernels that run late prune and round them on the
// device.
#include <atomic>
#include <cstdio>
#include <future>
#include <latch>
#include <numeric>

#include "tests/unit/device/device_jobs.h"

namespace job_test {
namespace {

struct Loss {
  const char* name;
  sluice_wire wire;
  sluice_prune_rule prune;
};
constexpr Loss kLosses[] = {
    {"bf16", SLUICE_WIRE_BFLOAT16, SLUICE_PRUNE_OFF},
    {"f16", SLUICE_WIRE_FLOAT16, SLUICE_PRUNE_OFF},
    {"i8", SLUICE_WIRE_INT8, SLUICE_PRUNE_OFF},
    {"static", SLUICE_WIRE_FLOAT32, SLUICE_PRUNE_STATIC},
    {"static-bf16", SLUICE_WIRE_BFLOAT16, SLUICE_PRUNE_STATIC},
    {"sigma-i8", SLUICE_WIRE_INT8, SLUICE_PRUNE_SIGMA},
    {"dynamic-f16", SLUICE_WIRE_FLOAT16, SLUICE_PRUNE_DYNAMIC},
};

// What a rank has after some steps, and what it has said to the appliance.
struct Outcome {
  std::vector<std::vector<float>> averages, residuals;
  std::uint64_t delivered_chunks = 0;
  std::vector<std::uint64_t> left_counts;  // behind: elements
  std::vector<double> left_norms;
  bool operator==(const Outcome&) const = default;
};

// Gradients with a spread, so that rounding and pruning leave something behind.
std::vector<float> spread(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  std::uint32_t state = seed * 2654435761u + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
    value = unit * unit * unit;
  }
  return values;
}

// The same script over either memory; of `from` on gradients are the host's in a job of a device.
Outcome run_script(Options wanted, std::uint32_t rank, sluice_memory memory, int host_from = 1000) {
  const std::vector<std::size_t> counts{20'000, 3'001, 500};
  wanted.device.memory = memory;
  Job job(wanted, {{"w", counts[0]}, {"v", counts[1]}, {"few", counts[2]}});
  const auto run = [&](std::uint32_t tensor, auto&& at) {
    job.submit_device({tensor, at.get(), at.get(), 1, static_cast<std::uint8_t>(tensor)}, nullptr);
  };
  std::vector<DeviceFloats> device;
  for (const std::size_t count : counts) device.emplace_back(count);
  Outcome outcome;
  for (int step = 0; step < 5; ++step) {
    const bool on_device = memory != SLUICE_MEMORY_HOST && step < host_from;
    if (step == 2) job.scale_residuals(0.5);
    if (step == 4) job.flush_residuals();
    std::vector<std::vector<float>> values;
    for (std::uint32_t tensor = 0; tensor < counts.size(); ++tensor)
      values.push_back(spread(counts[tensor], 100 * rank + 10 * tensor + step));
    for (std::uint32_t tensor = 0; tensor < counts.size(); ++tensor) {
      if (step == 3 && tensor == 1 && rank == 1) continue;  // it has none
      if (on_device) {
        device[tensor].write(values[tensor]);
        run(tensor, device[tensor]);
      } else {
        job.submit({tensor, values[tensor].data(), values[tensor].data()});
      }
    }
    job.end_step();
    job.wait_step(kLong);
    for (std::uint32_t tensor = 0; tensor < counts.size(); ++tensor)
      outcome.averages.push_back(on_device ? device[tensor].read() : values[tensor]);
    if (step == 3 && rank == 1) outcome.averages[10].clear();
    if (step == 1) {  // as a checkpoint would
      const std::vector<float> kept = job.residual(0, counts[0]);
      job.set_residual(0, std::vector<float>(counts[0], 3.0f));
      EXPECT_EQ(job.residual(0, counts[0]), std::vector<float>(counts[0], 3.0f));
      job.set_residual(0, kept);
    }
    if (step == 3 || step == 4) outcome.residuals.push_back(job.residual(0, counts[0]));
    const sluice_left_behind left = job.left_behind();
    outcome.left_counts.push_back(left.elem_count);
    outcome.left_norms.push_back(left.norm);
  }
  const sluice_counters counters = job.counters();
  outcome.delivered_chunks = counters.delivered_chunks;
  job.leave();
  return outcome;
}

TEST_F(DeviceJobs, GiveWhatTheHostGivesBitForBitWhereverIsPrunedAndRounded) {
  for (const Loss& loss : kLosses) {
    SCOPED_TRACE(loss.name);
    std::vector<Outcome> outcomes[3] = {std::vector<Outcome>(2), std::vector<Outcome>(2),
                                        std::vector<Outcome>(2)};
    for (int way = 0; way < 3; ++way)
      on_every_rank(2, [&](std::uint32_t rank) {
        const std::string name = std::string("far-") + loss.name + std::to_string(way);
        Options wanted = options(name.c_str(), rank, 2);
        wanted.allow_nil = true;
        wanted.wire = loss.wire;
        wanted.prune.rule = loss.prune;
        if (loss.prune == SLUICE_PRUNE_SIGMA) wanted.prune.sigmas = 2;
        if (loss.prune == SLUICE_PRUNE_STATIC) wanted.prune.warmup = 2;
        outcomes[way][rank] = run_script(
            wanted, rank, way == 0 ? SLUICE_MEMORY_HOST : SLUICE_MEMORY_DEVICE, way == 2 ? 2 : 9);
      });
    EXPECT_FALSE(outcomes[0][0].averages.empty());
    EXPECT_EQ(outcomes[0][0].left_counts[3] != 0, loss.prune != SLUICE_PRUNE_OFF);
    EXPECT_EQ(outcomes[0][0].left_counts[4], 0u) << "after a flush";
    EXPECT_NE(outcomes[0][0].residuals[0], std::vector<float>(20'000)) << "nothing was lost";
    for (int way = 1; way < 3; ++way)
      for (int rank = 0; rank < 2; ++rank)
        EXPECT_TRUE(outcomes[way][rank] == outcomes[0][rank]) << way << " " << rank;
  }
}

// What leaves crosses the bus, and what comes back is as long as on the wire; where the host prunes
// and rounds, all of it does, and the log says why.
TEST_F(DeviceJobs, CrossTheBusAsTheyTravelOrSayWhyNot) {
  constexpr std::uint64_t kBytes = kBig * sizeof(float);
  struct Found {
    std::string log;
    std::uint64_t from_device = 0, to_device = 0;
  };
  const auto found = [&](const char* name, const auto& change) {
    Found it;
    Options wanted = options(name, 0, 1);
    change(wanted);
    wanted.callbacks.log = [&](sluice_log_level, const char* text) {
      it.log += std::string(text) + "\n";
    };
    Job job(wanted, {{"g", kBig}});
    DeviceFloats memory(kBig);
    memory.write(spread(kBig, 1));
    const Crossed before = Crossed::now();
    job.submit_device({0, memory.get(), memory.get()}, nullptr);
    job.wait_step(kLong);
    it.from_device = Crossed::now().from_device - before.from_device;
    it.to_device = Crossed::now().to_device - before.to_device;
    std::printf("%s: %llu of %llu bytes from the device, %llu to it\n", name,
                static_cast<unsigned long long>(it.from_device),
                static_cast<unsigned long long>(kBytes),
                static_cast<unsigned long long>(it.to_device));
    return it;
  };
  const auto there =
      HasSubstr("device 1 (fake 1, pinned): 1 tensors are pruned and rounded on the device");
  const auto whole = HasSubstr("1 tensors, 'g' first, cross the bus whole");
  const Found plain = found("bus-plain", [](Options&) {});
  EXPECT_THAT(plain.log, AllOf(testing::Not(there), testing::Not(whole)));
  EXPECT_EQ(plain.from_device, kBytes);
  const Found half = found("bus-half", [](Options& o) { o.wire = SLUICE_WIRE_BFLOAT16; });
  EXPECT_THAT(half.log, AllOf(there, testing::Not(whole)));
  EXPECT_EQ(half.from_device, kBytes / 2);
  EXPECT_LT(half.to_device, kBytes / 2 + kBytes / 40) << "results, and 25 bytes a chunk";
  const Found quarter = found("bus-quarter", [](Options& o) { o.wire = SLUICE_WIRE_INT8; });
  EXPECT_LT(quarter.from_device, kBytes / 4 + kBytes / 200);
  const Found pruned = found("bus-pruned", [](Options& o) { o.prune.rule = SLUICE_PRUNE_STATIC; });
  EXPECT_THAT(pruned.log, there);
  EXPECT_LT(pruned.from_device, kBytes / 35) << "1 % of the values, their places, 10 bytes a chunk";
  EXPECT_LT(pruned.to_device, kBytes / 20);
  const auto is_whole = [&](const Found& one, const char* why) {
    EXPECT_THAT(one.log, AllOf(whole, HasSubstr(why), testing::Not(there)));
    EXPECT_EQ(one.from_device, kBytes);
    EXPECT_EQ(one.to_device, kBytes);
  };
  is_whole(found("bus-sampled", [](Options& o) { o.prune.rule = SLUICE_PRUNE_SAMPLED; }),
           "the rule 'sampled' is the host's");
  is_whole(found("bus-raw", [](Options& o) { o.prune.rule = SLUICE_PRUNE_DYNAMIC_RAW; }),
           "the rule 'dynamic_raw' is the host's");
  is_whole(found("bus-momentum",
                 [](Options& o) {
                   o.prune.rule = SLUICE_PRUNE_STATIC;
                   o.prune.momentum = 0.9;
                 }),
           "momentum correction is the host's");
}

// k < n, by hand: what ranks applied and what their residuals keep is what they have submitted.
struct Ledger {
  std::vector<float> submitted, applied, residual;
  std::uint64_t kept_chunks = 0, discarded_chunks = 0;
};

Ledger run_late(const Options& wanted, std::uint32_t rank, std::latch& all_over) {
  constexpr std::size_t kElems = 6'000;
  constexpr std::uint32_t kSteps = 20;
  Ledger ledger{std::vector<float>(kElems), std::vector<float>(kElems), {}};
  Job job(wanted, {{"w", kElems}});
  DeviceFloats memory(kElems);
  std::vector<float> values(kElems);
  const bool on_device = wanted.device.memory != SLUICE_MEMORY_HOST;
  for (std::uint32_t step = 0; step < kSteps;) {
    if (job.position().behind != 0) {
      on_device ? job.submit_device({0, nullptr, memory.get()}, nullptr, true)
                : job.catch_up(0, values.data());
    } else {
      std::this_thread::sleep_for(milliseconds(rank == 2 ? 12 : 2));
      for (std::size_t i = 0; i < kElems; ++i) {
        values[i] = static_cast<float>((i * 7 + step * 3 + rank * 5) % 15) - 7;
        ledger.submitted[i] += values[i];
      }
      memory.write(values);
      on_device ? job.submit_device({0, memory.get(), memory.get()}, nullptr)
                : job.submit({0, values.data(), values.data()});
    }
    step = job.wait(0, kLong).step;
    if (on_device) values = memory.read();
    for (std::size_t i = 0; i < kElems; ++i) ledger.applied[i] += values[i];
  }
  ledger.residual = job.residual(0, kElems);
  ledger.kept_chunks = job.counters().kept_chunks;
  ledger.discarded_chunks = job.counters().discarded_chunks;
  all_over.arrive_and_wait();
  return ledger;
}

TEST_F(DeviceJobs, LoseNothingOfWhatIsLate) {
  constexpr int kAttempts = 5;  // on a machine that stands still somebody may fall behind
  std::uint64_t kept_chunks = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::vector<Ledger> ledgers(3);
    std::latch all_over(3);
    std::atomic<int> behind{0};
    on_every_rank(3, [&](std::uint32_t rank) {
      Options wanted = fixed("device-late" + std::to_string(attempt), rank, 3, 2, SLUICE_LATE_DROP);
      wanted.averaging = SLUICE_AVERAGE_SUM;
      wanted.prune.rule = SLUICE_PRUNE_STATIC;
      wanted.prune.fraction = 0.3;
      if (rank != 1) wanted.device.memory = SLUICE_MEMORY_DEVICE;
      try {
        ledgers[rank] = run_late(wanted, rank, all_over);
      } catch (const sluice::Error& error) {
        ++behind;
        all_over.count_down();
        if (error.status() != SLUICE_BEHIND) throw;
      }
    });
    if (behind != 0) continue;
    for (std::size_t i = 0; i < ledgers[0].applied.size(); ++i) {
      float submitted = 0, residual = 0;
      for (const Ledger& ledger : ledgers) {
        submitted += ledger.submitted[i];
        residual += ledger.residual[i];
      }
      for (const Ledger& ledger : ledgers) ASSERT_EQ(ledger.applied[i] + residual, submitted) << i;
    }
    for (const Ledger& ledger : ledgers) EXPECT_EQ(ledger.discarded_chunks, 0u);
    kept_chunks = ledgers[2].kept_chunks;
    if (kept_chunks != 0) break;
  }
  EXPECT_GT(kept_chunks, 0u) << "nothing was late";
}

TEST_F(DeviceJobs, AreBusyForWhoAsksWhatIsLeftBehindInTheMiddleOfAStep) {
  std::promise<void> asked;
  on_every_rank(2, [&](std::uint32_t rank) {
    Options wanted = options("far-asks", rank, 2);
    wanted.prune.rule = SLUICE_PRUNE_STATIC;
    wanted.device.memory = rank == 0 ? SLUICE_MEMORY_DEVICE : SLUICE_MEMORY_HOST;
    Job job(wanted, {{"far", kBig}});
    DeviceFloats far(kBig);
    std::vector<float> near(kBig);
    far.write(near);
    std::iota(near.begin(), near.end(), 1.0f);
    if (rank == 0) {
      job.submit_device({0, far.get(), far.get()}, nullptr);
      const sluice::Error error = error_of([&] { (void)job.left_behind(); });
      EXPECT_EQ(error.status(), SLUICE_BUSY);
      EXPECT_THAT(error.what(), HasSubstr("'far' is in flight"));
      asked.set_value();
    } else {
      asked.get_future().wait_for(kLong);
      job.submit({0, near.data(), near.data()});
    }
    job.wait_step(kLong);
    EXPECT_EQ(job.left_behind().elem_count == 0, rank == 0) << "of zeros nothing is left";
  });
}

TEST_F(DeviceJobs, FailForAllWhenAKernelFails) {
  // Converted; updated; what is left is read once more after the job's end.
  for (const int which : {1, 2, 3}) {
    const std::string fault = "late_us=100,fail_kernel=" + std::to_string(which);
    ::setenv("SLUICE_FAKE_DEVICE", fault.c_str(), 1);
    const auto start = Clock::now();
    on_every_rank(2, [&](std::uint32_t rank) {
      Options wanted = options(("device-kernel" + std::to_string(which)).c_str(), rank, 2);
      wanted.wire = SLUICE_WIRE_BFLOAT16;
      if (rank == 1) wanted.device.memory = SLUICE_MEMORY_HOST;
      std::atomic<int> told{0}, ended{0};
      wanted.callbacks.on_tensor_done = [&](std::uint32_t, sluice_status status) {
        ++ended;
        told += status != SLUICE_OK;
      };
      DeviceFloats a(kSmall);
      std::vector<float> host(kSmall);
      const sluice::Error error = error_of([&] {
        Job job(wanted, {{"a", kSmall}});
        int given = 0;
        const auto last = [&] {
          for (int i = 0; i < 10'000 && ended != given; ++i)
            std::this_thread::sleep_for(milliseconds(1));
        };
        try {
          for (; given < 50;) {
            if (rank == 0) job.submit_device({0, a.get(), a.get()}, nullptr);
            if (rank == 1) job.submit({0, host.data(), host.data()});
            ++given;
            job.wait(0, kLong);
          }
        } catch (...) {
          last();
          EXPECT_EQ(ended, given);
          if (rank == 0) {
            EXPECT_EQ(error_of([&] { (void)job.residual(0, kSmall); }).status(), SLUICE_IO_ERROR);
          }
          throw;
        }
      });
      EXPECT_EQ(error.status(), rank == 0 ? SLUICE_IO_ERROR : SLUICE_PEER_LOST) << error.what();
      if (rank != 0) return;
      EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor 'a'"), HasSubstr("device 1 (fake 1"),
                                      HasSubstr(which == 1 ? "packing it" : "unpacking it"),
                                      HasSubstr("was told to fail this kernel")));
      EXPECT_EQ(told, 1);
    });
    EXPECT_LT(seconds_since(start), 10) << "the others heard of it by silence only";
  }
}

}  // namespace
}  // namespace job_test

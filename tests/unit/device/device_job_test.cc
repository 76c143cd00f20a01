// Whole jobs whose gradients are in the memory of a device: a fake one, late and out of order.
#include <atomic>

#include "tests/unit/device/device_jobs.h"

namespace job_test {
namespace {

TEST_F(DeviceJobs, SumWhatLiesInDeviceMemoryBesideWhatLiesInTheHosts) {
  on_every_rank(2, [&](std::uint32_t rank) {
    std::atomic<int> told{0};
    Options wanted = options("device-sum", rank, 2);
    wanted.averaging = SLUICE_AVERAGE_SUM;
    wanted.callbacks.on_tensor_done = [&](std::uint32_t, sluice_status status) {
      told += status == SLUICE_OK;
    };
    Job job(wanted, {{"big", kBig}, {"small", kSmall}, {"host", 100}});
    DeviceFloats big(kBig), small(kSmall), result(kSmall);
    std::vector<float> host(100);
    for (std::uint32_t step = 1; step <= 8; ++step) {
      const float factor = static_cast<float>((rank + 1) * step);
      big.write(ramp(kBig, factor));
      small.write(ramp(kSmall, factor));
      std::fill(host.begin(), host.end(), factor);
      job.submit_device({0, big.get(), big.get(), 1, 9}, nullptr);
      job.submit({2, host.data(), host.data()});
      job.submit_device({1, small.get(), result.get()}, nullptr);
      EXPECT_EQ(error_of([&] {
                  job.submit_device({0, big.get(), big.get()}, nullptr);
                }).status(),
                SLUICE_BUSY);
      job.end_step();
      job.wait(1, kLong);
      const float sum = static_cast<float>(3 * step);
      EXPECT_EQ(result.read(), ramp(kSmall, sum));
      EXPECT_EQ(job.wait_step(kLong), step);
      EXPECT_EQ(big.read(), ramp(kBig, sum));
      EXPECT_EQ(small.read(), ramp(kSmall, factor)) << "the input was written to";
      EXPECT_EQ(host, std::vector<float>(100, sum));
    }
    job.leave();
    EXPECT_EQ(told, 24);
  });
}

TEST_F(DeviceJobs, SubmitManyTensorsInOneCall) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Options wanted = options("device-many", rank, 2);
    wanted.averaging = SLUICE_AVERAGE_SUM;
    Job job(wanted, {{"a", kSmall}, {"b", kSmall}});
    DeviceFloats a(kSmall), b(kSmall);
    a.write(ramp(kSmall, 1));
    b.write(ramp(kSmall, 2));
    std::vector<sluice_submission> submissions(2);
    for (std::uint32_t tensor : {0u, 1u}) {
      submissions[tensor].tensor = tensor;
      submissions[tensor].weight = 1;
      submissions[tensor].input = submissions[tensor].output = (tensor == 0 ? a : b).get();
    }
    job.submit(submissions);
    EXPECT_EQ(job.wait({0, 1}, 2, kLong), 2u);
    EXPECT_EQ(a.read(), ramp(kSmall, 2));
    EXPECT_EQ(b.read(), ramp(kSmall, 4));
  });
}

// A step that is ended while its gradients are copied has in it what came before, and no more.
TEST_F(DeviceJobs, EndAStepWhereTheApplicationSaidSo) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Job job(options("device-end", rank, 2), {{"a", kBig}, {"b", kSmall}});
    DeviceFloats a(kBig), b(kSmall);
    a.write(ramp(kBig, 1));
    job.submit_device({0, a.get(), a.get()}, nullptr);
    job.end_step();  // without b
    b.write(ramp(kSmall, 2));
    job.submit_device({1, b.get(), b.get()}, nullptr);
    EXPECT_EQ(job.wait(0, kLong).step, 1u);
    a.write(ramp(kBig, 3));
    job.submit_device({0, a.get(), a.get()}, nullptr);
    EXPECT_EQ(job.wait_step(kLong), 2u);
    EXPECT_EQ(a.read(), ramp(kBig, 3));
    EXPECT_EQ(b.read(), ramp(kSmall, 2));
  });
}

TEST_F(DeviceJobs, GetAverageWithoutAGradientOfTheirOwn) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Options wanted = options("device-nil", rank, 2);
    wanted.averaging = SLUICE_AVERAGE_SUM;
    Job job(wanted, {{"a", kSmall}});
    DeviceFloats a(kSmall);
    a.write(ramp(kSmall, 5));
    job.submit_device({0, rank == 0 ? a.get() : nullptr, a.get()}, nullptr);
    job.wait(0, kLong);
    EXPECT_EQ(a.read(), ramp(kSmall, 5));
    job.submit_device({0, nullptr, a.get()}, nullptr);
    EXPECT_NE(job.wait(0, kLong).absent, 0);
    EXPECT_EQ(a.read(), ramp(kSmall, 5)) << "nobody had data";
  });
}

TEST_F(DeviceJobs, PruneAsHostMemoryIsPruned) {
  constexpr std::size_t kElems = 40'000;
  std::vector<std::vector<float>> results(2);
  for (const bool on_device : {false, true}) {
    on_every_rank(2, [&](std::uint32_t rank) {
      Options wanted = options(on_device ? "device-prune" : "host-prune", rank, 2);
      wanted.prune.rule = SLUICE_PRUNE_STATIC;
      Job job(wanted, {{"g", kElems}});
      DeviceFloats memory(kElems);
      std::vector<float> values = ramp(kElems, static_cast<float>(rank + 1));
      for (int step = 0; step < 3; ++step) {
        if (on_device) {
          memory.write(values);
          job.submit_device({0, memory.get(), memory.get()}, nullptr);
        } else {
          job.submit({0, values.data(), values.data()});
        }
        job.wait_step(kLong);
        if (on_device) values = memory.read();
      }
      const std::vector<float> residual = job.residual(0, kElems);
      values.insert(values.end(), residual.begin(), residual.end());
      if (rank == 0) results[on_device] = values;
    });
  }
  EXPECT_EQ(results[0], results[1]);
}

// Each gradient once, and each average once; neither what is no gradient nor what nobody had.
TEST_F(DeviceJobs, CrossTheBusOnceEachWay) {
  constexpr std::uint64_t kBytes = kBig * sizeof(float);
  Options wanted = options("device-bus", 0, 1);
  wanted.allow_nil = true;
  Job job(wanted, {{"g", kBig}});
  DeviceFloats memory(kBig);
  const Crossed first = Crossed::now();
  for (int step = 0; step < 3; ++step) {
    job.submit_device({0, memory.get(), memory.get()}, nullptr);
    job.wait_step(kLong);
  }
  const Crossed then = Crossed::now();
  EXPECT_EQ(then.from_device - first.from_device, 3 * kBytes);
  EXPECT_EQ(then.to_device - first.to_device, 3 * kBytes);
  job.submit_device({0, nullptr, memory.get()}, nullptr);
  job.wait_step(kLong);
  EXPECT_EQ(Crossed::now().from_device, then.from_device);
  EXPECT_EQ(Crossed::now().to_device, then.to_device);
}

TEST_F(DeviceJobs, FailForAllWhenACopyFails) {
  for (const char* const fault : {"fail=1", "fail=2"}) {  // out of the device; back into it
    ::setenv("SLUICE_FAKE_DEVICE", fault, 1);
    const std::string name = std::string("device-") + fault[5];
    on_every_rank(1, [&](std::uint32_t rank) {
      std::atomic<int> told{0};
      Options wanted = options(name.c_str(), rank, 1);
      wanted.callbacks.on_tensor_done = [&](std::uint32_t, sluice_status status) {
        told += status != SLUICE_OK;
      };
      Job job(wanted, {{"a", kSmall}});
      DeviceFloats a(kSmall);
      job.submit_device({0, a.get(), a.get()}, nullptr);
      const sluice::Error error = error_of([&] { job.wait(0, kLong); });
      EXPECT_EQ(error.status(), SLUICE_IO_ERROR);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor 'a'"), HasSubstr("device 1 (fake 1"),
                                      HasSubstr(fault[5] == '1' ? "from the device" : "to the"),
                                      HasSubstr("was told to fail")));
      EXPECT_EQ(error_of([&] {
                  job.submit_device({0, a.get(), a.get()}, nullptr);
                }).status(),
                SLUICE_IO_ERROR);
      for (int i = 0; i < 10'000 && told == 0; ++i) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(told, 1);
    });
  }
  ::setenv("SLUICE_FAKE_DEVICE", "fail=1", 1);
  const auto start = Clock::now();
  on_every_rank(2, [&](std::uint32_t rank) {
    Options wanted = options("device-others", rank, 2);
    if (rank == 1) wanted.device.memory = SLUICE_MEMORY_HOST;
    DeviceFloats a(kSmall);
    std::vector<float> host(kSmall);
    const sluice::Error error = error_of([&] {  // the other rank hears of it in any of these
      Job job(wanted, {{"a", kSmall}});
      if (rank == 0) job.submit_device({0, a.get(), a.get()}, nullptr);
      if (rank == 1) job.submit({0, host.data(), host.data()});
      job.wait(0, kLong);
    });
    EXPECT_EQ(error.status(), rank == 0 ? SLUICE_IO_ERROR : SLUICE_PEER_LOST) << error.what();
  });
  EXPECT_LT(seconds_since(start), 10) << "the others heard of it by silence only";
}

// A device that never says that a copy is done: who waits is told for what, and can end.
TEST_F(DeviceJobs, SayWhichCopyTheyWaitFor) {
  for (const char* const fault : {"lose=1", "lose=2"}) {  // out of the device; back into it
    ::setenv("SLUICE_FAKE_DEVICE", fault, 1);
    const std::string name = std::string("device-") + fault;
    const auto start = Clock::now();
    {
      Job job(options(name.c_str(), 0, 1), {{"a", kSmall}});
      DeviceFloats a(kSmall);
      job.submit_device({0, a.get(), a.get()}, nullptr);
      const sluice::Error error = error_of([&] { job.wait(0, milliseconds(200)); });
      EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
      EXPECT_THAT(error.what(), HasSubstr(fault[5] == '1' ? "'a' is copied from the device"
                                                          : "'a' is copied to the device"));
    }
    EXPECT_LT(seconds_since(start), 10) << fault << ": closing waits for it";
  }
}

TEST_F(DeviceJobs, CanBeLeftAndClosedWhileCopiesRun) {
  ::setenv("SLUICE_FAKE_DEVICE", "late_us=50000", 1);
  Job job(options("device-close", 0, 1), {{"a", kBig}, {"b", kSmall}});
  DeviceFloats a(kBig), b(kSmall);
  job.submit_device({0, a.get(), a.get()}, nullptr);
  job.submit_device({1, b.get(), b.get()}, nullptr);
  job.leave();
  EXPECT_EQ(error_of([&] { job.wait(0, kLong); }).status(), SLUICE_CLOSED);
}

TEST_F(DeviceJobs, SayWhichWayIsTakenAndWhyNotTheOthers) {
  ::setenv("SLUICE_FAKE_DEVICE", "absent=pinned", 1);
  std::string log;
  Options wanted = options("device-log", 0, 1);
  wanted.callbacks.log = [&](sluice_log_level, const char* text) {
    log += std::string(text) + "\n";
  };
  { Job job(wanted, {{"a", kSmall}}); }
  EXPECT_THAT(log, AllOf(HasSubstr("not gpudirect: no transport"),
                         HasSubstr("not pinned: the fake device has no pinned"),
                         HasSubstr("device 1 (fake 1, pinned_zero_copy): copies at 4 GB/s")));
  wanted.device.memory = SLUICE_MEMORY_PINNED;
  const sluice::Error forced = error_of([&] { Job job(wanted, {{"a", kSmall}}); });
  EXPECT_EQ(forced.status(), SLUICE_IO_ERROR);
  EXPECT_THAT(forced.what(), HasSubstr("pinned: the fake device has no pinned"));
  wanted.device.memory = SLUICE_MEMORY_GPUDIRECT;
  EXPECT_THAT(error_of([&] { Job job(wanted, {{"a", kSmall}}); }).what(), HasSubstr("gpudirect"));
  wanted.device.memory = SLUICE_MEMORY_DEVICE;
  wanted.device.index = 2;
  const sluice::Error missing = error_of([&] { Job job(wanted, {{"a", kSmall}}); });
  EXPECT_EQ(missing.status(), SLUICE_NOT_FOUND);
  EXPECT_THAT(missing.what(), HasSubstr("device 2 does not exist"));
  std::vector<char> text(4096);
  ASSERT_EQ(sluice_describe_memory(0, text.data(), text.size()), SLUICE_OK);
  EXPECT_THAT(text.data(), AllOf(HasSubstr("host: works\n"), HasSubstr("gpudirect: no transport"),
                                 HasSubstr("pinned_zero_copy: works, fake 0, 4 GB/s, "
                                           "what is pruned or rounded is packed there")));
}

TEST_F(DeviceJobs, SayWhatToInstallWithoutThePlugin) {
  ::setenv("SLUICE_PLUGIN_DIR", "/nonexistent", 1);
  const sluice::Error error = error_of([&] {
    Job job(options("device-none", 0, 1), {{"a", kSmall}});
  });
  EXPECT_EQ(error.status(), SLUICE_NOT_FOUND);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("/nonexistent/libsluice_cuda.so"), HasSubstr("SLUICE_PLUGIN_DIR"),
                    HasSubstr("nvcc"), HasSubstr("driver")));
  std::vector<char> text(4096);
  ASSERT_EQ(sluice_describe_memory(0, text.data(), text.size()), SLUICE_OK);
  EXPECT_THAT(text.data(), AllOf(HasSubstr("host: works\n"), HasSubstr("pinned: the plug-in")));
}

TEST_F(DeviceJobs, RefuseDeviceMemoryWhereTheyWereJoinedForTheHosts) {
  Job job(options_for("device-host", 0, 1), {{"a", kSmall}});
  DeviceFloats a(kSmall);
  const sluice::Error error = error_of([&] { job.submit_device({0, a.get(), a.get()}, nullptr); });
  EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(error.what(), HasSubstr("SLUICE_MEMORY_DEVICE"));
}

}  // namespace
}  // namespace job_test

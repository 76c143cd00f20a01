// Helpers of the tests of jobs over a fake device: its memory, its bus, and jobs that have joined.
#pragma once

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "tests/unit/client_abi/job_support.h"

namespace job_test {

using sluice::Job;
using sluice::Options;
using testing::AllOf;
using testing::HasSubstr;

inline constexpr std::size_t kBig = 200'000;  // several pieces
inline constexpr std::size_t kSmall = 17;

template <typename Function>
Function* of_fake_device(const char* name) {
  void* const plugin = ::dlopen(FAKE_DEVICE_DIR "/libsluice_cuda.so", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(plugin, name));
}

// The bytes that have crossed the fake device's bus.
struct Crossed {
  std::uint64_t from_device = 0, to_device = 0;
  static Crossed now() {
    Crossed crossed;
    of_fake_device<void(std::uint64_t*, std::uint64_t*)>("sluice_fake_bytes")(&crossed.from_device,
                                                                              &crossed.to_device);
    return crossed;
  }
};

// Memory that only the fake device can touch.
class DeviceFloats {
 public:
  explicit DeviceFloats(std::size_t count)
      : count_(count),
        memory_(of_fake_device<void*(std::size_t)>("sluice_fake_allocate")(count * sizeof(float))),
        copy_(of_fake_device<void(void*, const void*, std::size_t)>("sluice_fake_copy")) {}
  void* get() const { return memory_; }
  void write(const std::vector<float>& values) {
    copy_(memory_, values.data(), count_ * sizeof(float));
  }
  std::vector<float> read() const {
    std::vector<float> values(count_);
    copy_(values.data(), memory_, count_ * sizeof(float));
    return values;
  }

 private:
  std::size_t count_;
  void* memory_;
  void (*copy_)(void*, const void*, std::size_t);
};

class DeviceJobs : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_PLUGIN_DIR", FAKE_DEVICE_DIR, 1);
    ::setenv("SLUICE_FAKE_DEVICE", "late_us=300", 1);
  }
  void TearDown() override {
    ::unsetenv("SLUICE_PLUGIN_DIR");
    ::unsetenv("SLUICE_FAKE_DEVICE");
  }
  static Options options(const char* name, std::uint32_t rank, std::uint32_t world_size) {
    Options options = options_for(name, rank, world_size);
    options.device.memory = SLUICE_MEMORY_DEVICE;
    options.device.index = 1;
    return options;
  }
  static std::vector<float> ramp(std::size_t count, float factor) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = factor * static_cast<float>(i % 1000);
    return values;
  }
};

}  // namespace job_test

// A plug-in for device memory without a device: late, out of order, failing, as the environment
// says. The production loader loads it as libsluice_cuda.so from SLUICE_PLUGIN_DIR.
//
// SLUICE_FAKE_DEVICE is a list such as "late_us=300,fail=7,absent=pinned". late_us: the work that a
// mark stands for is done up to so much later, drawn for each mark. fail: the 7th copy fails;
// fail_kernel: the 7th kernel fails; lose: it never reports its end. absent: this way can't be
// opened. Kernels run in order, when the device gets to them. Any host memory will do as the
// device's. Memory of sluice_fake_allocate() and of the kernels' acquire() is for copies and
// kernels alone: any other read or write of it ends the process.
#include "tests/fake_device/fake_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
thread_local std::string error_text;
// That have crossed the bus since the program began.
std::atomic<std::uint64_t> bytes_from_device{0}, bytes_to_device{0};

std::string setting(const char* name) {
  const char* const all = std::getenv("SLUICE_FAKE_DEVICE");
  const std::string list = all == nullptr ? "" : std::string(",") + all;
  const std::string key = std::string(",") + name + "=";
  const std::size_t at = list.find(key);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + key.size();
  return list.substr(begin, list.find(',', begin) - begin);
}

long number(const char* name) { return std::atol(setting(name).c_str()); }

// The device's memory that sluice_fake_allocate() has given.
struct Regions {
  std::mutex mutex;
  struct Region {
    std::uint8_t* begin = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Region> list;
};
Regions& regions() {
  static Regions instance;
  return instance;
}

}  // namespace

namespace fake_device {

void as_device(const std::function<void()>& work) {
  Regions& all = regions();
  const std::lock_guard lock(all.mutex);
  const auto protect = [&](int protection) {
    for (const Regions::Region& region : all.list)
      if (::mprotect(region.begin, region.bytes, protection) != 0) std::abort();
  };
  protect(PROT_READ | PROT_WRITE);
  work();
  protect(PROT_NONE);
}

void* acquire(std::size_t bytes) {
  Regions& all = regions();
  const std::lock_guard lock(all.mutex);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = std::max(page, (bytes + page - 1) / page * page);
  void* const memory = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  all.list.push_back({static_cast<std::uint8_t*>(memory), size});
  return memory;
}

void give_back(void* memory) {
  Regions& all = regions();
  const std::lock_guard lock(all.mutex);
  const auto found =
      std::find_if(all.list.begin(), all.list.end(),
                   [&](const Regions::Region& region) { return region.begin == memory; });
  if (found == all.list.end() || ::munmap(found->begin, found->bytes) != 0) std::abort();
  all.list.erase(found);
}

void count_to_device(std::size_t bytes) { bytes_to_device += bytes; }

}  // namespace fake_device

struct sluice_device_mark {
  Clock::time_point due;
  void* to = nullptr;  // of a copy that is still to be made
  const void* from = nullptr;
  std::size_t bytes = 0;
  bool fails = false;
  std::atomic<std::uint64_t>* crossed = nullptr;  // of a copy: what counts its bytes
  std::uint64_t kernel = 0;  // what has run up to there; 0: a copy, or a stream
};

struct sluice_device {
  long late_us = 0;
  long fail = 0;
  long fail_kernel = 0;
  long lose = 0;
  std::atomic<long> copies{0};
  std::mutex mutex;
  std::mt19937 random{1};
  std::deque<std::function<void()>> kernels;  // that have not run
  std::uint64_t kernels_run = 0;

  sluice_device_mark* mark(void* to, const void* from, std::size_t bytes,
                           std::atomic<std::uint64_t>* crossed) {
    const std::lock_guard lock(mutex);
    const long wait_us = late_us == 0 ? 0 : static_cast<long>(random() % late_us);
    const long copy = to == nullptr ? -1 : ++copies;
    const auto due =
        copy == lose ? Clock::time_point::max() : Clock::now() + std::chrono::microseconds(wait_us);
    return new sluice_device_mark{due, to, from, bytes, copy == fail, crossed};
  }
  void run_kernels(std::uint64_t up_to) {
    for (; kernels_run < up_to && !kernels.empty(); ++kernels_run) {
      fake_device::as_device(kernels.front());
      kernels.pop_front();
    }
  }
  void run_all() { run_kernels(UINT64_MAX); }
};

namespace fake_device {

sluice_device_mark* start(sluice_device* device, std::function<void()> kernel) {
  device->kernels.push_back(std::move(kernel));
  sluice_device_mark* const mark = device->mark(nullptr, nullptr, 0, nullptr);
  mark->kernel = device->kernels_run + device->kernels.size();
  // All behind it fail too, as on a device.
  mark->fails =
      device->fail_kernel != 0 && mark->kernel >= static_cast<std::uint64_t>(device->fail_kernel);
  if (mark->fails) device->kernels.back() = [] {};
  return mark;
}

void await(sluice_device* device) { device->run_all(); }

}  // namespace fake_device

namespace {

sluice_device* open_fake(std::int32_t ordinal, std::int32_t path, sluice_device_facts* facts) {
  const char* const way = path == SLUICE_DEVICE_PINNED ? "pinned" : "zero_copy";
  if (setting("absent") == way || setting("absent") == "all") {
    error_text = std::string("the fake device has no ") + way;
    return nullptr;
  }
  std::snprintf(facts->name, sizeof facts->name, "fake %d", ordinal);
  facts->bytes_per_s = 4e9;
  auto* const device = new sluice_device;
  device->late_us = number("late_us");
  device->fail = number("fail");
  device->fail_kernel = number("fail_kernel");
  device->lose = number("lose");
  return device;
}

void close_fake(sluice_device* device) {
  device->run_all();
  delete device;
}
const char* error_of_thread() { return error_text.c_str(); }
std::int32_t count() { return 2; }
void* allocate(sluice_device*, std::size_t bytes) { return std::malloc(bytes); }
void release(sluice_device* device, void* memory) {
  device->run_all();
  std::free(memory);
}

sluice_device_mark* mark(sluice_device* device, void* /*stream*/) {
  return device->mark(nullptr, nullptr, 0, nullptr);
}
sluice_device_mark* copy_in(sluice_device* device, void* host, const void* memory,
                            std::size_t bytes) {
  return device->mark(host, memory, bytes, &bytes_from_device);
}
sluice_device_mark* copy_out(sluice_device* device, void* memory, const void* host,
                             std::size_t bytes) {
  return device->mark(memory, host, bytes, &bytes_to_device);
}

std::int32_t passed(sluice_device* device, sluice_device_mark* mark) {
  if (Clock::now() < mark->due) return 0;
  device->run_kernels(mark->kernel);
  if (mark->fails) {
    error_text = std::string("the fake device was told to fail this ") +
                 (mark->kernel == 0 ? "copy" : "kernel");
    return -1;
  }
  if (mark->to != nullptr) {
    fake_device::as_device([&] { std::memcpy(mark->to, mark->from, mark->bytes); });
    *mark->crossed += mark->bytes;
  }
  mark->to = nullptr;
  return 1;
}

void drop(sluice_device*, sluice_device_mark* mark) { delete mark; }

}  // namespace

extern "C" __attribute__((visibility("default")))
const sluice_device_plugin sluice_device_plugin = {
    .abi = SLUICE_DEVICE_PLUGIN_ABI,
    .error = error_of_thread,
    .count = count,
    .open = open_fake,
    .close = close_fake,
    .allocate = allocate,
    .release = release,
    .mark = mark,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .passed = passed,
    .drop = drop,
};

extern "C" __attribute__((visibility("default"))) void* sluice_fake_allocate(std::size_t bytes) {
  return fake_device::acquire(bytes);
}

extern "C" __attribute__((visibility("default"))) void sluice_fake_copy(void* to, const void* from,
                                                                        std::size_t bytes) {
  fake_device::as_device([&] { std::memcpy(to, from, bytes); });
}

extern "C" __attribute__((visibility("default"))) void sluice_fake_bytes(std::uint64_t* from_device,
                                                                         std::uint64_t* to_device) {
  *from_device = bytes_from_device;
  *to_device = bytes_to_device;
}

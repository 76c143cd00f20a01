// A plug-in for device memory without a device: late, out of order, failing, as the environment
// says. Loaded by the production loader as libsluice_cuda.so, from SLUICE_PLUGIN_DIR.
//
// SLUICE_FAKE_DEVICE is a list such as "late_us=300,fail=7,absent=pinned": what a mark stands for
// is done up to so much later, drawn for each; the 7th copy fails; this way can't be opened. Any
// host memory will do as the device's. That of sluice_fake_allocate() can't be touched but by
// copies: whatever else reads or writes it dies.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>

#include "client/device/plugin.h"

namespace {

using Clock = std::chrono::steady_clock;
thread_local std::string error_text;
// That have crossed the bus since the program began.
std::atomic<std::uint64_t> bytes_from_device{0}, bytes_to_device{0};

std::string setting(const char* name) {
  const char* const all = std::getenv("SLUICE_FAKE_DEVICE");
  const std::string list = all == nullptr ? "" : all;
  const std::string key = std::string(name) + "=";
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
  } list[64];
  std::size_t count = 0;
};
Regions& regions() {
  static Regions instance;
  return instance;
}

// With the device's own access to its memory.
void copy_as_device(void* to, const void* from, std::size_t bytes) {
  Regions& all = regions();
  const std::lock_guard lock(all.mutex);
  const auto protect = [&](int protection) {
    for (std::size_t i = 0; i < all.count; ++i)
      if (::mprotect(all.list[i].begin, all.list[i].bytes, protection) != 0) std::abort();
  };
  protect(PROT_READ | PROT_WRITE);
  std::memcpy(to, from, bytes);
  protect(PROT_NONE);
}

}  // namespace

struct sluice_device_mark {
  Clock::time_point due;
  void* to = nullptr;  // of a copy that is still to be made
  const void* from = nullptr;
  std::size_t bytes = 0;
  bool fails = false;
  std::atomic<std::uint64_t>* crossed = nullptr;  // of a copy: what counts its bytes
};

struct sluice_device {
  long late_us = 0;
  long fail = 0;
  std::atomic<long> copies{0};
  std::mutex mutex;
  std::mt19937 random{1};

  sluice_device_mark* mark(void* to, const void* from, std::size_t bytes,
                           std::atomic<std::uint64_t>* crossed) {
    const std::lock_guard lock(mutex);
    const long wait_us = late_us == 0 ? 0 : static_cast<long>(random() % late_us);
    const bool fails = to != nullptr && ++copies == fail;
    return new sluice_device_mark{
        Clock::now() + std::chrono::microseconds(wait_us), to, from, bytes, fails, crossed};
  }
};

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
  return device;
}

void close_fake(sluice_device* device) { delete device; }
const char* error_of_thread() { return error_text.c_str(); }
std::int32_t count() { return 2; }
void* allocate(sluice_device*, std::size_t bytes) { return std::malloc(bytes); }
void release(sluice_device*, void* memory) { std::free(memory); }

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

std::int32_t passed(sluice_device*, sluice_device_mark* mark) {
  if (Clock::now() < mark->due) return 0;
  if (mark->fails) {
    error_text = "the fake device was told to fail this copy";
    return -1;
  }
  if (mark->to != nullptr) {
    copy_as_device(mark->to, mark->from, mark->bytes);
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
  Regions& all = regions();
  const std::lock_guard lock(all.mutex);
  if (all.count == std::size(all.list)) std::abort();
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (bytes + page - 1) / page * page;
  void* const memory = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  all.list[all.count++] = {static_cast<std::uint8_t*>(memory), size};
  return memory;
}

extern "C" __attribute__((visibility("default"))) void sluice_fake_copy(void* to, const void* from,
                                                                        std::size_t bytes) {
  copy_as_device(to, from, bytes);
}

extern "C" __attribute__((visibility("default"))) void sluice_fake_bytes(std::uint64_t* from_device,
                                                                         std::uint64_t* to_device) {
  *from_device = bytes_from_device;
  *to_device = bytes_to_device;
}

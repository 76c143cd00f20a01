// A worker without memory. Whichever allocation fails, in a call or on the job's own thread, the
// process goes on, and the call or the job fails with SLUICE_EXHAUSTED.
#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace {

// The allocation that fails, counted from 1 where it is armed; 0: none.
thread_local int fails_here = 0;
thread_local bool is_caller = false;
std::atomic<int> fails_elsewhere{0};
std::atomic<int> failed_count{0};

void* allocate(std::size_t bytes) {
  const bool fails = is_caller ? fails_here != 0 && --fails_here == 0
                               : fails_elsewhere.load() > 0 && fails_elsewhere.fetch_sub(1) == 1;
  void* const memory = fails ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  failed_count += fails;
  return memory;
}

void* allocate_or_throw(std::size_t bytes) {
  void* const memory = allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace {

constexpr std::uint64_t kElems = 3000;
constexpr std::int32_t kTimeoutMs = 20'000;

// A rank alone through all that a job does, until something fails.
class Script {
 public:
  explicit Script(const std::string& name) : address_("inproc://" + name), name_(name) {}
  ~Script() { sluice_close(job_); }

  sluice_status join() {
    sluice_options options{.struct_size = sizeof options};
    sluice_options_init(&options);
    options.address = address_.c_str();
    options.job_name = name_.c_str();
    options.run_id = 1;
    options.world_size = 1;
    options.prune.rule = SLUICE_PRUNE_STATIC;
    const sluice_tensor tensors[] = {{sizeof(sluice_tensor), "w", kElems, SLUICE_FLOAT32, 0},
                                     {sizeof(sluice_tensor), "b", 10, SLUICE_FLOAT32, 0}};
    return sluice_join(&options, tensors, 2, &job_);
  }
  sluice_status run() {
    sluice_status status = SLUICE_OK;
    const auto good = [&](sluice_status next) { return (status = next) == SLUICE_OK; };
    sluice_stall stall{.struct_size = sizeof stall};
    sluice_left_behind left{.struct_size = sizeof left};
    char plan[100];
    for (int step = 0; step < 3; ++step) {
      if (!good(sluice_submit(job_, 0, values_.data(), values_.data(), 1, 0))) return status;
      if (!good(sluice_end_step(job_))) return status;
      if (!good(sluice_get_stall(job_, &stall))) return status;
      if (!good(sluice_wait_step(job_, kTimeoutMs, nullptr))) return status;
      if (!good(sluice_wait_tensor(job_, 0, kTimeoutMs, nullptr))) return status;
    }
    if (!good(sluice_broadcast(job_, 0, values_.data(), 5000, kTimeoutMs))) return status;
    if (!good(sluice_barrier(job_, kTimeoutMs))) return status;
    if (!good(sluice_get_left_behind(job_, &left))) return status;
    if (!good(sluice_get_schedule_plan(job_, plan, sizeof plan))) return status;
    return sluice_leave(job_);
  }

 private:
  const std::string address_;
  const std::string name_;
  std::vector<float> values_ = std::vector<float>(kElems, 1.0f);
  sluice_job* job_ = nullptr;
};

void expect_exhausted(sluice_status status, int allocation) {
  if (status == SLUICE_OK) return;  // it was done without
  EXPECT_EQ(status, SLUICE_EXHAUSTED) << allocation << ": " << sluice_last_error(nullptr);
  EXPECT_NE(std::string(sluice_last_error(nullptr)), "") << allocation;
}

class Memory : public testing::Test {
 protected:
  // oneTBB starts up once a process, and has to succeed.
  static void SetUpTestSuite() {
    is_caller = true;
    Script script("first");
    ASSERT_EQ(script.join(), SLUICE_OK);
    ASSERT_EQ(script.run(), SLUICE_OK);
  }
};

TEST_F(Memory, ThatACallLacksFailsItAndNotTheProcess) {
  for (int allocation = 1;; ++allocation) {
    Script script("caller" + std::to_string(allocation));
    ASSERT_EQ(script.join(), SLUICE_OK);
    const int failed_before = failed_count;
    fails_here = allocation;
    const sluice_status status = script.run();
    fails_here = 0;
    expect_exhausted(status, allocation);
    if (failed_count == failed_before) break;  // it had all that it needs
  }
}

TEST_F(Memory, ThatAJoinLacksFailsItAndLeavesNothing) {
  for (int allocation = 1;; ++allocation) {
    Script script("joiner" + std::to_string(allocation));
    const int failed_before = failed_count;
    fails_here = allocation;
    const sluice_status status = script.join();
    fails_here = 0;
    expect_exhausted(status, allocation);
    if (failed_count == failed_before) break;
  }
}

TEST_F(Memory, ThatTheJobsOwnThreadLacksFailsTheJobAndNotTheProcess) {
  for (int allocation = 1;; ++allocation) {
    Script script("thread" + std::to_string(allocation));
    const int failed_before = failed_count;
    fails_elsewhere = allocation;
    sluice_status status = script.join();
    if (status == SLUICE_OK) status = script.run();
    fails_elsewhere = 0;
    if (status != SLUICE_REFUSED) expect_exhausted(status, allocation);  // so the appliance says
    if (failed_count == failed_before) break;
  }
}

}  // namespace

// Operations whose data are in the memory of a device: a fake one, late and out of order.
#include <algorithm>
#include <atomic>

#include "tests/unit/device/device_jobs.h"

namespace job_test {
namespace {

constexpr std::uint32_t kWorld = 3;

// A rank of a job of operations with a device, and its group of all ranks.
class Member {
 public:
  explicit Member(Options options) {
    const sluice_options raw = options.raw();
    check(sluice_join_operations(&raw, &job_));
    std::vector<std::uint32_t> ranks(options.world_size);
    for (std::uint32_t rank = 0; rank < options.world_size; ++rank) ranks[rank] = rank;
    check(sluice_make_group(job_, "all", ranks.data(), ranks.size(), &group_));
  }
  ~Member() { sluice_close(job_); }

  // Of device memory, unless it is the host's.
  static sluice_operation how(bool on_device = true) {
    sluice_operation operation{};
    operation.struct_size = sizeof operation;
    check(sluice_operation_init(&operation));
    operation.on_device = on_device;
    return operation;
  }
  std::uint64_t sum(const void* input, void* output, std::size_t count, bool on_device = true) {
    const sluice_operation operation = how(on_device);
    std::uint64_t ticket = 0;
    check(sluice_all_reduce(group_, input, output, count, &operation, &ticket));
    return ticket;
  }
  // All members are here, and the group is made.
  void meet() {
    std::uint64_t ticket = 0;
    check(sluice_group_barrier(group_, nullptr, &ticket));
    wait(ticket);
  }
  void wait(std::uint64_t ticket) { check(outcome(ticket)); }
  sluice_status outcome(std::uint64_t ticket) {
    std::int32_t done = 0;
    const sluice_status status = sluice_wait(group_, ticket, 60'000, &done);
    EXPECT_NE(done, 0);
    return status;
  }
  static void check(sluice_status status) {
    if (status != SLUICE_OK) throw std::runtime_error(sluice_last_error(nullptr));
  }
  sluice_group* group() const { return group_; }
  sluice_job* job() const { return job_; }

 private:
  sluice_job* job_ = nullptr;
  sluice_group* group_ = nullptr;
};

class DeviceOperations : public DeviceJobs {
 protected:
  static Options options(const std::string& name, std::uint32_t rank, std::uint32_t world) {
    return DeviceJobs::options(name.c_str(), rank, world);
  }
};

TEST_F(DeviceOperations, EveryKindReadsAndWritesDeviceMemory) {
  const Crossed before = Crossed::now();
  on_every_rank(kWorld, [&](std::uint32_t rank) {
    Member member(options("device-operations", rank, kWorld));
    const sluice_operation operation = Member::how();
    const float factor = static_cast<float>(rank + 1);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kSmall, kBig}) {
      DeviceFloats summed(count), reduced(count), whole(kWorld * count), part(count);
      DeviceFloats own(count), gathered(kWorld * count), sent(count);
      summed.write(ramp(count, factor));
      reduced.write(ramp(count, factor));
      whole.write(ramp(kWorld * count, factor));
      own.write(ramp(count, factor));
      sent.write(ramp(count, rank == 2 ? 9 : 0));
      std::vector<std::uint64_t> tickets(6);
      sluice_group* const group = member.group();
      Member::check(
          sluice_all_reduce(group, summed.get(), summed.get(), count, &operation, &tickets[0]));
      Member::check(sluice_reduce(group, 1, reduced.get(), rank == 1 ? reduced.get() : nullptr,
                                  count, &operation, &tickets[1]));
      Member::check(
          sluice_reduce_scatter(group, whole.get(), part.get(), count, &operation, &tickets[2]));
      Member::check(sluice_all_gather(group, own.get(), gathered.get(), count * sizeof(float),
                                      &operation, &tickets[3]));
      Member::check(sluice_group_broadcast(group, 2, sent.get(), count * sizeof(float), &operation,
                                           &tickets[4]));
      Member::check(sluice_group_barrier(group, &operation, &tickets[5]));
      for (const std::uint64_t ticket : tickets) member.wait(ticket);
      EXPECT_EQ(summed.read(), ramp(count, 6));
      EXPECT_EQ(reduced.read(), ramp(count, rank == 1 ? 6 : factor));
      const std::vector<float> sums = ramp(kWorld * count, 6);
      const auto first = sums.begin() + static_cast<std::ptrdiff_t>(rank * count);
      EXPECT_EQ(part.read(), std::vector<float>(first, first + static_cast<std::ptrdiff_t>(count)));
      std::vector<float> all;
      for (std::uint32_t one = 0; one < kWorld; ++one)
        for (const float value : ramp(count, static_cast<float>(one + 1))) all.push_back(value);
      EXPECT_EQ(gathered.read(), all);
      EXPECT_EQ(sent.read(), ramp(count, 9));
    }
  });
  const Crossed after = Crossed::now();
  const std::size_t elems = 1 + kSmall + kBig;
  // Of each rank: all, reduced, whole, own; the sum, part, gathered. Of one: the root's.
  EXPECT_EQ(after.from_device - before.from_device, elems * 4 * (3 * (1 + 1 + 3 + 1) + 1));
  EXPECT_EQ(after.to_device - before.to_device, elems * 4 * (3 * (1 + 1 + 3) + 1 + 2));
}

TEST_F(DeviceOperations, KeepTheirOrderBesideThoseOfHostMemory) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Member member(options("device-order", rank, 2));
    DeviceFloats there(kBig);
    std::vector<float> here(kSmall);
    for (int round = 0; round < 8; ++round) {
      there.write(ramp(kBig, static_cast<float>(rank + 1)));
      here = ramp(kSmall, 5);
      // A rank whose data are on a device calls the same as one whose data are not.
      std::vector<float> copy = ramp(kBig, 2);
      const bool on_device = rank == 0 || round % 2 == 0;
      const std::uint64_t first = on_device ? member.sum(there.get(), there.get(), kBig)
                                            : member.sum(copy.data(), copy.data(), kBig, false);
      const std::uint64_t second = member.sum(here.data(), here.data(), kSmall, false);
      EXPECT_EQ(second, first + 1);
      member.wait(second);
      EXPECT_EQ(here, ramp(kSmall, 10));
      member.wait(first);
      EXPECT_EQ(on_device ? there.read() : copy, ramp(kBig, 3));
    }
  });
}

TEST_F(DeviceOperations, AnEndIsToldOnceTheOutputIsThere) {
  struct Told {
    const DeviceFloats* memory = nullptr;
    std::atomic<int> right{0}, wrong{0};
  };
  on_every_rank(2, [&](std::uint32_t rank) {
    Member member(options("device-told", rank, 2));
    DeviceFloats memory(kBig);
    Told told{.memory = &memory};
    for (int round = 0; round < 5; ++round) {
      memory.write(ramp(kBig, static_cast<float>(rank + 1)));
      sluice_operation operation = Member::how();
      operation.user = &told;
      operation.done = [](void* user, std::uint64_t, sluice_status status) {
        auto& one = *static_cast<Told*>(user);
        const bool right = status == SLUICE_OK && one.memory->read() == ramp(kBig, 3);
        (right ? one.right : one.wrong) += 1;
      };
      std::uint64_t ticket = 0;
      Member::check(
          sluice_all_reduce(member.group(), memory.get(), memory.get(), kBig, &operation, &ticket));
      EXPECT_EQ(sluice_leave_group(member.group()), SLUICE_BUSY);
      member.wait(ticket);
      while (told.right + told.wrong <= round) std::this_thread::yield();
    }
    EXPECT_EQ(told.right, 5);
  });
}

TEST_F(DeviceOperations, AFailedCopyIsNamedAndEndsTheJobForAll) {
  for (const char* const fault : {"fail=1", "fail=2"}) {  // out of the device; back into it
    ::setenv("SLUICE_FAKE_DEVICE", fault, 1);
    on_every_rank(2, [&](std::uint32_t rank) {
      Member member(rank == 0 ? options(fault, rank, 2) : options_for(fault, rank, 2));
      member.meet();
      DeviceFloats memory(kSmall);
      std::vector<float> values = ramp(kSmall, 1);
      memory.write(values);
      const bool fails = rank == 0;
      const std::uint64_t ticket = fails ? member.sum(memory.get(), memory.get(), kSmall)
                                         : member.sum(values.data(), values.data(), kSmall, false);
      const sluice_status status = member.outcome(ticket);
      const std::string text = sluice_last_error(nullptr);
      if (fails) {
        EXPECT_EQ(status, SLUICE_IO_ERROR) << fault << ": " << text;
        EXPECT_THAT(text, AllOf(HasSubstr("group 'all', operation 1: copying"),
                                HasSubstr("was told to fail")));
        EXPECT_EQ(member.outcome(ticket), status) << "asked again";
      } else if (status == SLUICE_OK) {  // it was complete before
        EXPECT_EQ(values, ramp(kSmall, 2));
      } else {
        EXPECT_EQ(status, SLUICE_PEER_LOST) << text;
      }
    });
  }
}

TEST_F(DeviceOperations, AbortsAndClosesInTheMiddleLeaveNothingBehind) {
  ::setenv("SLUICE_FAKE_DEVICE", "late_us=3000", 1);
  for (int round = 0; round < 6; ++round) {
    const std::string name = "device-end-" + std::to_string(round);
    on_every_rank(2, [&](std::uint32_t rank) {
      DeviceFloats memory(kBig);
      memory.write(ramp(kBig, 1));
      Member member(options(name, rank, 2));
      member.meet();
      const std::uint64_t ticket = member.sum(memory.get(), memory.get(), kBig);
      if (round % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        if (rank == 0) Member::check(sluice_abort_group(member.group()));
        const sluice_status status = member.outcome(ticket);
        EXPECT_TRUE(rank == 1 ? status == SLUICE_PEER_LOST || status == SLUICE_OK
                              : status == SLUICE_CLOSED || status == SLUICE_OK)
            << sluice_status_name(status);
        if (status == SLUICE_OK) EXPECT_EQ(memory.read(), ramp(kBig, 2));
      }
    });
  }
}

TEST_F(DeviceOperations, ATimeoutOfOneWhoseStreamHangsEndsItForAll) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Member member(options("device-late", rank, 2));
    DeviceFloats memory(kSmall);
    memory.write(ramp(kSmall, 1));
    if (rank == 0) {
      sluice_operation operation = Member::how();
      operation.timeout_ms = 50;
      std::uint64_t ticket = 0;
      Member::check(sluice_all_reduce(member.group(), memory.get(), memory.get(), kSmall,
                                      &operation, &ticket));
      EXPECT_EQ(member.outcome(ticket), SLUICE_TIMED_OUT);
      EXPECT_EQ(memory.read(), ramp(kSmall, 1)) << "nothing was written";
    }
    Member::check(sluice_barrier(member.job(), 60'000));
    if (rank == 1)
      EXPECT_EQ(member.outcome(member.sum(memory.get(), memory.get(), kSmall)), SLUICE_TIMED_OUT);
    member.wait(member.sum(memory.get(), memory.get(), kSmall));
    EXPECT_EQ(memory.read(), ramp(kSmall, 2)) << "the group goes on";
  });
}

TEST_F(DeviceOperations, ADeviceThatTheJobDoesNotHaveIsRefused) {
  on_every_rank(1, [&](std::uint32_t rank) {
    Member member(options_for("device-none", rank, 1));
    const sluice_operation operation = Member::how();
    float value = 1;
    EXPECT_EQ(sluice_all_reduce(member.group(), &value, &value, 1, &operation, nullptr),
              SLUICE_INVALID_ARGUMENT);
    std::uint64_t ticket = 0;
    EXPECT_EQ(sluice_all_reduce(member.group(), &value, &value, 1, &operation, &ticket),
              SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(sluice_last_error(nullptr), HasSubstr("joined for host memory"));
  });
}

}  // namespace
}  // namespace job_test

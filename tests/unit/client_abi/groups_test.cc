// Groups and operations through the C interface: ranks as threads over an appliance in this
// process.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "tests/e2e/operations_checks.h"

namespace sluice {
namespace {

sluice_options options_of(const std::string& address, std::uint32_t rank, std::uint32_t world) {
  sluice_options options{};
  options.struct_size = sizeof options;
  EXPECT_EQ(sluice_options_init(&options), SLUICE_OK);
  options.address = address.c_str();
  options.job_name = "groups";
  options.run_id = 1;
  options.rank = rank;
  options.world_size = world;
  return options;
}

// body(job, rank) on a thread for each rank; what it throws is a failure.
void on_all_ranks(const std::string& name, std::uint32_t world,
                  const std::function<void(sluice_job*, std::uint32_t)>& body) {
  std::vector<std::string> failures(world);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const std::string address = "inproc://" + name;
        const sluice_options options = options_of(address, rank, world);
        sluice_job* job = nullptr;
        e2e::expect_ok(sluice_join_operations(&options, &job), "join");
        try {
          body(job, rank);
        } catch (const std::exception& error) {
          failures[rank] = error.what();
        }
        sluice_close(job);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::uint32_t rank = 0; rank < world; ++rank)
    EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

// Processes of an elastic job, as sessions of this one.
class Elastic {
 public:
  explicit Elastic(const std::string& name) {
    sluice_options options = options_of(address_ = "inproc://" + name, SLUICE_RANK_ANY, 8);
    e2e::expect_ok(sluice_join_operations(&options, &job_), "join");
    e2e::expect_ok(sluice_get_rank(job_, &rank_), "get_rank");
  }
  ~Elastic() { sluice_close(job_); }
  std::uint32_t rank() const { return rank_; }
  sluice_group* make(const std::string& name, const std::vector<std::uint32_t>& ranks) {
    sluice_group* group = nullptr;
    e2e::expect_ok(sluice_make_group(job_, name.c_str(), ranks.data(), ranks.size(), &group),
                   "make_group");
    return group;
  }
  std::uint64_t begin_sum(sluice_group* group, float& value) {
    std::uint64_t ticket = 0;
    e2e::expect_ok(sluice_all_reduce(group, &value, &value, 1, nullptr, &ticket), "all_reduce");
    return ticket;
  }
  static sluice_status end(sluice_group* group, std::uint64_t ticket) {
    std::int32_t done = 0;
    const sluice_status status = sluice_wait(group, ticket, SLUICE_FOREVER, &done);
    EXPECT_NE(done, 0);
    return status;
  }

 private:
  std::string address_;
  sluice_job* job_ = nullptr;
  std::uint32_t rank_ = 0;
};

// Sums 1, 2, 4 ... over the processes in a new group of that name.
void expect_sum(const std::vector<Elastic*>& members, const std::string& name) {
  std::vector<std::uint32_t> ranks;
  for (const Elastic* one : members) ranks.push_back(one->rank());
  std::ranges::sort(ranks);
  std::vector<float> values;
  for (std::size_t i = 0; i < members.size(); ++i) values.push_back(static_cast<float>(1 << i));
  std::vector<std::pair<sluice_group*, std::uint64_t>> begun;
  for (std::size_t i = 0; i < members.size(); ++i) {
    sluice_group* const group = members[i]->make(name, ranks);
    begun.emplace_back(group, members[i]->begin_sum(group, values[i]));
  }
  for (const auto& [group, ticket] : begun) EXPECT_EQ(Elastic::end(group, ticket), SLUICE_OK);
  for (const float value : values) EXPECT_EQ(value, static_cast<float>((1 << members.size()) - 1));
}

TEST(Groups, an_elastic_job_grows_shrinks_splits_and_merges_on_the_same_sessions) {
  Elastic first("groups-elastic");
  expect_sum({&first}, "alone");
  Elastic second("groups-elastic");
  EXPECT_NE(first.rank(), second.rank());
  expect_sum({&first, &second}, "two");
  {
    Elastic third("groups-elastic");
    Elastic fourth("groups-elastic");
    expect_sum({&fourth, &first, &second, &third}, "four");
    expect_sum({&first, &third}, "left half");
    expect_sum({&second, &fourth}, "right half");
    expect_sum({&first, &second, &third, &fourth}, "four again");
  }
  Elastic fifth("groups-elastic");
  expect_sum({&fifth, &first, &second}, "three");
}

TEST(Groups, an_aborted_group_fails_for_all_and_its_ranks_make_another) {
  Elastic first("groups-aborted");
  Elastic second("groups-aborted");
  const std::vector<std::uint32_t> ranks{first.rank(), second.rank()};
  float value = 1;
  float other = 1;
  sluice_group* const there = first.make("pair", ranks);
  sluice_group* const here = second.make("pair", ranks);
  // Whoever aborts a group that is not agreed yet has refused it.
  const std::uint64_t agreed = first.begin_sum(there, value);
  EXPECT_EQ(Elastic::end(here, second.begin_sum(here, other)), SLUICE_OK);
  EXPECT_EQ(Elastic::end(there, agreed), SLUICE_OK);
  const std::uint64_t ticket = first.begin_sum(there, value);
  EXPECT_EQ(sluice_abort_group(here), SLUICE_OK);
  EXPECT_EQ(Elastic::end(there, ticket), SLUICE_PEER_LOST);
  EXPECT_EQ(sluice_abort_group(here), SLUICE_CLOSED);
  expect_sum({&first, &second}, "anew");
}

TEST(Groups, every_kind_of_operation_and_every_failure) {
  on_all_ranks("groups-all", 3, [](sluice_job* job, std::uint32_t rank) {
    e2e::run_all_checks(job, rank, 3, {0, 1, 7, 1'000, 40'001});
  });
}

TEST(Groups, callbacks_run_once_and_may_call_the_next_operation) {
  struct Chain {
    sluice_group* group = nullptr;
    std::array<float, 500> data{};
    std::atomic<int> calls{0};
    static void next(void* user, std::uint64_t, sluice_status status) {
      auto& self = *static_cast<Chain*>(user);
      if (status != SLUICE_OK) self.calls = -1000;
      if (++self.calls >= 20) return;
      self.call();
    }
    void call() {
      sluice_operation operation = e2e::operation_of();
      operation.done = next;
      operation.user = this;
      e2e::expect_ok(
          sluice_all_reduce(group, data.data(), data.data(), data.size(), &operation, nullptr),
          "all_reduce of a chain");
    }
  };
  on_all_ranks("groups-callbacks", 2, [](sluice_job* job, std::uint32_t rank) {
    e2e::OperationChecks checks(job, rank, 2);
    Chain chain;
    chain.group = checks.group("chain", {0, 1});
    chain.data.fill(1);
    chain.call();
    while (chain.calls >= 0 && chain.calls < 20) std::this_thread::yield();
    e2e::expect(chain.calls == 20, "the chain has broken");
    e2e::expect(chain.data[7] == 1 << 20, "the sum of the chain");
    std::uint64_t ticket = 0;
    e2e::expect_ok(sluice_group_barrier(chain.group, nullptr, &ticket), "barrier");
    checks.wait(chain.group, ticket, "barrier");
  });
}

TEST(Groups, a_wait_that_times_out_names_who_has_not_called_and_the_operation_goes_on) {
  std::atomic<bool> asked{false};
  on_all_ranks("groups-wait", 2, [&](sluice_job* job, std::uint32_t rank) {
    e2e::OperationChecks checks(job, rank, 2);
    sluice_group* const group = checks.group("slow", {0, 1});
    std::uint64_t ticket = 0;
    if (rank == 1)
      while (!asked) std::this_thread::yield();
    e2e::expect_ok(sluice_group_barrier(group, nullptr, &ticket), "barrier");
    std::int32_t done = 1;
    if (rank == 0) {
      e2e::expect_ok(sluice_test(group, ticket, &done), "test");
      e2e::expect(done == 0, "nobody else has called it");
      while (std::string(sluice_last_error(nullptr)).find("rank 1 has not called it") ==
             std::string::npos)
        e2e::expect(sluice_wait(group, ticket, 100, &done) == SLUICE_TIMED_OUT && done == 0,
                    "the wait is over too early");
      asked = true;
    }
    checks.wait(group, ticket, "barrier");
  });
}

TEST(Groups, a_group_that_all_have_left_gives_its_name_back) {
  on_all_ranks("groups-leave", 2, [](sluice_job* job, std::uint32_t rank) {
    e2e::OperationChecks checks(job, rank, 2);
    sluice_group* const all = checks.group("all", {0, 1});
    for (int round = 0; round < 5; ++round) {
      sluice_group* const group = checks.group("again", {0, 1});
      std::array<float, 300> data{};
      data.fill(static_cast<float>(rank + 1));
      std::uint64_t ticket = 0;
      e2e::expect_ok(
          sluice_all_reduce(group, data.data(), data.data(), data.size(), nullptr, &ticket), "sum");
      checks.wait(group, ticket, "sum");
      e2e::expect(data[299] == 3, "the sum");
      e2e::expect_ok(sluice_leave_group(group), "leave_group");
      e2e::expect(sluice_group_barrier(group, nullptr, &ticket) == SLUICE_CLOSED, "it is left");
      // Until the appliance knows that both have left, the name is in use.
      for (int i = 0; i < 2; ++i) {
        e2e::expect_ok(sluice_group_barrier(all, nullptr, &ticket), "barrier");
        checks.wait(all, ticket, "barrier");
      }
    }
  });
}

TEST(Groups, members_that_name_other_ranks_are_told_both_lists) {
  on_all_ranks("groups-differ", 3, [&](sluice_job* job, std::uint32_t rank) {
    e2e::OperationChecks checks(job, rank, 3);
    sluice_group* const all = checks.group("all", {0, 1, 2});
    std::uint64_t ticket = 0;
    const auto meet = [&] {
      e2e::expect_ok(sluice_group_barrier(all, nullptr, &ticket), "barrier");
      checks.wait(all, ticket, "barrier");
    };
    std::uint64_t odd = 0;
    if (rank == 0) {  // it is made once its first operation has ended
      sluice_group* const group = checks.group("odd", {0});
      e2e::expect_ok(sluice_group_barrier(group, nullptr, &odd), "barrier alone");
      checks.wait(group, odd, "barrier alone");
    }
    meet();
    if (rank == 1) {
      sluice_group* const group = checks.group("odd", {0, 1, 2});
      sluice_status status = sluice_group_barrier(group, nullptr, &odd);
      if (status == SLUICE_OK) status = sluice_wait(group, odd, e2e::kWaitMs, nullptr);
      e2e::expect(status == SLUICE_REFUSED, "it is not refused");
      e2e::expect_text("rank 1 says ranks 0, 1, 2, rank 0 has made it of rank 0");
    }
    meet();
  });
}

TEST(Groups, misuse_is_refused_in_words) {
  on_all_ranks("groups-misuse", 1, [](sluice_job* job, std::uint32_t) {
    e2e::OperationChecks checks(job, 0, 1);
    sluice_group* group = checks.group("alone", {0});
    std::uint64_t ticket = 0;
    float one = 1;
    sluice_operation operation = e2e::operation_of(7);
    const auto refused = [](sluice_status status, const char* part) {
      e2e::expect(status == SLUICE_INVALID_ARGUMENT, part);
      e2e::expect_text(part);
    };
    refused(sluice_all_reduce(group, &one, &one, 1, &operation, &ticket), "operation.dtype is 7");
    operation = e2e::operation_of();
    operation.wire = SLUICE_WIRE_INT8;
    refused(sluice_all_reduce(group, &one, &one, 1, &operation, &ticket),
            "operation.wire is SLUICE_WIRE_INT8: operations keep no residual");
    operation.wire = 17;
    refused(sluice_all_reduce(group, &one, &one, 1, &operation, &ticket), "operation.wire is 17");
    operation = e2e::operation_of();
    operation.priority = 256;
    refused(sluice_all_reduce(group, &one, &one, 1, &operation, &ticket), "priority is 256");
    refused(sluice_all_reduce(group, &one, nullptr, 1, nullptr, &ticket), "output is NULL");
    refused(sluice_all_reduce(group, &one, &one, 1, nullptr, nullptr), "ticket is NULL");
    refused(sluice_group_broadcast(group, 5, &one, 4, nullptr, &ticket), "root");
    refused(sluice_wait(group, 99, 0, nullptr), "no ticket 99");
    refused(sluice_all_reduce(nullptr, &one, &one, 1, nullptr, &ticket), "group is NULL");
    const std::uint32_t twice[] = {0, 0};
    refused(sluice_make_group(job, "twice", twice, 2, &group), "must ascend");
    refused(sluice_submit(job, 0, &one, &one, 1, 0), "has no tensors");
    group = checks.group("alone", {0});
    e2e::expect_ok(sluice_all_reduce(group, &one, &one, 1, nullptr, &ticket), "sum of one rank");
    checks.wait(group, ticket, "sum of one rank");
    e2e::expect(one == 1, "the sum of one rank");
  });
}

TEST(Groups, options_of_tensors_are_refused) {
  const std::string address = "inproc://groups-options";
  sluice_options options = options_of(address, 0, 1);
  options.wire = SLUICE_WIRE_BFLOAT16;
  sluice_job* job = nullptr;
  EXPECT_EQ(sluice_join_operations(&options, &job), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(sluice_last_error(nullptr)).find("options.wire"), std::string::npos);
}

}  // namespace
}  // namespace sluice

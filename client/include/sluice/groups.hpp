// Operations among some of a job's ranks, in C++: sluice.h has the contracts, sluice.hpp includes
// this. A call throws sluice::Error where the C function fails, and may be made from any thread.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstdint>
#include <sluice/member.hpp>
#include <sluice/options.hpp>
#include <string>
#include <vector>

namespace sluice {

// How an operation is carried out: sluice_operation with its defaults.
struct Operation : sluice_operation {
  Operation() : sluice_operation{} {
    struct_size = sizeof(sluice_operation);
    sluice_operation_init(this);
  }
};

// An operation that was called. Copies are of the same one; valid as long as its session.
class Ticket {
 public:
  Ticket() = default;  // of no operation: assign one first
  Ticket(sluice_group* group, std::uint64_t number) noexcept : group_(group), number_(number) {}

  // Blocks until the operation is over; throws its error. Throws SLUICE_TIMED_OUT after `timeout`,
  // with the ranks that have not called it, and the operation goes on: is_over() tells them apart.
  void wait(std::chrono::milliseconds timeout = kForever) const {
    detail::check(nullptr, sluice_wait(group_, number_, detail::milliseconds(timeout), nullptr));
  }
  // However it has ended: the buffers are the caller's again. Never blocks.
  bool is_over() const {
    std::int32_t over = 0;
    const sluice_status status = sluice_test(group_, number_, &over);
    if (over == 0) detail::check(nullptr, status);
    return over != 0;
  }
  void cancel() const { detail::check(nullptr, sluice_cancel(group_, number_)); }
  // Names the operation in error texts.
  std::uint64_t number() const noexcept { return number_; }

 private:
  sluice_group* group_ = nullptr;
  std::uint64_t number_ = 0;
};

// Some ranks of a session's job. Copies are of the same one; valid as long as its session. Buffers
// belong to the library until the ticket is over; counts are those of sluice.h.
class Group {
 public:
  Group() = default;  // of no ranks: assign one first
  explicit Group(sluice_group* group) noexcept : group_(group) {}

  Ticket all_reduce(const void* input, void* output, std::uint64_t elem_count,
                    const Operation& operation = {}) const {
    return begin([&](std::uint64_t* ticket) {
      return sluice_all_reduce(group_, input, output, elem_count, &operation, ticket);
    });
  }
  Ticket reduce(std::uint32_t root, const void* input, void* output, std::uint64_t elem_count,
                const Operation& operation = {}) const {
    return begin([&](std::uint64_t* ticket) {
      return sluice_reduce(group_, root, input, output, elem_count, &operation, ticket);
    });
  }
  Ticket reduce_scatter(const void* input, void* output, std::uint64_t elem_count,
                        const Operation& operation = {}) const {
    return begin([&](std::uint64_t* ticket) {
      return sluice_reduce_scatter(group_, input, output, elem_count, &operation, ticket);
    });
  }
  Ticket all_gather(const void* input, void* output, std::uint64_t bytes,
                    const Operation& operation = {}) const {
    return begin([&](std::uint64_t* ticket) {
      return sluice_all_gather(group_, input, output, bytes, &operation, ticket);
    });
  }
  Ticket broadcast(std::uint32_t root, void* buffer, std::uint64_t bytes,
                   const Operation& operation = {}) const {
    return begin([&](std::uint64_t* ticket) {
      return sluice_group_broadcast(group_, root, buffer, bytes, &operation, ticket);
    });
  }
  Ticket barrier(const Operation& operation = {}) const {
    return begin(
        [&](std::uint64_t* ticket) { return sluice_group_barrier(group_, &operation, ticket); });
  }

  void leave() const { detail::check(nullptr, sluice_leave_group(group_)); }
  void abort() const { detail::check(nullptr, sluice_abort_group(group_)); }
  sluice_group* get() const noexcept { return group_; }

 private:
  template <class Call>
  Ticket begin(Call call) const {
    std::uint64_t number = 0;
    detail::check(nullptr, call(&number));
    return {group_, number};
  }

  sluice_group* group_ = nullptr;
};

// A process's membership of a job of operations, which ends with the object. Movable.
class Session : public Member {
 public:
  // Joins and blocks until all ranks have joined; with rank SLUICE_RANK_ANY until the appliance
  // has answered.
  explicit Session(const Options& options) : Member(options) {
    const sluice_options raw = options_->raw();
    detail::check(nullptr, sluice_join_operations(&raw, &job_));
  }

  std::uint32_t rank() const {
    std::uint32_t rank = 0;
    check(sluice_get_rank(job_, &rank));
    return rank;
  }
  // The group of these ranks, which ascend and contain this one, by a name that its members agree
  // on. Never blocks.
  Group group(const std::string& name, const std::vector<std::uint32_t>& ranks) const {
    sluice_group* group = nullptr;
    check(sluice_make_group(job_, name.c_str(), ranks.data(), ranks.size(), &group));
    return Group(group);
  }
};

}  // namespace sluice

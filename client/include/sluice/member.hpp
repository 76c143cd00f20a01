// What a process has as a member of a job of any kind, in C++: sluice.hpp and groups.hpp include
// it.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sluice/options.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

// A call that failed: status() says how, what() has the cause and the remedy.
class Error : public std::runtime_error {
 public:
  Error(sluice_status status, const std::string& text)
      : std::runtime_error(text.empty() ? sluice_status_name(status) : text), status_(status) {}
  sluice_status status() const noexcept { return status_; }

 private:
  sluice_status status_;
};

inline constexpr std::chrono::milliseconds kForever{-1};

namespace detail {

inline void check(const sluice_job* job, sluice_status status) {
  if (status != SLUICE_OK) throw Error(status, sluice_last_error(job));
}
template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}
inline std::int32_t milliseconds(std::chrono::milliseconds timeout) noexcept {
  return timeout.count() < 0           ? SLUICE_FOREVER
         : timeout.count() > INT32_MAX ? INT32_MAX
                                       : static_cast<std::int32_t>(timeout.count());
}

}  // namespace detail

// The membership, which ends with the object. Movable.
class Member {
 public:
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Small collectives of all ranks. Not in an elastic job.
  void broadcast(std::uint32_t root, void* buffer, std::size_t bytes,
                 std::chrono::milliseconds timeout = kForever) {
    check(sluice_broadcast(job_, root, buffer, bytes, detail::milliseconds(timeout)));
  }
  void barrier(std::chrono::milliseconds timeout = kForever) {
    check(sluice_barrier(job_, detail::milliseconds(timeout)));
  }

  void leave() { check(sluice_leave(job_)); }
  void finish() { check(sluice_finish(job_)); }
  void abort() { check(sluice_abort(job_)); }
  void abort(const std::string& reason) { check(sluice_abort_with(job_, reason.c_str())); }

  sluice_counters counters() const { return get<sluice_counters>(sluice_get_counters); }
  // By thread and level, see sluice.h.
  std::vector<std::pair<sluice_part, sluice_counters>> part_counters() const {
    std::vector<std::pair<sluice_part, sluice_counters>> all;
    for (;;) {
      auto part = detail::sized<sluice_part>();
      auto counters = detail::sized<sluice_counters>();
      const sluice_status status =
          sluice_get_part_counters(job_, static_cast<std::uint32_t>(all.size()), &part, &counters);
      if (status == SLUICE_NOT_FOUND) return all;
      check(status);
      all.emplace_back(part, counters);
    }
  }
  sluice_stall stall() const { return get<sluice_stall>(sluice_get_stall); }
  sluice_job* get() const noexcept { return job_; }

 protected:
  explicit Member(const Options& options) : options_(std::make_unique<Options>(options)) {}
  ~Member() { sluice_close(job_); }
  Member(Member&& other) noexcept
      : options_(std::move(other.options_)), job_(std::exchange(other.job_, nullptr)) {}
  Member& operator=(Member&& other) noexcept {
    if (this != &other) {
      sluice_close(job_);
      job_ = std::exchange(other.job_, nullptr);
      options_ = std::move(other.options_);
    }
    return *this;
  }

  void check(sluice_status status) const { detail::check(job_, status); }
  template <class Info>
  Info get(sluice_status (*call)(sluice_job*, Info*)) const {
    auto info = detail::sized<Info>();
    check(call(job_, &info));
    return info;
  }

  std::unique_ptr<Options> options_;  // its callbacks are the job's; stays where it is
  sluice_job* job_ = nullptr;
};

}  // namespace sluice

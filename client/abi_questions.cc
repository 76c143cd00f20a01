// The C interface: the functions that only ask. None of them blocks, except while residuals are on
// a device.
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>

#include "client/abi_call.h"
#include "client/abi_options.h"
#include "client/abi_policy.h"

using sluice::Status;
using sluice::StatusCode;
using sluice::client::answer;
using sluice::client::check_struct;
using sluice::client::copy_text;
using sluice::client::guarded;
using sluice::client::Job;

namespace {

// The names of the members of sluice_counters, in their order.
struct CounterName {
  const char* name;
  const char* help;
  std::size_t offset;
};
constexpr CounterName kCounters[] = {
#define X(name, help) {#name, help, offsetof(sluice_counters, name)},
    SLUICE_CLIENT_COUNTERS(X)
#undef X
};
constexpr bool counters_are_in_order() {
  for (std::size_t i = 0; i < std::size(kCounters); ++i)
    if (kCounters[i].offset != offsetof(sluice_counters, packets_sent) + 8 * i) return false;
  return sizeof(sluice_counters) ==
         offsetof(sluice_counters, packets_sent) + sizeof(std::uint64_t) * std::size(kCounters);
}
static_assert(counters_are_in_order());

void tell(const sluice::client::Counters& found, sluice_counters* counters) {
#define X(name, help) counters->name = found.name;
  SLUICE_CLIENT_COUNTERS(X)
#undef X
}

}  // namespace

extern "C" {

sluice_status sluice_get_policy(sluice_job* job, sluice_policy_info* info) {
  return guarded(job, [&](Job& impl) {
    return answer(info, "sluice_policy_info", [&](sluice_policy_info& known) {
      const sluice::client::JobFacts facts = impl.facts();
      known.policy = sluice::client::policy_of(facts.policy);
      known.window_steps = facts.window_steps;
      known.resync_hold_ms = facts.resync_hold_ms;
      known.tolerates_stragglers = facts.policy.tolerates_stragglers();
      known.averaging = static_cast<std::int32_t>(facts.averaging);
      return Status();
    });
  });
}

sluice_status sluice_get_position(sluice_job* job, sluice_position* position) {
  return guarded(job, [&](Job& impl) {
    return answer(position, "sluice_position", [&](sluice_position& known) {
      const sluice::client::Position found = impl.position();
      known.next_step = found.next_step;
      known.behind = found.behind;
      known.must_resync = found.must_resync;
      known.state_wanted_by = found.state_wanted_by;
      return impl.status();
    });
  });
}

sluice_status sluice_get_report(sluice_job* job, uint32_t step, sluice_report* report) {
  return guarded(job, [&](Job& impl) {
    return answer(report, "sluice_report", [&](sluice_report& known) {
      sluice::client::StepReport found;
      Status status = impl.step_report(step, found);
      const std::size_t rank = impl.rank().value;
      known.step = found.step;
      known.k = found.k;
      known.weight = found.weight;
      known.counted = found.in_every[rank / 64] >> (rank % 64) & 1;
      known.rank_words = found.mask_words;
      known.first_members = found.first_members;
      known.first_may_count = found.first_may_count;
      static_assert(sizeof known.in_every == sizeof found.in_every);
      std::memcpy(known.in_every, found.in_every.data(), sizeof known.in_every);
      std::memcpy(known.in_any, found.in_any.data(), sizeof known.in_any);
      return status;
    });
  });
}

sluice_status sluice_get_left_behind(sluice_job* job, sluice_left_behind* left) {
  return guarded(job, [&](Job& impl) {
    return answer(left, "sluice_left_behind", [&](sluice_left_behind& known) {
      sluice::client::LeftBehind found;
      Status status = impl.left_behind(found);
      known.elem_count = found.elem_count;
      known.norm = found.norm();
      return status;
    });
  });
}

sluice_status sluice_get_status(sluice_job* job) {
  return guarded(job, [](Job& impl) { return impl.status(); });
}

sluice_status sluice_get_counters(sluice_job* job, sluice_counters* counters) {
  return guarded(job, [&](Job& impl) -> Status {
    Status status = check_struct(counters, "sluice_counters");
    if (status.ok()) tell(impl.counters(), counters);
    return status;
  });
}

sluice_status sluice_get_part_counters(sluice_job* job, uint32_t index, sluice_part* part,
                                       sluice_counters* counters) {
  return guarded(job, [&](Job& impl) {
    return answer(part, "sluice_part", [&](sluice_part& known) -> Status {
      Status status = check_struct(counters, "sluice_counters");
      if (!status.ok()) return status;
      const auto found = impl.part_counters(index);
      if (!found)
        return {StatusCode::kNotFound,
                "get_part_counters: there is no part " + std::to_string(index)};
      known.thread = found->thread;
      known.level = found->level;
      tell(found->counters, counters);
      return {};
    });
  });
}

const char* sluice_counter_name(size_t index) {
  return index < std::size(kCounters) ? kCounters[index].name : nullptr;
}

const char* sluice_counter_help(size_t index) {
  return index < std::size(kCounters) ? kCounters[index].help : nullptr;
}

sluice_status sluice_get_stall(sluice_job* job, sluice_stall* stall) {
  return guarded(job, [&](Job& impl) -> Status {
    return answer(stall, "sluice_stall", [&](sluice_stall& known) -> Status {
      const sluice::client::Stall found = impl.stall();
      known.stalled_ns = static_cast<std::uint64_t>(found.stalled_ns);
      copy_text(found.text, known.text, sizeof known.text);
      std::ranges::copy(found.missing, known.missing);
      return {};
    });
  });
}

sluice_status sluice_describe_memory(int32_t device, char* text, size_t capacity) {
  return guarded([&]() -> Status {
    if (text == nullptr || capacity == 0)
      return {StatusCode::kInvalidArgument, "describe_memory: text is NULL or capacity is 0"};
    copy_text(sluice::client::Device::describe(device), text, capacity);
    return {};
  });
}

sluice_status sluice_get_schedule_plan(sluice_job* job, char* text, size_t capacity) {
  return guarded(job, [&](Job& impl) -> Status {
    if (text == nullptr || capacity == 0)
      return {StatusCode::kInvalidArgument, "get_schedule_plan: text is NULL or capacity is 0"};
    copy_text(impl.describe_plan(), text, capacity);
    return {};
  });
}

}  // extern "C"

#include "aggregator/jobs/memory.h"

#include <exception>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/jobs/jobs.h"

namespace sluice::agg {

void carry_out(MemoryOrder& order) noexcept {
  if (order.kind == MemoryOrder::Kind::kGiveBack) {
    CHECK(order.job != nullptr);
    order.job.reset();
    return;
  }
  CHECK(order.job == nullptr && order.progress != nullptr);
  try {
    order.job = std::make_unique<Job>(order.spec, order.progress.get());
  } catch (const std::exception&) {  // no memory, or no more need for it
    order.job.reset();
  }
}

bool carry_out_all(Jobs& jobs, TimeNs now) {
  bool made = false;
  for (MemoryOrder order; jobs.poll_memory(order);) {
    carry_out(order);
    made |= order.job != nullptr;
    jobs.handle_memory(std::move(order), now);
  }
  return made;
}

}  // namespace sluice::agg

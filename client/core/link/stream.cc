#include "client/core/link/stream.h"

namespace sluice::client {

bool Stream::poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                        TimeNs now) {
  Flow& flow = link_.flows[shard];
  Recovery::ProbePlan plan;
  if (!recovers(shard) || !recovery_->may_probe(shard) || !flow.on_pace(now) ||
      !recovery_->plan_probe(shard, flow, plan))
    return false;
  DCHECK(link_.shard_of_chunk(plan.block * kChunksPerBlock) == shard);
  recovery_->probe_sent(shard, plan, now, flow);
  ++link_.counters.probes;
  const Priority priority = block_priority(plan.block);
  wire::Probe body{.flow = flow.next_header(now, priority),
                   .step = probe_step(plan.block),
                   .block = plan.block,
                   .want = plan.want,
                   .stream = id_};
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .port_offset = static_cast<std::uint16_t>(1 + shard),
              .priority = priority};
  return true;
}

}  // namespace sluice::client

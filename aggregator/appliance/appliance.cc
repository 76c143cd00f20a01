#include "aggregator/appliance/appliance.h"

namespace sluice::agg {

Shards::Shards(std::uint16_t count, Mail mail) {
  CHECK(count >= 1 && count <= kMaxShards);
  for (std::uint16_t id = 0; id < count; ++id)
    lcores_.push_back(std::make_unique<Lcore>(ShardId{id}, mail));
}

void Shards::post(const ShardCommand& command) {
  for (const auto& lcore : lcores_) lcore->commands.post(command);
}

bool Shards::take_event(ShardEvent& event) {
  for (const auto& lcore : lcores_)
    if (lcore->events.take(event)) return true;
  return false;
}

std::uint64_t Shards::verdicts(Verdict verdict) const noexcept {
  std::uint64_t total = 0;
  for (const auto& lcore : lcores_) total += lcore->shard.verdicts().read(verdict);
  return total;
}

Appliance::Appliance(ApplianceOptions options)
    : jobs_(options.jobs),
      shards_(options.jobs.shard_count, options.mail),
      makes_memory_(options.makes_memory) {}

ControlResult Appliance::handle_control(const wire::Packet& packet, const Origin& origin,
                                        std::span<std::uint8_t> reply, TimeNs now) {
  const ControlResult result = jobs_.handle(packet, origin, reply, now);
  if (packet.type() != wire::PacketType::kJoin || make_memory(now) == 0) return result;
  ++repeated_;
  return jobs_.handle(packet, origin, reply, now);
}

std::size_t Appliance::make_memory(TimeNs now) {
  return makes_memory_ && carry_out_all(jobs_, now) ? 1 : 0;
}

std::uint64_t Appliance::verdicts(Verdict verdict) const noexcept {
  return jobs_.verdicts().read(verdict) + shards_.verdicts(verdict);
}

}  // namespace sluice::agg

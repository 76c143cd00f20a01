// The appliances of a world: which one a packet is for, which one lives, and where each run is.
#include <utility>

#include "tests/sim/world.h"

namespace sluice::sim {
namespace {

wire::IpAddress appliance_address(bool ipv6, std::size_t box) {
  const auto low = static_cast<std::uint8_t>(1 + box);
  if (!ipv6) return wire::ipv4_address(10, 255, 0, low);
  wire::IpAddress address{wire::Family::kIpv6, {0xfd, 2}};
  address.bytes[15] = low;
  return address;
}

void draw_boot_key(agg::JobsOptions& jobs, std::uint64_t seed) {
  for (std::size_t i = 0; i < jobs.boot_key.size(); ++i)
    jobs.boot_key[i] = static_cast<std::uint8_t>(mix(seed, 0xB007, i));
}

}  // namespace

void World::stop_appliance(std::size_t index) {
  Box& box = boxes_[index];
  if (!std::exchange(box.up, false)) return;
  box.appliance->power_off();
  // What is on its way to a worker has left it, or is behind its cable.
  for (std::size_t i = 1; boxes_.size() == 1 && i < links_.size(); i += 2)
    links_[i]->power_off(pool_);
  for (RunIndex run = 0; run < runs_.size(); ++run)
    runs_[run]->restarts |= runs_[run]->epoch % boxes_.size() == index;
}

void World::start_appliance(std::uint64_t boot_seed, std::size_t index) {
  stop_appliance(index);
  Box& box = boxes_[index];
  draw_boot_key(options_.appliance.jobs, boot_seed);
  box.boot = boots_++;
  box.appliance = std::make_unique<Appliance>(*this, options_.appliance,
                                              appliance_address(options_.ipv6, index), box.boot);
  box.up = true;
  for (RunIndex run = 0; run < runs_.size(); ++run) {
    const bool restarts = std::exchange(runs_[run]->restarts, false);
    if (restarts && runs_[run]->epoch % boxes_.size() == index) oracle_.note_restart(run);
  }
}

Appliance* World::booted(std::uint32_t boot) const {
  for (const Box& box : boxes_)
    if (box.boot == boot && box.up) return box.appliance.get();
  return nullptr;
}

std::optional<std::size_t> World::box_at(const wire::IpAddress& address) const {
  for (std::size_t box = 0; box < boxes_.size(); ++box)
    if (boxes_[box].appliance->address() == address) return box;
  return {};
}

bool World::is_cut(HostIndex host, const wire::IpAddress& address) const {
  const std::optional<std::size_t> box = box_at(address);
  return box && cuts_.contains({host, *box});
}

// The first packet of the first member at the next place: from here on that counts.
void World::note_epoch(Worker& worker, const wire::Packet& packet) {
  const Cookie cookie = packet.common().cookie;
  if (cookie == 0 || boxes_.size() == 1) return;
  const RunIndex index = worker.identity.run;
  Run& run = *runs_[index];
  const std::uint32_t epoch = worker.session().epoch();
  if (!epochs_.try_emplace({index, cookie}, epoch).second || epoch <= run.epoch) return;
  run.epoch = epoch;
  oracle_.note_restart(index);
}

bool World::counts(RunIndex run, const wire::Packet& packet) const {
  if (boxes_.size() == 1) return true;
  const wire::PacketType type = packet.type();
  if (type != wire::PacketType::kPiece && type != wire::PacketType::kPieceResult) return true;
  const auto found = epochs_.find({run, packet.common().cookie});
  return found != epochs_.end() && found->second == runs_[run]->epoch;
}

}  // namespace sluice::sim
